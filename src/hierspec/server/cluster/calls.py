"""Requests forwarded to a replica, and retried when the replica dies.

This file does not import Ray: callers pass a function that sends, and the exceptions of a lost
replica.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hierspec.server.batch.inprocess import Headers

_MAX_TRIES = 5
_PAUSE = 0.2  # seconds for the router to notice a lost replica; doubled for every further try
_CONNECTION_HEADERS = (b"content-length", b"transfer-encoding", b"connection", b"server", b"date")
_REPLACED_HEADERS = (*_CONNECTION_HEADERS, b"x-request-id")  # Ray's proxy adds its own


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """An HTTP request as one value.

    Attributes:
        prompt: text that Ray's prefix-aware router compares with the prompts of each replica; the
            router looks for an attribute of this name. Never empty.
    """

    method: str
    path: str
    query: bytes
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes
    prompt: str


@dataclass(frozen=True, slots=True)
class HttpStart:
    """The status and headers of an answer, which come before the parts of its body."""

    status: int
    headers: tuple[tuple[bytes, bytes], ...]

    @property
    def is_stream(self) -> bool:
        return self.has_content_type(b"text/event-stream")

    def has_content_type(self, content_type: bytes) -> bool:
        """Return whether this is the content type, parameters aside."""
        return any(
            name.lower() == b"content-type" and value.startswith(content_type)
            for name, value in self.headers
        )


Part = HttpStart | bytes
Send = Callable[[HttpRequest], AsyncGenerator[Part, None]]


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to a client, with a body in one or several parts."""

    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    body: AsyncIterator[bytes]


@dataclass(frozen=True, slots=True)
class ReplicaErrors:
    """The exceptions raised when a replica is lost, and when all replicas are full."""

    lost: tuple[type[BaseException], ...]
    full: tuple[type[BaseException], ...]


async def forward(
    request: HttpRequest, send: Send, errors: ReplicaErrors, pause: float = _PAUSE
) -> Reply:
    """Forward a request to a replica, and to another if it dies before the client got anything.

    An answer that is no stream is passed on once it is complete, so that its loss can be retried
    too. A stream whose replica dies ends with an error event.
    """
    for attempt in range(_MAX_TRIES):
        parts = send(request)
        try:
            start = await anext(parts)
            assert isinstance(start, HttpStart)
            headers = tuple(h for h in start.headers if h[0].lower() not in _REPLACED_HEADERS)
            if start.is_stream:
                first = await anext(parts, b"")
                return Reply(start.status, headers, _stream(first, parts, errors))
            body = b"".join([part async for part in parts if isinstance(part, bytes)])
            return Reply(start.status, headers, _in_one_part(body))
        except errors.full:
            return error_reply(503, "all replicas are full: try again later", retry_after=1)
        except errors.lost:
            await asyncio.sleep(pause * 2**attempt)
    return error_reply(503, "no replica could answer: they were lost one after the other", 5)


def error_reply(
    status: int, message: str, retry_after: int | None = None, code: str | None = None
) -> Reply:
    """Return a reply with an error in OpenAI's format."""
    headers = [(b"content-type", b"application/json")]
    if retry_after is not None:
        headers.append((b"retry-after", str(retry_after).encode()))
    body = json.dumps(error_body(status, message, code)).encode()
    return Reply(status, tuple(headers), _in_one_part(body))


def routing_prompt(path: str, body: bytes) -> str:
    """Return the prompt, whose beginning a replica may have cached; without one, the path."""
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError):
        return path
    if not isinstance(fields, Mapping):
        return path
    prompt = next((fields[key] for key in ("messages", "prompt", "input") if fields.get(key)), None)
    return _text(prompt) or path


def _text(value: Any) -> str:
    if isinstance(value, list):
        return "\n".join(_text(item) for item in value)
    if isinstance(value, Mapping):
        return f"{value.get('role', '')}: {_text(value.get('content') or value.get('text') or '')}"
    return str(value or "")


async def _in_one_part(body: bytes) -> AsyncIterator[bytes]:
    yield body


async def _stream(
    first: Part, parts: AsyncGenerator[Part, None], errors: ReplicaErrors
) -> AsyncIterator[bytes]:
    try:
        if isinstance(first, bytes) and first:
            yield first
        async for part in parts:
            if isinstance(part, bytes):
                yield part
    except errors.lost:
        yield error_event("the replica that wrote this answer was lost: ask again")
    finally:
        await parts.aclose()


def error_body(status: int, message: str, code: str | None = None) -> dict[str, Any]:
    """Return OpenAI's error object; :mod:`hierspec.server.errors` has it too, but loads torch."""
    kind = "service_unavailable_error" if status == 503 else "invalid_request_error"
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def error_event(message: str) -> bytes:
    """Return the last event of a stream that fails."""
    return b"data: " + json.dumps(error_body(503, message)).encode() + b"\n\n"


def forwarded_headers(headers: Headers) -> tuple[tuple[bytes, bytes], ...]:
    """Return a request's headers without those that belong to its connection."""
    return tuple((k, v) for k, v in headers if k.lower() not in _CONNECTION_HEADERS)
