"""The recursive round: each level drafts for the one above and verifies the one below.

A level is a *node*, and a node is a small coroutine that reads like the papers' pseudocode
[P1 Algorithm 1]. It yields requests (:mod:`hierspec.types`) and an interpreter answers them: the
runtime with real models and many sequences at once, the exact interpreter by enumeration, the
simulator with coin flips. Nothing here knows which.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from typing import Any

from .types import Check, Proposal, Propose, Request, States, Verdict, replaced
from .verifiers.base import Verifier
from .windows import FixedWindow, Window

Coroutine = Generator[Request, Any, Any]


@dataclass(frozen=True, slots=True, eq=False)
class Draft:
    """A leaf: a model that drafts token by token until its window or budget says enough.

    Attributes:
        model: key of the model in the interpreter.
        budget: how many tokens it must hold before it hands them up (``num_speculative_tokens``).
        temperature: of its law; ``None`` for the request's.
        num_drafts: how many drafts of the same place it makes.
        distinct: their first tokens are drawn without replacement.
    """

    index: int
    name: str
    model: Any
    budget: int
    window: Window = field(default_factory=FixedWindow)
    temperature: float | None = None
    num_drafts: int = 1
    distinct: bool = False

    def under(self, rule: Verifier) -> Draft:
        """This leaf as ``rule`` wants its several drafts drawn."""
        return dataclasses.replace(self, distinct=rule.distinct and self.num_drafts > 1)


@dataclass(frozen=True, slots=True, eq=False)
class Verify:
    """A level that repeats: get a draft from ``below``, verify it, append; until it holds enough.

    Attributes:
        rule: how it verifies ``below``.
        below: the node that drafts for it; ``None`` for plain decoding.
        bonus: whether a fully kept draft earns one more token from this level's model.
        exact_length: cut what is handed up to ``budget`` (a rule above that needs it says so).
    """

    index: int
    name: str
    model: Any
    budget: int
    rule: Verifier
    below: Node | None
    window: Window = field(default_factory=FixedWindow)
    temperature: float | None = None
    bonus: bool = True
    exact_length: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Concatenate:
    """A run of one node, then a run of another, ``repeat`` times; each sees what came before.

    P2's interleaved order is [small × n, mid × 1] repeated m times, its horizontal order is
    [mid × m, small × n], CS-Drafting's tail is [level, smallest × h].
    """

    index: int
    name: str
    parts: tuple[Node, ...]
    repeat: int = 1


Node = Draft | Verify | Concatenate


def propose(node: Node, pending: tuple[int, ...], limit: int, states: States) -> Coroutine:
    """What ``node`` hands up after ``pending`` → ``(Proposal, states)``.

    A :class:`Draft` is a leaf that the interpreter runs itself. ``limit`` counts, so cutting by
    it is lossless; whatever a level holds beyond its budget (overshoot) goes up as well.
    """
    out = Proposal()
    if isinstance(node, Concatenate):
        for part in node.parts * node.repeat:
            if len(out) < limit:
                more, states = yield Propose(part, pending + out.tokens, limit - len(out), states)
                out += more
        return out, states
    assert isinstance(node, Verify)
    while len(out) < min(node.budget, limit):
        verdict, states = yield from verified(node, pending + out.tokens, limit - len(out), states)
        out += verdict.emitted
        if node.window.stops(verdict.emitted.signals, states[node.index]):
            break
    return (out.truncated(min(node.budget, limit)) if node.exact_length else out), states


def verified(node: Verify, pending: tuple[int, ...], limit: int, states: States) -> Coroutine:
    """One draft and one verification at ``node`` → ``(Verdict, states)``: a round."""
    draft = Proposal()
    if node.below is not None:
        # The verification adds a token of its own, so one fewer is of use from below.
        draft, states = yield Propose(node.below, pending, limit - 1, states)
    verdict: Verdict = yield Check(node, pending, draft)
    verdict = yield from node.rule.complete(node, pending, draft, verdict)
    return verdict, observed(node.below, draft, verdict, states)


def observed(below: Node | None, draft: Proposal, verdict: Verdict, states: States) -> States:
    """Tell the window of the node that owned the first rejected token what became of its draft."""
    if below is None or not draft.tokens:
        return states
    index = draft.owners[min(verdict.num_accepted, len(draft) - 1)]
    if not states[index]:  # its window remembers nothing
        return states
    owner = next(node for node in walk(below) if node.index == index)
    assert not isinstance(owner, Concatenate)
    state = owner.window.observe(states[index], draft.signals, verdict.num_accepted)
    return replaced(states, index, state)


def walk(node: Node | None) -> Iterator[Node]:
    """Every node at and below ``node``, lowest first."""
    if node is None:
        return
    if isinstance(node, Concatenate):
        for part in node.parts:
            yield from walk(part)
    elif isinstance(node, Verify):
        yield from walk(node.below)
    yield node


def initial_states(root: Node) -> States:
    """Window states of a new sequence, by node index."""
    nodes = sorted(walk(root), key=lambda node: node.index)
    return tuple(() if isinstance(n, Concatenate) else n.window.init() for n in nodes)
