"""Answers as server-sent events, and answers to clients that may leave before they are ready."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable
from typing import Any, TypeVar

from fastapi import Request
from fastapi.responses import StreamingResponse

from .answers import event
from .errors import ApiError, to_api_error
from .service import Streams

T = TypeVar("T")
_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
_GONE = 499  # nobody sees it but the log


def streamed(streams: Streams, events: AsyncIterator[str]) -> StreamingResponse:
    """Send events as they come; a client that leaves frees everything."""

    async def body() -> AsyncIterator[str]:
        with streams:
            try:
                async for text in events:
                    yield text
            except Exception as error:
                # The status is long sent; what is wrong comes as the last event.
                yield event(to_api_error(error).body)

    return StreamingResponse(body(), media_type="text/event-stream", headers=_HEADERS)


async def unless_gone(request: Request, streams: Streams, answer: Awaitable[T]) -> T:
    """Wait for an answer as long as its client does.

    Raises:
        ApiError: the client has gone; everything is freed.
    """
    work: asyncio.Future[Any] = asyncio.ensure_future(answer)
    left = asyncio.ensure_future(_left(request))
    try:
        await asyncio.wait({work, left}, return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            return work.result()
        raise ApiError("the client has gone", _GONE, code="cancelled")
    finally:
        streams.cancel()
        for task in (work, left):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await task


async def _left(request: Request) -> None:
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            return
