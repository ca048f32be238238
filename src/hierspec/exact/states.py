"""Suspended coroutines as values: bring one to where answers lead, and tell equal ones.

A coroutine of :mod:`hierspec.core.round` depends on nothing but its arguments and the answers it is
given. So one can stand in for another that waits at the same line with equal local variables.

Numbers that bound what a tree of nodes does: tokens it looks back at, hands up, and asks for.

By them the exact interpreter tells that two contexts, or two limits, have the same future.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hierspec.core.nodes import Concatenate, Draft, Node, walk
from hierspec.core.proposals import Proposal, Verdict
from hierspec.core.round import Coroutine

from .tables import TableDistributions


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
        more = tuple(fingerprint(draft) for draft in value.alternatives)
        return (value.tokens, fingerprint(value.distributions), value.owners, value.signals, more)
    if isinstance(value, Verdict):
        return (value.num_accepted, *fingerprint(value.emitted))
    if isinstance(value, TableDistributions):
        return value.ids
    if isinstance(value, list):  # a plug-in's local variable: what it holds now
        return tuple(fingerprint(item) for item in value)
    return value  # tuples of numbers by value; nodes, rules and the like by identity


UNLIMITED = 1 << 30  # a limit that no proposal reaches


def reach(node: Node) -> int:
    """How many of the last tokens can matter to ``node`` and all below it."""
    return max(n.model.order for n in walk(node) if not isinstance(n, Concatenate))


def longest(node: Node | None) -> int:
    """The most tokens ``node`` can hand up in one proposal."""
    if node is None:
        return 0
    if isinstance(node, Draft):
        return node.budget
    if isinstance(node, Concatenate):
        return node.repeat * sum(longest(part) for part in node.parts)
    if node.exact_length:
        return node.budget
    below = longest(node.below)
    return node.budget - 1 + (below + 1 if node.bonus else max(below, 1))


def ample(node: Node | None) -> int:
    """A limit from which on ``node`` and all below it act as if there were none."""
    if node is None:
        return 0
    if isinstance(node, Draft):
        return node.budget
    if isinstance(node, Concatenate):
        return node.repeat * sum(ample(part) for part in node.parts)
    return node.budget + ample(node.below)  # its last round starts from budget − 1 tokens
