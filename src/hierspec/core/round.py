"""The recursive round: each level drafts for the one above and verifies the one below.

A level is a *node*, and a node is a small coroutine that reads like the papers' pseudocode
[P1 Algorithm 1]. It yields requests (:mod:`hierspec.core.requests`) and an interpreter answers
them: the runtime with real models and many sequences at once, the exact interpreter by
enumeration, the simulator with coin flips. Nothing here knows which.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from .nodes import Concatenate, Node, Verify, walk_levels
from .proposals import Proposal, States, Verdict
from .requests import Check, NodeRequest, Propose

Coroutine = Generator[NodeRequest, Any, Any]
_EMPTY = Proposal()


def propose(node: Node, pending: tuple[int, ...], limit: int, states: States) -> Coroutine:
    """Gather what ``node`` hands up after ``pending`` → ``(Proposal, states)``.

    A :class:`Draft` is a leaf that the interpreter runs itself. ``limit`` is a count, so cutting
    by it is lossless; whatever a level holds beyond its budget (overshoot) goes up as well.
    """
    out = _EMPTY
    if isinstance(node, Concatenate):
        for part in node.parts * node.repeat:
            if len(out) < limit:
                draft, states = yield Propose(part, pending + out.tokens, limit - len(out), states)
                out += draft
        return out, states
    assert isinstance(node, Verify)
    while len(out) < min(node.budget, limit):
        verdict, states = yield from verified(node, pending + out.tokens, limit - len(out), states)
        out += verdict.emitted
        if node.window.stops(verdict.emitted.signals, states[node.index]):
            break
    return (out.truncated(min(node.budget, limit)) if node.exact_length else out), states


def verified(node: Verify, pending: tuple[int, ...], limit: int, states: States) -> Coroutine:
    """Run one round at ``node``, one draft and its verification → ``(Verdict, states)``."""
    draft = _EMPTY
    if node.below is not None:
        # The verification adds a token of its own, so it can use one fewer from below.
        draft, states = yield Propose(node.below, pending, limit - 1, states)
    verdict: Verdict = yield Check(node, pending, draft)
    verdict = yield from node.rule.complete(node, pending, draft, verdict)
    return verdict, observe(node.below, draft, verdict, states)


def observe(below: Node | None, draft: Proposal, verdict: Verdict, states: States) -> States:
    """Tell the window of the node that owned the first rejected token what became of its draft."""
    if below is None or not draft.tokens:
        return states
    index = draft.owners[min(verdict.num_accepted, len(draft) - 1)]
    if not states[index]:  # its window remembers nothing
        return states
    owner = next(node for node in walk_levels(below) if node.index == index)
    state = owner.window.observe(states[index], draft.signals, verdict.num_accepted)
    return (*states[:index], state, *states[index + 1 :])
