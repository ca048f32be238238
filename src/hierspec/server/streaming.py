"""Answers as server-sent events, and answers that are abandoned when their client leaves."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable
from typing import Any, TypeVar

from fastapi import Request
from fastapi.responses import StreamingResponse

from .answer_parts import format_event
from .errors import ApiError, to_api_error
from .service import Streams

T = TypeVar("T")
_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
_CLIENT_LEFT = 499  # appears only in the log


def stream_events(streams: Streams, events: AsyncIterator[str]) -> StreamingResponse:
    """Send events as they come; if the client leaves, the sequences are cancelled."""

    async def body() -> AsyncIterator[str]:
        with streams:
            try:
                async for text in events:
                    yield text
            except Exception as error:
                # The status has been sent already, so the error is the last event.
                yield format_event(to_api_error(error).body)

    return StreamingResponse(body(), media_type="text/event-stream", headers=_HEADERS)


async def wait_for_answer(request: Request, streams: Streams, answer: Awaitable[T]) -> T:
    """Wait for an answer as long as its client does.

    Raises:
        ApiError: the client has left; its sequences are cancelled.
    """
    work: asyncio.Future[Any] = asyncio.ensure_future(answer)
    disconnection = asyncio.ensure_future(_wait_for_disconnection(request))
    try:
        await asyncio.wait({work, disconnection}, return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            return work.result()
        raise ApiError("the client has left", _CLIENT_LEFT, code="cancelled")
    finally:
        streams.cancel()
        for task in (work, disconnection):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await task


async def _wait_for_disconnection(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
