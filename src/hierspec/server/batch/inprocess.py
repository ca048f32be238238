"""Requests to a web application without a network: its handlers run in this event loop.

Source: the ASGI specification, version 3.0 (HTTP connection scope, lifespan protocol).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping, Sequence
from types import TracebackType
from typing import Any

from .lines import Answer

AsgiMessage = MutableMapping[str, Any]
Headers = Sequence[tuple[bytes, bytes]]
Application = Callable[
    [
        MutableMapping[str, Any],
        Callable[[], Awaitable[AsgiMessage]],
        Callable[[AsgiMessage], Awaitable[None]],
    ],
    Awaitable[None],
]


class InProcess:
    """An ASGI application between its startup and its shutdown.

    >>> async with InProcess(app) as service:
    ...     answer = await service.post("/v1/completions", {"prompt": "def add("})
    """

    def __init__(self, app: Application, headers: Mapping[str, str] | None = None) -> None:
        self.app = app
        headers = {"content-type": "application/json", "host": "in-process", **(headers or {})}
        self.headers = [(key.encode(), value.encode()) for key, value in headers.items()]
        self._lifespan_events: asyncio.Queue[AsgiMessage] = asyncio.Queue()
        self._lifespan_answers: asyncio.Queue[AsgiMessage] = asyncio.Queue()
        self._state: dict[str, Any] = {}
        self._task: asyncio.Task[None] | None = None

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
            "state": dict(self._state),
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
        self._task = asyncio.create_task(self._run_lifespan())
        await self._complete_phase("startup")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._complete_phase("shutdown")
        assert self._task is not None
        await self._task

    async def _run_lifespan(self) -> None:
        scope = {"type": "lifespan", "asgi": {"version": "3.0"}, "state": self._state}
        await self.app(scope, self._lifespan_events.get, self._lifespan_answers.put)

    async def _complete_phase(self, name: str) -> None:
        """Send the application a lifespan event and wait until it is complete."""
        assert self._task is not None
        await self._lifespan_events.put({"type": f"lifespan.{name}"})
        answer = asyncio.create_task(self._lifespan_answers.get())
        await asyncio.wait({answer, self._task}, return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():  # the application does not support lifespans, or failed
            answer.cancel()
            if error := self._task.exception():
                raise error
        elif answer.result()["type"].endswith(".failed"):
            raise RuntimeError(answer.result().get("message") or f"{name} failed")


def _decode(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return body.decode("utf-8", "replace")
