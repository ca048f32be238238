"""Traces: what every level asked and what came of it, one JSON object a line.

An event is a flat dictionary. Interpreters fill in ``kind`` (``"draft"``, ``"check"``, ``"row"``),
``sequence``, ``level`` (the node's name), ``base_length`` (tokens of context before the request)
and what belongs to the kind: ``tokens`` of a draft; ``draft``, ``num_accepted`` and ``emitted`` of
a check. The tracer adds ``time``, in seconds since it was made.

Interpreters with a clock also say when: ``began``, in seconds since the first request of the
generation, and ``seconds``; sequences that share a call share both. ``index`` is the node's, and
``owners`` are the indices of the nodes whose draft a check was given, a token each. A ``draft``
that is not a ``leaf`` is what a whole level handed up: its calls have events of their own. Where a
level drafts several times from one place, ``others`` are the further drafts; what was accepted is
then a beginning of any of them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Generator, Sequence
from typing import Any, Protocol, TextIO

from hierspec.core.nodes import Draft
from hierspec.core.proposals import Proposal
from hierspec.core.requests import Check, Propose, Request, Row
from hierspec.core.round import Coroutine

from .observers import Observer
from .sequences import Task


class Tracer(Protocol):
    """Where events go."""

    def record(self, event: dict[str, Any]) -> None: ...


class Tracing(Observer):
    """Gives a tracer an event for every request of a runtime but draws."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._first: float | None = None  # when the first request began: times count from there

    def answered(
        self, tasks: Sequence[Task], answers: Sequence[Any], began: float, seconds: float
    ) -> None:
        if self._first is None:
            self._first = began
        times = (began - self._first, seconds)
        for task, answer in zip(tasks, answers, strict=True):
            sequence = task.sequence
            event = event_of(task.request, answer, sequence.id, len(sequence.tokens), times)
            if event is not None:
                self._tracer.record(event)


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
    request: Request,
    answer: Any,
    sequence: int = 0,
    committed: int = 0,
    times: tuple[float, float] | None = None,
) -> dict[str, Any] | None:
    """Return an answered request's event; ``None`` for a draw: the next event shows its token.

    Args:
        committed: tokens of the sequence before the round; ``pending`` ones are added.
        times: when the request began and how long it took, seconds; ``None``: there is no clock.
    """
    if not isinstance(request, Propose | Check | Row):
        return None
    event: dict[str, Any] = {
        "sequence": sequence,
        "level": request.node.name,
        "index": request.node.index,
        "base_length": committed + len(request.pending),
    }
    if times is not None:
        event["began"], event["seconds"] = (round(value, 9) for value in times)
    if isinstance(request, Propose):
        proposal, _ = answer
        leaf = isinstance(request.node, Draft)
        event = {"kind": "draft", **event, "leaf": leaf, "tokens": list(proposal.tokens)}
        return {**event, **_alternatives(proposal)}
    if isinstance(request, Check):
        return {
            "kind": "check",
            **event,
            "draft": list(request.draft.tokens),
            "owners": list(request.draft.owners),
            "num_accepted": answer.num_accepted,
            "emitted": list(answer.emitted.tokens),
            **_alternatives(request.draft),
        }
    return {"kind": "row", **event}


def _alternatives(proposal: Proposal) -> dict[str, Any]:
    if not proposal.alternatives:
        return {}
    return {"others": [list(draft.tokens) for draft in proposal.alternatives]}


def traced(
    coroutine: Coroutine, tracer: Tracer, sequence: int = 0, committed: int = 0
) -> Generator[Request, Any, Any]:
    """Wrap a coroutine, for any interpreter: every request is recorded once answered.

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
