"""Losslessness, proved: one round from every state that a generation can be in.

A state is what a round depends on: the last tokens that the models look at, the window states, the
plan that a controller chose, and how many tokens are still wanted. Texts end in all the ways the
target can write, plans and limits are few, and of running means there are finitely many kinds
(:mod:`hierspec.exact.running_means`). Where a round is the target's own from all of these, so is
the text (:mod:`hierspec.exact.round_law`): :func:`prove`. Where it is not, :func:`search_reachable`
looks for a lossy round among the states that a generation can really reach.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from hierspec.core.nodes import Verify
from hierspec.core.proposals import States
from hierspec.core.windows import (
    AcceptanceWindow,
    ConfidenceWindow,
    Counting,
    EntropyWindow,
    FixedWindow,
)

from .bounds import UNLIMITED
from .output import Rounds
from .round_law import Continuation, by_length, drop_states, last_tokens, to_digits
from .running_means import RecordingInterpreter, is_running, outcomes_by_region, windows

_ROUNDING = 1e-14  # less likely tokens may be what subtracting equal laws has left


@dataclass(frozen=True, slots=True)
class LossyRound:
    """A round whose law is not the target's, at a state that was reached.

    Attributes:
        text: the first one found that leads there.
        limit: tokens still wanted; ``UNLIMITED``: as many as the round may emit.
        state: of windows and controller.
        tv: what the round adds to the total variation distance, given that it is reached.
        shown: how many first tokens of the output a law must have to show it.
    """

    text: tuple[int, ...]
    limit: int
    state: Any
    tv: float
    shown: int


@dataclass(frozen=True, slots=True)
class Examination:
    """The result of comparing one round from each of many states with the target.

    Attributes:
        states: how many were looked at.
        complete: whether there are no others.
        worst_tv: the largest total variation of their rounds from the target.
        lossy: the worst of the first lossy rounds reached: the fewest rounds from the start.
    """

    states: int
    complete: bool
    worst_tv: float
    lossy: LossyRound | None = None


def prove(
    rounds: Rounds, states: States, target: Continuation, tolerance: float, max_states: int
) -> Examination:
    """Compare one round from every state with the target, until one is lossy.

    Args:
        rounds: of the hierarchy; ``states`` are those of its windows at the start.
        tolerance: a total variation above it makes a round lossy.
        most: states to look at.
    """
    if not all(map(_is_enumerable, windows(rounds.root).values())):
        return Examination(0, False, 0.0)
    count, worst = 0, 0.0
    for context, limit, distributions in _all_rounds(rounds, states, target):
        if count == max_states:
            return Examination(count, False, worst)
        count += 1
        worst = max(worst, target.distance(distributions, context, limit))
        if worst > tolerance:
            return Examination(count, False, worst)
    return Examination(count, True, worst)


def search_reachable(
    rounds: Rounds, initial: Any, target: Continuation, tolerance: float, max_states: int
) -> Examination:
    """Look at every state that a generation can reach, nearest first, until a round is lossy.

    Args:
        rounds: of the hierarchy, and ``initial`` the state before the first one.
        tolerance: a total variation above it makes a round lossy.
        most: states to look at.
    """
    limits = (UNLIMITED, *range(1, rounds.sufficient_limit + 1))
    start: dict[Any, tuple[int, ...]] = {((), initial, limit): () for limit in limits}
    seen, states, worst = set(start), 0, 0.0
    # A round that is not limited shows most, so that one goes first.
    layer = {((), initial, UNLIMITED): ()}
    deeper = {key: text for key, text in start.items() if key not in layer}
    while layer:
        lossy: LossyRound | None = None
        for (context, state, limit), text in layer.items():
            if states == max_states:
                return Examination(states, False, worst, lossy)
            states += 1
            distributions = rounds.round(context, limit, state)
            tv = target.distance(drop_states(distributions), context, limit)
            worst = max(worst, tv)
            if tv > max(tolerance, lossy.tv if lossy else 0.0):
                shown = len(text) + min(limit, max(m for m, _ in distributions))
                lossy = LossyRound(text, limit, state, tv, shown)
            for key, emitted in _next_states(distributions, context, limit, rounds, limits):
                if key not in seen:
                    seen.add(key)
                    deeper[key] = text + emitted
        if lossy:
            return Examination(states, False, worst, lossy)
        layer, deeper = deeper, {}
    return Examination(states, True, worst)


def _all_rounds(
    rounds: Rounds, states: States, target: Continuation
) -> Iterator[tuple[tuple[int, ...], int, list[tuple[int, np.ndarray]]]]:
    """Yield every round that there may be: (context, limit, law of what it emits)."""
    V = rounds.vocab_size
    limits = (UNLIMITED, *range(rounds.sufficient_limit, 0, -1))
    contexts = target.contexts(rounds.max_order)
    for plan, interpreter in rounds.interpreters.items():
        adaptive = _recording_interpreter(plan, V)
        for context in contexts:
            for limit in limits:
                if adaptive is None:
                    found: Any = [interpreter.round(context, limit, states)]
                else:
                    found = outcomes_by_region(adaptive, context, limit)
                for outcomes in found:
                    yield context, limit, drop_states(by_length(outcomes, V))


def _recording_interpreter(plan: Verify, V: int) -> RecordingInterpreter | None:
    """Build the interpreter of a plan whose windows have running means; ``None`` if none has."""
    adapts = any(map(is_running, windows(plan).values()))
    return RecordingInterpreter(plan, V) if adapts else None


def _is_enumerable(window: Any) -> bool:
    """Return whether a window remembers a running mean only, or counts that it does not read."""
    inner = window.inner if isinstance(window, Counting) else window
    return type(inner) in (FixedWindow, EntropyWindow, ConfidenceWindow, AcceptanceWindow)


def _next_states(
    distributions: Any, context: Any, limit: int, rounds: Rounds, limits: tuple[int, ...]
) -> Any:
    """Yield (state, tokens emitted) for every state from which a next round may start."""
    for (m, after), law in distributions.items():
        # A round that was not limited leaves any number of tokens wanted.
        left = limits if limit == UNLIMITED else (limit - m,)
        for number in np.flatnonzero(law > _ROUNDING).tolist():
            tokens = to_digits(number, m, rounds.vocab_size)
            last = last_tokens(context + tokens, rounds.max_order)
            for wanted in left:
                if wanted > 0:
                    yield (last, after, wanted), tokens
