"""P1's formula for the latency of a hierarchy, Corollary 3.1, with γ exact.

It takes every level to hand up exactly its budget. Algorithm 1 hands up what overshoots as well,
so the formula is an upper bound there: 2–3 % too high on average at good plans, without limit for
silly budgets (MATH §4). :func:`hierspec.planner.latency.latency` is the exact model.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from .chain import Chain
from .estimates import Estimates
from .latency import Latency
from .rounds import rounds, rounds_from_survival, tokens


def formula(costs: Sequence[float], rates: Sequence[float], budgets: Sequence[int]) -> float:
    """Expected latency per token from call costs and acceptance rates, in the costs' unit.

    Args:
        costs: c of the chain's levels, smallest first, the target last.
        rates: α of each level's tokens by the level above it, one fewer.
        budgets: T, as many as rates. Without any: plain decoding, c_K.

    Source: P1 Corollary 3.1, as a recursion: V_0 = T_0 c_0, V_i = γ (c_i + V_{i−1}), and the
    latency is (1 − α) / (1 − α^{T+1}) · (c_K + V_{K−1}); α = 1 is the limit 1 / (T + 1).
    """
    if len(rates) != len(costs) - 1 or len(budgets) != len(rates):
        raise ValueError("it takes one rate and one budget for each level but the target")
    if not rates:
        return float(costs[-1])
    spent = budgets[0] * costs[0]
    for i, (below, budget) in enumerate(pairwise(budgets)):
        spent = float(rounds(rates[i], below, budget)) * (costs[i + 1] + spent)
    return (costs[-1] + spent) / float(tokens(rates[-1], budgets[-1]))


def corollary(estimates: Estimates, chain: Chain) -> Latency:
    """P1's formula over estimates: survival curves for α, costs at exactly the length handed up.

    Drafters' own windows are unknown to it: it takes them to draft their whole budget.

    Raises:
        ValueError: a level cannot draft for the one above, or the chain has an order, a tail or a
            dropped bonus, which the formula does not cover.
    """
    if chain.order != "chain" or chain.tail or chain.dropped_bonus:
        raise ValueError(
            "P1's formula covers plain chains alone (no tail, order or dropped bonus): use the "
            'exact latency model, "latency_model": "exact"'
        )
    target = chain.levels[-1]
    if chain.plain:
        ms = estimates.plain_ms if target == estimates.target else estimates.draft_ms[target, 1]
        return Latency(float(ms), 1.0, (float(ms),))
    for i, k in pairwise(chain.levels):
        if not estimates.can_draft(i, k):
            names = estimates.names
            raise ValueError(f"nothing is known of {names[i]}'s drafts for {names[k]}")
    spent = np.zeros(len(chain.levels))
    spent[0] = estimates.draft_ms[chain.levels[0], chain.budgets[0]]
    for level, (below, budget) in enumerate(pairwise(chain.budgets), 1):
        i, k = chain.levels[level - 1], chain.levels[level]
        gamma = rounds_from_survival(estimates.survival[i, k], max(below, budget))[below, budget]
        spent[level] = estimates.verify_ms[i, k, below]
        spent *= gamma
    i, length = chain.levels[-2], chain.budgets[-1]
    spent[-1] = estimates.verify_ms[i, target, length]
    emitted = float(estimates.survival[i, target, : length + 1].sum())
    per_token = spent / emitted
    return Latency(float(per_token.sum()), emitted, tuple(map(float, per_token)))
