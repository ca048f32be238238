"""Requests to a web application without a network: its handlers run in this event loop.

Source: the ASGI specification, version 3.0 (HTTP connection scope).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, MutableMapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from .lines import Answer

if TYPE_CHECKING:
    from starlette.applications import Starlette

AsgiMessage = MutableMapping[str, Any]
Headers = Sequence[tuple[bytes, bytes]]


class InProcess:
    """A Starlette or FastAPI application between its startup and its shutdown.

    >>> async with InProcess(app) as service:
    ...     answer = await service.post("/v1/completions", {"prompt": "def add("})
    """

    def __init__(self, app: Starlette, headers: Mapping[str, str] | None = None) -> None:
        self.app = app
        headers = {"content-type": "application/json", "host": "in-process", **(headers or {})}
        self.headers = [(key.encode(), value.encode()) for key, value in headers.items()]
        self._lifespan = app.router.lifespan_context(app)

    async def post(self, url: str, body: Mapping[str, Any]) -> Answer:
        """Send a request and wait for the whole answer; cancelling the call cancels the request."""
        status, headers, parts = 500, dict[bytes, str](), list[bytes]()
        async for message in self.call("POST", url, self.headers, json.dumps(body).encode()):
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = {k.lower(): v.decode("latin-1") for k, v in message.get("headers", ())}
            else:
                parts.append(message.get("body", b""))
        return Answer(status, _decode(b"".join(parts)), headers.get(b"x-request-id", ""))

    async def call(
        self, method: str, path: str, headers: Headers, body: bytes, query: bytes = b""
    ) -> AsyncIterator[AsgiMessage]:
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
        client_left, messages = asyncio.Event(), asyncio.Queue[AsgiMessage | None]()

        async def receive() -> AsgiMessage:
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

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._lifespan.__aexit__(kind, error, traceback)


def _decode(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return body.decode("utf-8", "replace")
