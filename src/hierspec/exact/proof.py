"""Losslessness, proved: one round from every state that a generation can be in.

A state is what a round depends on: the last tokens that the models look at, the window states, the
plan that a controller chose, and the number of remaining tokens. There are finitely many: the last
tokens of texts that the target can write, the plans, the limits, and the regions of running means
that rounds distinguish (:mod:`hierspec.exact.running_means`). If a round has the target's law from
all of these, so has the text (:mod:`hierspec.exact.round_law`): :func:`prove`. If not,
:func:`search_reachable` looks for a lossy round among the states that a generation can reach.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from hierspec.core.proposals import States
from hierspec.core.windows import Counting, EntropyWindow, StatelessWindow

from .interpreter import UNLIMITED
from .output import Rounds
from .recording import is_running, windows
from .round_law import Continuation, by_length, drop_states, last_tokens, to_digits
from .running_means import ComparingInterpreter, outcomes_by_region

_ROUNDING = 1e-14  # smaller probabilities may come from subtracting equal distributions


@dataclass(frozen=True, slots=True)
class LossyRound:
    """A round whose law is not the target's, from a state that a generation reaches.

    Attributes:
        text: the first text found that leads to the state.
        limit: of the round; ``UNLIMITED``: it may emit all its tokens.
        state: of windows and controller.
        tv: total variation distance of the round, given its state.
        horizon: how many tokens an output law needs to show the loss.
    """

    text: tuple[int, ...]
    limit: int
    state: Any
    tv: float
    horizon: int


@dataclass(frozen=True, slots=True)
class Examination:
    """The result of comparing one round from each of many states with the target.

    Attributes:
        states: how many were compared.
        complete: whether there are no other states.
        worst_tv: the largest total variation distance of their rounds from the target.
        lossy: of the lossy rounds that are fewest rounds from the start, the worst.
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
        tolerance: a total variation distance above it makes a round lossy.
    """
    if not all(map(is_enumerable, windows(rounds.root).values())):
        return Examination(0, False, 0.0)
    count, worst = 0, 0.0
    for context, limit, distributions in _all_rounds(rounds, states, target):
        if count == max_states:
            return Examination(count, False, worst)
        count += 1
        tv = target.distance(distributions, context, limit)
        if not tv <= tolerance:  # NaN is no proof
            return Examination(count, False, tv)
        worst = max(worst, tv)
    return Examination(count, True, worst)


def search_reachable(
    rounds: Rounds, initial: Any, target: Continuation, tolerance: float, max_states: int
) -> Examination:
    """Compare every state that a generation can reach, nearest first, until a round is lossy.

    Args:
        rounds: of the hierarchy, and ``initial`` the state before the first one.
        tolerance: a total variation distance above it makes a round lossy.
    """
    limits = (UNLIMITED, *range(1, rounds.sufficient_limit + 1))
    start: dict[Any, tuple[int, ...]] = {((), initial, limit): () for limit in limits}
    reached, states, worst = set(start), 0, 0.0
    # Unlimited rounds can show any loss that limited ones do, so they go first.
    layer = {((), initial, UNLIMITED): ()}
    next_layer = {key: text for key, text in start.items() if key not in layer}
    while layer:
        lossy: LossyRound | None = None
        for (context, state, limit), text in layer.items():
            if states == max_states:
                return Examination(states, False, worst, lossy)
            states += 1
            distributions = rounds.round(context, limit, state)
            tv = target.distance(drop_states(distributions), context, limit)
            worst = max(worst, tv)
            if not tv <= max(tolerance, lossy.tv if lossy else 0.0):
                horizon = len(text) + min(limit, max(m for m, _ in distributions))
                lossy = LossyRound(text, limit, state, tv, horizon)
            for key, emitted in _next_states(distributions, context, limit, rounds, limits):
                if key not in reached:
                    reached.add(key)
                    next_layer[key] = text + emitted
        if lossy:
            return Examination(states, False, worst, lossy)
        layer, next_layer = next_layer, {}
    return Examination(states, True, worst)


def _all_rounds(
    rounds: Rounds, states: States, target: Continuation
) -> Iterator[tuple[tuple[int, ...], int, list[tuple[int, np.ndarray]]]]:
    V = rounds.vocab_size
    limits = (UNLIMITED, *range(rounds.sufficient_limit, 0, -1))
    contexts = target.contexts(rounds.max_order)
    for plan, interpreter in rounds.interpreters.items():
        is_adaptive = any(map(is_running, windows(plan).values()))
        comparing = ComparingInterpreter(plan, V) if is_adaptive else None
        for context in contexts:
            for limit in limits:
                if comparing is None:
                    rounds_outcomes: Any = [interpreter.round(context, limit, states)]
                else:
                    rounds_outcomes = outcomes_by_region(comparing, context, limit)
                for outcomes in rounds_outcomes:
                    yield context, limit, drop_states(by_length(outcomes, V))


def is_enumerable(window: Any) -> bool:
    """Return whether a window's state is a running mean, or counts that it does not read."""
    inner = window.inner if isinstance(window, Counting) else window
    kind = type(inner)
    stateless = issubclass(kind, StatelessWindow) and kind.observe is StatelessWindow.observe
    return stateless or kind is EntropyWindow


def _next_states(
    distributions: Any, context: Any, limit: int, rounds: Rounds, limits: tuple[int, ...]
) -> Any:
    """Yield (state, tokens emitted) for every state from which a next round may start."""
    for (m, next_state), law in distributions.items():
        # After an unlimited round any number of tokens may remain.
        next_limits = limits if limit == UNLIMITED else (limit - m,)
        for number in np.flatnonzero(law > _ROUNDING).tolist():
            tokens = to_digits(number, m, rounds.vocab_size)
            next_context = last_tokens(context + tokens, rounds.max_order)
            for next_limit in next_limits:
                if next_limit > 0:
                    yield (next_context, next_state, next_limit), tokens
