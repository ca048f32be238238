"""Entropies of drafted tokens that the level above kept or rejected, and how well they part.

Every judged token's history is the text itself: kept tokens are in it, and the first rejected one
follows kept ones (those after it were never judged). So one pass of the drafter over the finished
text gives its entropy at every judged token, and a trace gives the verdicts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..lm.base import Context, Query
from ..sampling import signals
from .p5_rounds import Round


@dataclass(frozen=True, slots=True)
class Judged:
    """A drafted token that was judged: its place in the text, the entropy there (nats), the
    verdict."""

    at: int
    entropy: float
    kept: bool


def judged(rounds: Sequence[Round], entropies: Sequence[float], start: int) -> list[Judged]:
    """The judged tokens of a text, in order.

    Args:
        entropies: of the drafter's rows for the tokens at places ``start``, ``start + 1``, …
    """
    out = []
    for one in rounds:
        last = one.at + one.kept + one.rejected
        out += [
            Judged(at, entropies[at - start], at < one.at + one.kept) for at in range(one.at, last)
        ]
    return out


def entropies(model: Any, text: Sequence[int], start: int) -> list[float]:
    """Of the model's untempered rows for the tokens from place ``start`` (at least 1) on, nats."""
    slot = model.open()
    try:
        scores = model.score([Query(slot, Context(text[:-1]), start)])
        return signals(scores, text[start:], "entropy")
    finally:
        model.close(slot)


def area_under_curve(kept: Sequence[float], rejected: Sequence[float]) -> float:
    """The probability that a rejected token's entropy is above a kept one's; ties count half.

    0.5: entropy says nothing; 1: a threshold parts them. NaN where there are none of either.
    """
    if not len(kept) or not len(rejected):
        return float("nan")
    ordered = np.sort(np.asarray(kept, dtype=float))
    below = np.searchsorted(ordered, rejected, "left")
    at_or_below = np.searchsorted(ordered, rejected, "right")
    return float((below + at_or_below).mean() / (2 * len(ordered)))


def thresholds(tokens: Sequence[Judged]) -> list[float]:
    """The running threshold in force at each judged token of a text, as
    :class:`~hierspec.windows.EntropyWindow` keeps it: the mean entropy at the tokens rejected
    before, 0 until there is one."""
    out, total, count = [], 0.0, 0
    for token in tokens:
        out.append(total / count if count else 0.0)
        if not token.kept:
            total, count = total + token.entropy, count + 1
    return out
