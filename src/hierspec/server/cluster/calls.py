"""Requests forwarded to a replica, and retried when the replica dies.

Nothing here knows Ray: callers pass in how to send, and which exceptions mean a lost replica.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hierspec.server.batch.inprocess import Headers

_TRIES = 5
_PAUSE = 0.2  # seconds until the router has noticed a death; doubled for every further try
_LEFT_OUT = (b"content-length", b"transfer-encoding", b"connection", b"server", b"date")
_ADDED = (*_LEFT_OUT, b"x-request-id")  # by Ray's proxy, to every answer


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """An HTTP request as one value.

    Attributes:
        prompt: what the router compares with what replicas have read: Ray's prefix-aware router
            takes an argument's attribute of this name. Never empty.
    """

    method: str
    path: str
    query: bytes
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes
    prompt: str


@dataclass(frozen=True, slots=True)
class HttpStart:
    """The status and headers of an answer, which come before the pieces of its body."""

    status: int
    headers: tuple[tuple[bytes, bytes], ...]

    @property
    def streams(self) -> bool:
        return self.of_type(b"text/event-stream")

    def of_type(self, kind: bytes) -> bool:
        """Say whether that is the content type, whatever its parameters."""
        return any(
            name.lower() == b"content-type" and value.startswith(kind)
            for name, value in self.headers
        )


Part = HttpStart | bytes
Ask = Callable[[HttpRequest], AsyncGenerator[Part, None]]


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to a client, whole or piece by piece."""

    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    body: AsyncIterator[bytes]


@dataclass(frozen=True, slots=True)
class Losses:
    """The exceptions raised when a replica is lost, and when all replicas are full."""

    lost: tuple[type[BaseException], ...]
    full: tuple[type[BaseException], ...]


async def forward(call: HttpRequest, ask: Ask, losses: Losses, pause: float = _PAUSE) -> Reply:
    """Forward a request to a replica, and to another if it dies before anything was sent.

    An answer that does not stream is sent once it is complete, so its loss is retried as well.
    A stream that is lost on its way ends with an error event.
    """
    for attempt in range(_TRIES):
        parts = ask(call)
        try:
            start = await anext(parts)
            assert isinstance(start, HttpStart)
            headers = tuple(h for h in start.headers if h[0].lower() not in _ADDED)
            if start.streams:
                first = await anext(parts, b"")
                return Reply(start.status, headers, _rest(first, parts, losses))
            whole = b"".join([part async for part in parts if isinstance(part, bytes)])
            return Reply(start.status, headers, _once(whole))
        except losses.full:
            return refusal(503, "all replicas are full: try again later", retry_after=1)
        except losses.lost:
            await asyncio.sleep(pause * 2**attempt)
    return refusal(503, "no replica could answer: they were lost one after the other", 5)


def refusal(
    status: int, message: str, retry_after: int | None = None, code: str | None = None
) -> Reply:
    """Return a reply with an error in OpenAI's format."""
    headers = [(b"content-type", b"application/json")]
    if retry_after is not None:
        headers.append((b"retry-after", str(retry_after).encode()))
    return Reply(
        status, tuple(headers), _once(json.dumps(error_body(status, message, code)).encode())
    )


def prefix_of(path: str, body: bytes) -> str:
    """Return the text that a replica may have cached, for routing; else the request's path."""
    try:
        asked = json.loads(body)
    except ValueError:
        return path
    if not isinstance(asked, Mapping):
        return path
    prompt = next((asked[key] for key in ("messages", "prompt", "input") if asked.get(key)), None)
    return _text(prompt) or path


def _text(value: Any) -> str:
    """Return a text, a conversation or token ids as one string."""
    if isinstance(value, list):
        return "\n".join(_text(item) for item in value)
    if isinstance(value, Mapping):
        return f"{value.get('role', '')}: {_text(value.get('content') or value.get('text') or '')}"
    return str(value or "")


async def _once(body: bytes) -> AsyncIterator[bytes]:
    yield body


async def _rest(
    first: Part, parts: AsyncGenerator[Part, None], losses: Losses
) -> AsyncIterator[bytes]:
    try:
        if isinstance(first, bytes) and first:
            yield first
        async for part in parts:
            if isinstance(part, bytes):
                yield part
    except losses.lost:
        yield error_event("the replica that wrote this answer was lost: ask again")
    finally:
        await parts.aclose()


def error_body(status: int, message: str, code: str | None = None) -> dict[str, Any]:
    """Return OpenAI's error object, as :mod:`hierspec.server.errors`, which loads the engine."""
    kind = "service_unavailable_error" if status == 503 else "invalid_request_error"
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def error_event(message: str) -> bytes:
    """Return the last event of a stream that fails."""
    return b"data: " + json.dumps(error_body(503, message)).encode() + b"\n\n"


def headers_of(headers: Headers) -> tuple[tuple[bytes, bytes], ...]:
    """Return a request's headers without those that belong to a single connection."""
    return tuple((k, v) for k, v in headers if k.lower() not in _LEFT_OUT)
