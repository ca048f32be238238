"""Traces: every level's requests and their answers, one JSON object a line.

An event is a flat dictionary. Interpreters fill in ``kind`` (``"draft"``, ``"check"``, ``"row"``),
``sequence``, ``level`` (the node's name), ``index`` (the node's), ``base_length`` (tokens of
context before the request) and the keys of the kind: ``tokens`` of a draft; ``draft``,
``num_accepted`` and ``emitted`` of a check, with ``owners``, for each token of the draft the index
of the node that drafted it. The tracer adds ``time``, in seconds since it was created.

Interpreters with a clock add ``began``, in seconds since the first request of the generation, and
``seconds``; sequences that share a call share both. A ``draft`` that is not a ``leaf`` is the
proposal of a whole level, whose calls have events of their own. If a level makes several drafts
from one position, ``others`` are the further drafts, and the accepted tokens are a prefix of any.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TextIO

from hierspec.core.nodes import Draft
from hierspec.core.proposals import Proposal
from hierspec.core.requests import Check, NodeRequest, Propose, Row
from hierspec.utils.json_lines import read_line
from hierspec.utils.records import Record

from .observers import Observer
from .sequences import Task


class Tracer(Protocol):
    """Where events go."""

    def record(self, event: dict[str, Any]) -> None: ...


class Tracing(Observer):
    """Records an event for every request of a runtime but draws."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._first_began: float | None = None

    def on_answer(
        self, tasks: Sequence[Task], answers: Sequence[Any], began: float, seconds: float
    ) -> None:
        if self._first_began is None:
            self._first_began = began
        times = (began - self._first_began, seconds)
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
    """Writes each event to a text stream at once, so that an interrupted run keeps its events."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.perf_counter) -> None:
        self._stream = stream
        self._clock, self._start = clock, clock()

    def record(self, event: dict[str, Any]) -> None:
        line = {"time": round(self._clock() - self._start, 6), **event}
        self._stream.write(json.dumps(line) + "\n")
        self._stream.flush()


def event_of(
    request: NodeRequest,
    answer: Any,
    sequence: int = 0,
    committed: int = 0,
    times: tuple[float, float] | None = None,
) -> dict[str, Any] | None:
    """Return an answered request's event; ``None`` for a draw, whose token the next event shows.

    Args:
        committed: number of tokens of the sequence before the round.
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


class _AnyEvent(Record):
    kind: str
    sequence: int


def is_event(line: str) -> bool:
    """Return whether a line is an event of a trace, of whatever version."""
    return read_line(_AnyEvent, line) is not None
