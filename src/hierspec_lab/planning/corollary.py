"""P1's formula for the latency of a hierarchy, Corollary 3.1, with γ exact (MATH §4).

γ is how many rounds a level needs [P1 §2.4]. P1 estimates it by simulation and says that an exact
formula is hard. It is the mean of a renewal count: a round over ℓ draft tokens yields between 1 and
ℓ + 1 tokens, and u(s) is the probability that some round ends with exactly s tokens held, so that
γ = Σ_{s < t} u(s).

The formula takes every level to hand up exactly its budget. Algorithm 1 hands up what overshoots as
well, so the formula is an upper bound there: 2–3 % too high on average at good plans, without limit
for silly budgets. :func:`hierspec.planner.latency.latency` is the exact model.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hierspec.errors import HierspecError
from hierspec.planner.estimates import Chain, Estimates
from hierspec.planner.latency import Latency, latency


def rounds_from_survival(survival: np.ndarray, longest: int) -> np.ndarray:
    """Compute γ for measured survival curves, by renewal, for all lengths and budgets at once.

    Args:
        survival: [..., L+1]; S(m), the probability that the first m draft tokens are accepted.
        longest: T̄ ≤ L, the largest draft length and budget.

    Returns:
        [..., T̄+1, T̄+1]: ``[..., ℓ, t]`` is the expected number of rounds of ℓ draft tokens until
        at least t tokens are held. NaN where it depends on a survival that is NaN.

    Source: MATH §4: u(s) = Σ_x g(x) u(s − x), g(x) = S(x − 1) − S(x) for x ≤ ℓ, g(ℓ + 1) = S(ℓ).
    """
    if longest >= survival.shape[-1]:
        raise HierspecError(
            f"survival is known up to {survival.shape[-1] - 1} tokens, not {longest}: lower the "
            "largest budget or measure longer drafts"
        )
    batch = survival.shape[:-1]
    # Budgets first, curves last: every sum below runs over long contiguous rows.
    kept = np.moveaxis(survival[..., : longest + 1], -1, 0).reshape(longest + 1, -1)
    gain = kept[:-1] - kept[1:]  # [x-1]: a round rejects its x-th token, so yields x
    total = np.zeros((longest + 1, longest + 1, kept.shape[1]))  # [t, ℓ, curve]
    visits = np.empty((max(longest, 1), longest + 1, kept.shape[1]))  # [s, ℓ, curve]: u
    visits[0] = 1.0
    for s in range(1, longest):
        u = visits[s]
        # All ℓ ≥ s have the same u(s): their bonus token lies beyond.
        lengths = np.arange(s)
        u[:s] = kept[:s] * visits[s - 1 - lengths, lengths]
        u[s] = 0.0
        for x in range(1, s + 1):
            u[x : s + 1] += gain[x - 1] * visits[s - x, x : s + 1]
        u[s + 1 :] = u[s]
    np.cumsum(visits[:longest], axis=0, out=total[1:])
    return np.moveaxis(total.reshape(longest + 1, longest + 1, *batch), (1, 0), (-2, -1))


def corollary(estimates: Estimates, chain: Chain) -> Latency:
    """Price a chain by P1's formula: survival curves for α, costs at the length handed up.

    A level hands up exactly its budget; drafters are assumed to draft their whole budgets, and all
    texts to be alike (MATH §4).

    Raises:
        HierspecError: a level cannot draft for the one above, or the chain has an order, a tail
            or a dropped bonus, which the formula does not cover.
    """
    if chain.order != "chain" or chain.tail or chain.dropped_bonus:
        raise HierspecError(
            "P1's formula covers plain chains alone (no tail, order or dropped bonus): use the "
            'exact latency model, "latency_model": "exact"'
        )
    if chain.plain:
        return latency(replace(estimates, classes=()), chain)
    estimates.validate(chain)
    below, *models = chain.models
    length, *budgets = chain.budgets
    spent = [estimates.draft_ms[below, length]]
    for model, budget in zip(models, budgets, strict=False):
        rounds = rounds_from_survival(estimates.survival[below, model], max(length, budget))
        spent.append(estimates.verify_ms[below, model, length])
        spent = [rounds[length, budget] * ms for ms in spent]
        below, length = model, budget
    spent.append(estimates.verify_ms[below, models[-1], length])
    tokens = float(estimates.survival[below, models[-1], : length + 1].sum())
    ms = tuple(float(level) / tokens for level in spent)
    return Latency(sum(ms), tokens, ms)
