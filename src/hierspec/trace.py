"""Traces: what every level asked and what came of it, one JSON object a line.

An event is a flat dictionary. Interpreters fill in ``kind`` (``"draft"``, ``"check"``, ``"row"``),
``sequence``, ``level`` (the node's name), ``base_length`` (tokens of context before the request)
and what belongs to the kind: ``tokens`` of a draft; ``draft``, ``num_accepted`` and ``emitted`` of
a check. The tracer adds ``time``, in seconds since it was made.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Generator
from typing import Any, Protocol, TextIO

from .hierarchy import Coroutine
from .types import Check, Propose, Request, Row


class Tracer(Protocol):
    """Where events go."""

    def record(self, event: dict[str, Any]) -> None: ...


class ListTracer:
    """Keeps events in memory: for tests and notebooks."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.events: list[dict[str, Any]] = []
        self._clock, self._start = clock, clock()

    def record(self, event: dict[str, Any]) -> None:
        self.events.append({"time": self._clock() - self._start, **event})


class JsonLinesTracer:
    """Writes events to a text stream as they come, so that an interrupted run keeps its own."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.perf_counter) -> None:
        self._stream = stream
        self._clock, self._start = clock, clock()

    def record(self, event: dict[str, Any]) -> None:
        line = {"time": round(self._clock() - self._start, 6), **event}
        self._stream.write(json.dumps(line) + "\n")
        self._stream.flush()


def event_of(
    request: Request, answer: Any, sequence: int = 0, committed: int = 0
) -> dict[str, Any] | None:
    """The event of an answered request; ``None`` for a draw, whose token the next one shows.

    Args:
        committed: tokens of the sequence before the round; ``pending`` ones are added.
    """
    if not isinstance(request, Propose | Check | Row):
        return None
    event: dict[str, Any] = {
        "sequence": sequence,
        "level": request.node.name,
        "base_length": committed + len(request.pending),
    }
    if isinstance(request, Propose):
        proposal, _ = answer
        return {"kind": "draft", **event, "tokens": list(proposal.tokens)}
    if isinstance(request, Check):
        return {
            "kind": "check",
            **event,
            "draft": list(request.draft.tokens),
            "num_accepted": answer.num_accepted,
            "emitted": list(answer.emitted.tokens),
        }
    return {"kind": "row", **event}


def traced(
    coroutine: Coroutine, tracer: Tracer, sequence: int = 0, committed: int = 0
) -> Generator[Request, Any, Any]:
    """The same coroutine, for any interpreter; every request it makes is recorded once answered.

    Requests of its children are recorded if the interpreter wraps theirs too.
    """
    answer: Any = None
    while True:
        try:
            request = coroutine.send(answer)
        except StopIteration as stop:
            return stop.value
        answer = yield request
        event = event_of(request, answer, sequence, committed)
        if event is not None:
            tracer.record(event)
