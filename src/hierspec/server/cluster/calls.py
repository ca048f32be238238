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

from starlette.datastructures import Headers
from starlette.responses import Response, StreamingResponse
from starlette.types import Message, Scope

from hierspec.server.errors import ApiError

_MAX_TRIES = 5
_PAUSE = 0.2  # seconds for the router to notice a lost replica; doubled for every further try
_REPLACED_HEADERS = (b"content-length", b"x-request-id")  # Ray's proxy adds its own


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """An HTTP request as one value.

    Attributes:
        scope: of the ASGI connection.
        prompt: text that Ray's prefix-aware router compares with the prompts of each replica; the
            router looks for an attribute of this name. Never empty.
    """

    scope: Scope
    body: bytes
    prompt: str


Send = Callable[[HttpRequest], AsyncGenerator[Message, None]]
Errors = tuple[type[BaseException], ...]


async def forward(
    request: HttpRequest,
    send: Send,
    lost: Errors,
    full: Errors,
    pause: float = _PAUSE,
) -> Response:
    """Forward a request to a replica, and to another if it dies before the client got anything.

    An answer that is no stream is passed on once it is complete, so that its loss can be retried
    too. A stream whose replica dies ends with an error event.

    Args:
        lost: the exceptions raised when a replica is lost; ``full``: when all are full.
    """
    for attempt in range(_MAX_TRIES):
        messages = send(request)
        try:
            start = await anext(messages)
            if is_stream(start):
                first = await anext(messages, {})
                reply: Response = StreamingResponse(_stream(first, messages, lost))
            else:
                reply = Response(b"".join([part.get("body", b"") async for part in messages]))
            headers = [h for h in start["headers"] if h[0].lower() not in _REPLACED_HEADERS]
            reply.status_code, reply.raw_headers = start["status"], headers
            return reply
        except full:
            return _unavailable("all replicas are full: try again later", 1)
        except lost:
            await asyncio.sleep(pause * 2**attempt)
    return _unavailable("no replica could answer: they were lost one after the other", 5)


def _unavailable(message: str, retry_after: int) -> Response:
    return ApiError(message, 503, headers={"Retry-After": str(retry_after)}).response()


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


async def _stream(
    first: Message, messages: AsyncGenerator[Message, None], lost: Errors
) -> AsyncIterator[bytes]:
    try:
        yield first.get("body", b"")
        async for message in messages:
            yield message.get("body", b"")
    except lost:
        yield error_event("the replica that wrote this answer was lost: ask again")
    finally:
        await messages.aclose()


def content_type(start: Message) -> str:
    """Return the content type of the answer that a message starts."""
    return Headers(raw=[*start.get("headers", ())]).get("content-type", "")


def is_stream(start: Message) -> bool:
    """Return whether a message starts a stream of events."""
    return content_type(start).startswith("text/event-stream")


def error_event(message: str) -> bytes:
    """Return the last event of a stream that fails."""
    return b"data: " + json.dumps(ApiError(message, 503).body).encode() + b"\n\n"
