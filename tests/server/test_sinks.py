"""What the engine hands to a client's queue."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from hierspec.server import service


def test_an_end_is_taken_once_though_what_follows_it_fails(monkeypatch):
    """The engine reports an end again where its report raised."""

    def fail(*_: object) -> None:
        raise MemoryError

    async def main() -> int:
        request: Any = SimpleNamespace()
        streams = service.Streams([request], lambda requests: None, lambda ended: None)
        progress = SimpleNamespace(ended=request, events=[])
        monkeypatch.setattr(service, "best_effort", fail)
        end: Any = progress
        with pytest.raises(MemoryError):
            request.sink(end)
        request.sink(end)
        await asyncio.sleep(0.01)
        return streams._queue.qsize()

    assert asyncio.run(main()) == 1
