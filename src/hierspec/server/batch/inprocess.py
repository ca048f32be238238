"""Requests to a web application without a network: its handlers run in this event loop.

Source: the ASGI specification, version 3.0 (HTTP connection scope).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from starlette.applications import Starlette
from starlette.types import Message

from .lines import Answer

_HEADERS = ((b"content-type", b"application/json"), (b"host", b"in-process"))


class InProcess:
    """A Starlette or FastAPI application between its startup and its shutdown.

    >>> async with InProcess(app) as service:
    ...     answer = await service.post("/v1/completions", {"prompt": "def add("})
    """

    def __init__(self, app: Starlette) -> None:
        self.app = app
        self._lifespan = app.router.lifespan_context(app)

    async def post(self, url: str, body: Mapping[str, Any]) -> Answer:
        """Send a request and wait for the whole answer; cancelling the call cancels the request."""
        status, headers, parts = 500, dict[bytes, str](), list[bytes]()
        async for message in self.call("POST", url, _HEADERS, json.dumps(body).encode()):
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = {k.lower(): v.decode("latin-1") for k, v in message.get("headers", ())}
            else:
                parts.append(message.get("body", b""))
        content: Any = b"".join(parts).decode("utf-8", "replace")
        with contextlib.suppress(ValueError):
            content = json.loads(content)
        return Answer(status, content, headers.get(b"x-request-id", ""))

    async def call(
        self,
        method: str,
        path: str,
        headers: Sequence[tuple[bytes, bytes]],
        body: bytes,
        query: bytes = b"",
    ) -> AsyncIterator[Message]:
        """Yield the messages of an answer as they come: its start, and the parts of its body.

        Closing the iterator tells the application that its client has left.
        """
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": query,
            "root_path": "",
            "headers": list(headers),
            "client": ("127.0.0.1", 0),
            "server": ("in-process", 80),
        }
        request = [{"type": "http.request", "body": body, "more_body": False}]
        client_left, messages = asyncio.Event(), asyncio.Queue[Message | None]()

        async def receive() -> Message:
            if request:
                return request.pop()
            await client_left.wait()
            return {"type": "http.disconnect"}

        task = asyncio.ensure_future(self.app(scope, receive, messages.put))
        task.add_done_callback(lambda _: messages.put_nowait(None))
        try:
            while (message := await messages.get()) is not None:
                yield message
            await task  # raises what the application raised
        finally:
            client_left.set()
            task.cancel()

    async def __aenter__(self) -> InProcess:
        await self._lifespan.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._lifespan.__aexit__(*error)
