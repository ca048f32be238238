"""Suspended coroutines as values: bring one to where answers lead, and tell equal ones.

A coroutine of :mod:`hierspec.hierarchy` depends on nothing but its arguments and the answers it is
given. So one can stand in for another that waits at the same line with equal local variables.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..hierarchy import Coroutine
from ..types import Proposal, Verdict
from .rows import TableLaws


def replay(start: Callable[[], Coroutine], answers: tuple[Any, ...]) -> Coroutine:
    """A fresh coroutine, brought to where these answers lead."""
    coroutine = start()
    next(coroutine)
    for answer in answers:
        coroutine.send(answer)
    return coroutine


def state_of(coroutine: Any) -> tuple[Any, ...]:
    """Where a suspended coroutine stands and all that it remembers, down to the innermost.

    Only compared between coroutines that were given equally many answers: what a ``for`` loop
    has left is not among the local variables, but follows from that number.
    """
    out: list[Any] = []
    while coroutine is not None:
        frame = coroutine.gi_frame
        out.append(frame.f_code)
        out.append(frame.f_lasti)
        out += [fingerprint(value) for value in frame.f_locals.values()]
        coroutine = coroutine.gi_yieldfrom
    return tuple(out)


def fingerprint(value: Any) -> Any:
    """A hashable stand-in: equal for values that no coroutine can tell apart."""
    if isinstance(value, Proposal):
        others = tuple(fingerprint(other) for other in value.others)
        return (value.tokens, fingerprint(value.laws), value.owners, value.signals, others)
    if isinstance(value, Verdict):
        return (value.num_accepted, *fingerprint(value.emitted))
    if isinstance(value, TableLaws):
        return value.ids
    if isinstance(value, list):  # a plug-in's local variable: what it holds now
        return tuple(fingerprint(item) for item in value)
    return value  # tuples of numbers by value; nodes, rules and the like by identity
