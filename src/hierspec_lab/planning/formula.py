"""P1's formula for independent acceptances in closed form (:mod:`.corollary`)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike

from hierspec.errors import HierspecError

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
