"""The states that a generation really comes to, followed from its start, round by round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .output import Rounds
from .round_law import Continuation, digits, ending, lengths
from .states import UNLIMITED

_ROUNDING = 1e-14  # less likely tokens may be what subtracting equal laws has left


@dataclass(frozen=True, slots=True)
class LossyRound:
    """A round that does not go on as the target would, at a state that was reached.

    Attributes:
        text: of the first way found that leads there.
        limit: tokens still wanted; ``UNLIMITED``: as many as the round may emit.
        state: of windows and controller.
        tv: what the round adds to the total variation distance, given that it is reached.
        shown: how many first tokens of the output it bears on.
    """

    text: tuple[int, ...]
    limit: int
    state: Any
    tv: float
    shown: int


@dataclass(frozen=True, slots=True)
class Reached:
    """What following a generation found.

    Attributes:
        states: looked at.
        complete: there are no others.
        worst_tv: of all their rounds.
        lossy: the worst of the first that are lossy: the fewest rounds from the start.
    """

    states: int
    complete: bool
    worst_tv: float
    lossy: LossyRound | None = None


def reached(
    rounds: Rounds, initial: Any, target: Continuation, tolerance: float, most: int
) -> Reached:
    """Look at every state that a generation can reach, nearest first, until a round is lossy.

    Args:
        rounds: of the hierarchy, and ``initial`` the state before the first one.
        tolerance: a total variation above it makes a round lossy.
        most: states to look at.
    """
    limits = (UNLIMITED, *range(1, rounds.ample + 1))
    start: dict[Any, tuple[int, ...]] = {((), initial, limit): () for limit in limits}
    seen, states, worst = set(start), 0, 0.0
    # A round that is not limited shows most, so that one goes first.
    layer = {((), initial, UNLIMITED): ()}
    deeper = {key: text for key, text in start.items() if key not in layer}
    while layer:
        lossy: LossyRound | None = None
        for (context, state, limit), text in layer.items():
            if states == most:
                return Reached(states, False, worst, lossy)
            states += 1
            distributions = rounds.round(context, limit, state)
            tv = target.distance(lengths(distributions), context, limit)
            worst = max(worst, tv)
            if tv > max(tolerance, lossy.tv if lossy else 0.0):
                shown = len(text) + min(limit, max(m for m, _ in distributions))
                lossy = LossyRound(text, limit, state, tv, shown)
            for key, emitted in _after(distributions, context, limit, rounds, limits):
                if key not in seen:
                    seen.add(key)
                    deeper[key] = text + emitted
        if lossy:
            return Reached(states, False, worst, lossy)
        layer, deeper = deeper, {}
    return Reached(states, True, worst)


def _after(
    distributions: Any, context: Any, limit: int, rounds: Rounds, limits: tuple[int, ...]
) -> Any:
    """(state, tokens emitted) for every state that a round may leave to a further one."""
    for (m, after), law in distributions.items():
        # A round that was not limited leaves any number of tokens wanted.
        left = limits if limit == UNLIMITED else (limit - m,)
        for number in np.flatnonzero(law > _ROUNDING).tolist():
            tokens = digits(number, m, rounds.vocab_size)
            come_to = ending(context + tokens, rounds.reach)
            for wanted in left:
                if wanted > 0:
                    yield (come_to, after, wanted), tokens
