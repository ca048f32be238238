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

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike

from hierspec.errors import HierspecError

from .estimates import Chain, Estimates
from .latency import Latency, latency

_TINY = 5e-324  # stands for an acceptance rate of 0, whose logarithm is not finite


def expected_tokens(alpha: ArrayLike, handed_up: ArrayLike) -> np.ndarray:
    """Return expected tokens of a round, (1 − α^{n+1}) / (1 − α), the verifier's own included.

    Args:
        alpha: acceptance rates, each test independent; ``handed_up``: draft lengths n ≥ 0. They
            broadcast.

    Source: Leviathan et al. (2023), eq. 1; α = 1 gives its limit n + 1.
    """
    return _geometric(np.log(np.maximum(alpha, _TINY)), np.asarray(handed_up) + 1)


def expected_rounds(alpha: ArrayLike, handed_up: ArrayLike, budget: ArrayLike) -> np.ndarray:
    """Compute γ(α, T_i, T_j) in closed form, O(1) an entry.

    With d = T_i + 1 and b = α^d, u(s) is 1 − α plus b·u(s − d): a geometric sum in every block of d
    places, one more at the block's first place. The sum runs over the full blocks and the last one.

    Args:
        alpha: acceptance rates in [0, 1].
        handed_up: T_i, tokens that each round drafts.
        budget: T_j, tokens to be held. The three broadcast.

    Source: P1 §2.4 defines γ; MATH §4 solves it.
    """
    alpha, n, t = np.broadcast_arrays(
        np.asarray(alpha, dtype=np.float64), np.asarray(handed_up), np.asarray(budget)
    )
    width = n + 1
    blocks, rest = np.divmod(t, width)
    log_b = width * np.log(np.maximum(alpha, _TINY))
    rejected = 1.0 - alpha
    powers = _geometric(log_b, blocks)  # Σ_{p < blocks} b^p
    last_power = np.exp(blocks * log_b)
    # blocks − powers cancels near α = 1, but there its absolute error is that of the other terms.
    full_blocks = powers * (1.0 + n * rejected) + width * (blocks - powers) / expected_tokens(
        alpha, n
    )
    last_block = rejected * powers + last_power + (rest - 1) * rejected * (powers + last_power)
    return full_blocks + np.where(rest > 0, last_block, 0.0)


def rounds_from_survival(survival: np.ndarray, longest: int) -> np.ndarray:
    """Compute γ for measured survival curves, by renewal, for all lengths and budgets at once.

    Args:
        survival: [..., L+1]; S(m), the probability that the first m draft tokens are kept.
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


def _geometric(log_ratio: np.ndarray, count: np.ndarray) -> np.ndarray:
    """Return Σ_{p < count} r^p, accurate for r near 1 as well."""
    flat = log_ratio == 0.0
    step = np.where(flat, -1.0, log_ratio)
    return np.where(flat, count, np.expm1(count * step) / np.expm1(step))


def formula(costs: Sequence[float], rates: Sequence[float], budgets: Sequence[int]) -> float:
    """Return expected latency per token, in the costs' unit, from call costs and acceptance rates.

    Args:
        costs: c of the chain's levels, smallest first, the target last.
        rates: α of each level's tokens by the level above it, one fewer.
        budgets: T, as many as rates. Without any: plain decoding, c_K.

    Source: P1 Corollary 3.1, as a recursion: V_0 = T_0 c_0, V_i = γ (c_i + V_{i−1}), and the
    latency is (1 − α) / (1 − α^{T+1}) · (c_K + V_{K−1}); α = 1 is the limit 1 / (T + 1).
    """
    if len(rates) != len(costs) - 1 or len(budgets) != len(rates):
        raise HierspecError("it takes one rate and one budget for each level but the target")
    if not rates:
        return float(costs[-1])
    spent = budgets[0] * costs[0]
    for i, (below, budget) in enumerate(pairwise(budgets)):
        spent = float(expected_rounds(rates[i], below, budget)) * (costs[i + 1] + spent)
    return (costs[-1] + spent) / float(expected_tokens(rates[-1], budgets[-1]))


def corollary(estimates: Estimates, chain: Chain) -> Latency:
    """Price a chain by P1's formula: survival curves for α, costs at the length handed up.

    That is the exact model without overshoot, windows and classes of text (MATH §4): drafters are
    assumed to draft their whole budgets.

    Raises:
        HierspecError: a level cannot draft for the one above, or the chain has an order, a tail
            or a dropped bonus, which the formula does not cover.
    """
    if chain.order != "chain" or chain.tail or chain.dropped_bonus:
        raise HierspecError(
            "P1's formula covers plain chains alone (no tail, order or dropped bonus): use the "
            'exact latency model, "latency_model": "exact"'
        )
    return latency(replace(estimates, joint_survival={}, classes=()), chain, overshoot=False)
