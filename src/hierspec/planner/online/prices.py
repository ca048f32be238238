"""Costs of plans and rounds by the estimates: predicted, at worst, and of finished rounds.

No clock is read, so that what online control decides can be repeated.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from hierspec.core.windows import Counts
from hierspec.planner.estimates import Chain, Estimates
from hierspec.planner.latency import latency

from .acceptance_estimate import STEP, interpolate, shift_survival

_MAX_PRICES = 1 << 15  # of plans under shifts


class PriceList:
    """Milliseconds a token of every plan under an estimate; safe to share between threads.

    A price depends on the shifts of the plan's own pairs of levels only, and shifts come in steps,
    so few prices are ever needed: each is cached.

    Args:
        pairs: (drafter, verifier) that shifts are given for, in this order.

    Attributes:
        pairs_of: per plan, the pairs of its levels, lowest first, as indices of ``pairs``.
    """

    def __init__(
        self,
        estimates: Estimates,
        chains: Sequence[Chain],
        pairs: Sequence[tuple[int, int]],
    ) -> None:
        self.estimates, self.chains, self.pairs = estimates, chains, pairs
        self.pairs_of = tuple(tuple(pairs.index(pair) for pair in chain.pairs) for chain in chains)
        self._cached = lru_cache(_MAX_PRICES)(self._price)

    def price(self, n: int, shifts: tuple[int, ...]) -> float:
        """Return the predicted milliseconds a token of plan ``n``.

        Args:
            shifts: of every pair, in steps.
        """
        return self._cached(n, tuple([shifts[p] for p in self.pairs_of[n]]))

    def _price(self, n: int, shifts: tuple[int, ...]) -> float:
        pairs = (self.pairs[p] for p in self.pairs_of[n])
        log_odds = {pair: shift * STEP for pair, shift in zip(pairs, shifts, strict=True)}
        return latency(shift_survival(self.estimates, log_odds), self.chains[n]).ms_per_token


def worst_ms(estimates: Estimates, chain: Chain) -> float:
    """Return a bound on one round's ms: every first token rejected, at the costliest lengths."""
    if chain.plain:
        return estimates.plain_ms
    levels = [*chain.levels]
    continuing, tail = levels.pop() if chain.continues else (0, 0)
    (drafter, longest), *verifying = levels
    spent = float(estimates.draft_ms[drafter, : longest + 1].max())
    for model, budget in (*verifying, (estimates.target, 1)):  # the target's round is one
        if tail and model == estimates.target:
            spent += float(estimates.draft_ms[continuing, : tail + 1].max())
            longest += tail
        check_ms = estimates.check_ms(model not in chain.dropped_bonus)
        spent = budget * (spent + float(check_ms[drafter, model, : longest + 1].max()))
        drafter, longest = model, budget + longest
    return spent


def counts_of_levels(chain: Chain, drafts: Sequence[Counts]) -> list[Counts]:
    """Return the counts of a chain's levels in a round, each of its own tokens alone.

    Of a draft that one level began and another continued, the round counts all with the level of
    the first rejected token, or of the last one. How many tokens the first level had handed up
    follows from the budgets, but for what overshot.
    """
    if not chain.continues:
        return [*drafts]
    *others, first, rest = drafts
    (_, budget), (_, tail) = chain.levels[-2:]
    drafted, accepted = first.drafted + rest.drafted, first.accepted + rest.accepted
    handed_up = max(budget, drafted - tail)
    if rest.drafts:
        handed_up = min(handed_up, accepted)
    elif first.rejected:
        handed_up = max(handed_up, accepted + 1)
    else:  # nothing continued it
        handed_up = drafted
    handed_up = min(handed_up, drafted)
    further, kept = drafted - handed_up, min(accepted, handed_up)
    return [
        *others,
        Counts(first.drafts + rest.drafts, handed_up, kept, first.rejected),
        Counts(float(further > 0), further, accepted - kept, rest.rejected),
    ]


def spent_ms(estimates: Estimates, chain: Chain, drafts: Sequence[Counts]) -> float:
    """Return the ms that a finished round of the target cost.

    Args:
        drafts: counts of the drafts of each of the chain's levels.
    """
    total, levels, further = 0.0, [*chain.levels], Counts()
    if chain.continues:
        *drafts, further = drafts
        total += interpolate(estimates.draft_ms[levels.pop()[0]], further.drafted)
    models = [*(model for model, _ in levels), estimates.target]
    for place, (counts, model) in enumerate(zip(drafts, models, strict=False)):
        above = models[place + 1]
        if counts.drafts:
            mean = counts.drafted / counts.drafts
            checked = mean + (further.drafted if above == estimates.target else 0.0)
            check_ms = estimates.check_ms(above not in chain.dropped_bonus)
            total += counts.drafts * interpolate(check_ms[model, above], checked)
            if place == 0:
                total += counts.drafts * interpolate(estimates.draft_ms[model], mean)
        if place + 1 < len(drafts):  # rounds of a middle level that had nothing to verify
            tokens = drafts[place + 1].drafted - counts.accepted
            answered = counts.rejected if above in chain.dropped_bonus else counts.drafts
            total += max(tokens - answered, 0.0) * float(estimates.draft_ms[above, 1])
    verified = drafts[-1].drafts if drafts else 0.0
    return total + max(1.0 - verified, 0.0) * estimates.plain_ms


def default_catch_up(estimates: Estimates) -> list[float]:
    """Return each model's ms to read one token: what a row adds to one of its calls.

    A level that runs on the target's cache has read what the target has. For a model that never
    verifies, the target's ratio of reading to drafting a token is assumed.
    """
    target = estimates.target
    rows = [_row_ms(estimates, k) for k in range(target + 1)]
    ratio = (rows[target] or 0.0) / estimates.plain_ms
    catch_up = []
    for i, row in enumerate(rows):
        is_prefilled = bool(estimates.on_target_cache) and estimates.on_target_cache[i]
        step_ms = float(estimates.draft_ms[i, 1])
        catch_up.append(
            0.0 if is_prefilled or i == target else ratio * step_ms if row is None else row
        )
    return catch_up


def _row_ms(estimates: Estimates, k: int) -> float | None:
    """Return the ms that one more row adds to a call of model k; ``None`` if it never verifies."""
    last = min(8, estimates.verify_ms.shape[2] - 1)
    slopes = [
        (estimates.verify_ms[i, k, last] - estimates.verify_ms[i, k, 1]) / max(last - 1, 1)
        for i in range(k)
        if estimates.can_draft(i, k)
    ]
    slopes = [float(slope) for slope in slopes if np.isfinite(slope)]
    return max(min(slopes), 0.0) if slopes else None
