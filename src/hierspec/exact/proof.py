"""Losslessness, proved: one round from every state that a generation can be in.

A state is what a round depends on: the last tokens that the models look at, the window states, the
plan that a controller chose, and how many tokens are still wanted. Texts end in all the ways the
target can write, plans and limits are few, and of running means there are finitely many kinds
(:mod:`exact.running_means`). Where a round is the target's own from all of these, so is the text
(:mod:`exact.round_law`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from hierspec.core.nodes import Verify
from hierspec.core.proposals import States
from hierspec.core.windows import ConfidenceWindow, Counting, EntropyWindow, FixedWindow

from .output import Rounds
from .round_law import Continuation, by_length, lengths
from .running_means import RecordingInterpreter, is_running, regions, windows
from .states import UNLIMITED


@dataclass(frozen=True, slots=True)
class Proof:
    """What looking at every state found.

    Attributes:
        states: looked at, until a round was lossy.
        complete: there are no others.
        worst_tv: of all their rounds.
    """

    states: int
    complete: bool
    worst_tv: float


def prove(
    rounds: Rounds, states: States, target: Continuation, tolerance: float, most: int
) -> Proof:
    """Compare one round from every state with the target, until one is lossy.

    Args:
        rounds: of the hierarchy; ``states`` are those of its windows at the start.
        tolerance: a total variation above it makes a round lossy.
        most: states to look at.
    """
    if not all(map(_is_known, windows(rounds.root).values())):
        return Proof(0, False, 0.0)
    count, worst = 0, 0.0
    for context, limit, distributions in _every(rounds, states, target):
        if count == most:
            return Proof(count, False, worst)
        count += 1
        worst = max(worst, target.distance(distributions, context, limit))
        if worst > tolerance:
            return Proof(count, False, worst)
    return Proof(count, True, worst)


def _every(
    rounds: Rounds, states: States, target: Continuation
) -> Iterator[tuple[tuple[int, ...], int, list[tuple[int, np.ndarray]]]]:
    """Every round there may be: (context, limit, law of what it emits)."""
    V = rounds.vocab_size
    limits = (UNLIMITED, *range(rounds.ample, 0, -1))
    contexts = target.contexts(rounds.reach)
    for plan, interpreter in rounds.interpreters.items():
        adaptive = _recording(plan, V)
        for context in contexts:
            for limit in limits:
                if adaptive is None:
                    found: Any = [interpreter.round(context, limit, states)]
                else:
                    found = regions(adaptive, context, limit)
                for outcomes in found:
                    yield context, limit, lengths(by_length(outcomes, V))


def _recording(plan: Verify, V: int) -> RecordingInterpreter | None:
    """What follows a plan whose windows have running means; ``None`` where none has."""
    adapts = any(map(is_running, windows(plan).values()))
    return RecordingInterpreter(plan, V) if adapts else None


def _is_known(window: Any) -> bool:
    """Whether all that a window remembers is a running mean, or counts that it does not read."""
    inner = window.inner if isinstance(window, Counting) else window
    return type(inner) in (FixedWindow, EntropyWindow, ConfidenceWindow)
