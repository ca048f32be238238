"""What rounds cost as the estimates price them: at worst, once they are over, and catching up.

No clock is read, so that what online control decides can be repeated.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..windows import Counts
from .belief import at
from .chain import Chain
from .estimates import Estimates


def worst_ms(estimates: Estimates, chain: Chain) -> float:
    """A bound on one round: every draft rejected at its first token, every length the longest."""
    if chain.plain:
        return estimates.plain_ms
    by, longest = chain.levels[0], chain.budgets[0]
    spent = float(estimates.draft_ms[by, : longest + 1].max())
    budgets = (*chain.budgets[1:], 1)  # the target's round is one
    for model, budget in zip(chain.levels[1:], budgets, strict=True):
        spent = budget * (spent + float(estimates.verify_ms[by, model, : longest + 1].max()))
        by, longest = model, budget + longest
    return spent


def spent_ms(estimates: Estimates, chain: Chain, seen: Sequence[Counts], rounds: int) -> float:
    """What ``rounds`` rounds of the target cost, from what they did.

    Args:
        seen: what became of the drafts of each level below the target, smallest first.
    """
    total = 0.0
    for place, (counts, model) in enumerate(zip(seen, chain.levels, strict=False)):
        above = chain.levels[place + 1]
        if counts.drafts:
            mean = counts.drafted / counts.drafts
            total += counts.drafts * at(estimates.verify_ms[model, above], mean)
            if place == 0:
                total += counts.drafts * at(estimates.draft_ms[model], mean)
        if place + 1 < len(seen):  # rounds of a middle level that was given nothing to verify
            tokens = seen[place + 1].drafted - counts.kept
            answered = counts.rejected if above in chain.dropped_bonus else counts.drafts
            total += max(tokens - answered, 0.0) * float(estimates.draft_ms[above, 1])
    verified = seen[-1].drafts if seen else 0.0
    return total + max(rounds - verified, 0.0) * estimates.plain_ms


def default_catch_up(estimates: Estimates) -> list[float]:
    """Ms a model needs for each token it has to read: what a row adds to one of its calls.

    A level that runs on the target's own trunk has read what the target has. A model that
    verifies nobody is taken to read as much faster than it drafts as the target does.
    """
    target = estimates.target
    rows = [_row_ms(estimates, k) for k in range(target + 1)]
    ratio = (rows[target] or 0.0) / estimates.plain_ms
    out = []
    for i, row in enumerate(rows):
        trunk = bool(estimates.owners) and estimates.owners[i] == estimates.owners[target]
        one = float(estimates.draft_ms[i, 1])
        out.append(0.0 if trunk or i == target else ratio * one if row is None else row)
    return out


def _row_ms(estimates: Estimates, k: int) -> float | None:
    """What one more row adds to a call of model k; ``None`` where it verifies nobody."""
    last = min(8, estimates.verify_ms.shape[2] - 1)
    slopes = [
        (estimates.verify_ms[i, k, last] - estimates.verify_ms[i, k, 1]) / max(last - 1, 1)
        for i in range(k)
        if estimates.can_draft(i, k)
    ]
    slopes = [float(slope) for slope in slopes if np.isfinite(slope)]
    return max(min(slopes), 0.0) if slopes else None
