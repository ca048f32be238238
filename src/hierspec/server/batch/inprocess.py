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

Message = MutableMapping[str, Any]
Headers = Sequence[tuple[bytes, bytes]]
Application = Callable[
    [
        MutableMapping[str, Any],
        Callable[[], Awaitable[Message]],
        Callable[[Message], Awaitable[None]],
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
        said = {"content-type": "application/json", "host": "in-process", **(headers or {})}
        self.headers = [(key.encode(), value.encode()) for key, value in said.items()]
        self._events: asyncio.Queue[Message] = asyncio.Queue()
        self._told: asyncio.Queue[Message] = asyncio.Queue()
        self._state: dict[str, Any] = {}
        self._task: asyncio.Task[None] | None = None

    async def post(self, url: str, body: Mapping[str, Any]) -> Answer:
        """Send a request and wait for the whole answer; cancelling the call cancels the request."""
        status, headers, parts = 500, dict[bytes, str](), list[bytes]()
        async for message in self.call("POST", url, self.headers, _encoded(body)):
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = {k.lower(): v.decode("latin-1") for k, v in message.get("headers", ())}
            else:
                parts.append(message.get("body", b""))
        return Answer(status, _decoded(b"".join(parts)), headers.get(b"x-request-id", ""))

    async def call(
        self, method: str, path: str, headers: Headers, body: bytes, query: bytes = b""
    ) -> AsyncIterator[Message]:
        """Yield the messages of an answer as they come: its start, and the pieces of its body.

        Closing the iterator tells the application that its client has gone.
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
        gone, told = asyncio.Event(), asyncio.Queue[Message | None]()

        async def receive() -> Message:
            if request:
                return request.pop()
            await gone.wait()
            return {"type": "http.disconnect"}

        task = asyncio.create_task(_awaited(self.app(scope, receive, told.put)))
        task.add_done_callback(lambda _: told.put_nowait(None))
        try:
            while (message := await told.get()) is not None:
                yield message
            await task  # raises what the application raised
        finally:
            gone.set()
            task.cancel()

    async def __aenter__(self) -> InProcess:
        self._task = asyncio.create_task(self._live())
        await self._phase("startup")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._phase("shutdown")
        assert self._task is not None
        await self._task

    async def _live(self) -> None:
        scope = {"type": "lifespan", "asgi": {"version": "3.0"}, "state": self._state}
        await self.app(scope, self._events.get, self._told.put)

    async def _phase(self, name: str) -> None:
        """Send the application a lifespan event and wait until it is complete."""
        assert self._task is not None
        await self._events.put({"type": f"lifespan.{name}"})
        answer = asyncio.create_task(self._told.get())
        await asyncio.wait({answer, self._task}, return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():  # an application that knows no lifespan, or fails
            answer.cancel()
            if error := self._task.exception():
                raise error
        elif answer.result()["type"].endswith(".failed"):
            raise RuntimeError(answer.result().get("message") or f"{name} failed")


async def _awaited(work: Awaitable[None]) -> None:
    await work


def _encoded(body: Mapping[str, Any]) -> bytes:
    return json.dumps(body).encode()


def _decoded(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return body.decode("utf-8", "replace")
