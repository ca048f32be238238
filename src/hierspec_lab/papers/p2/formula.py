"""P2's three models: tokens of M_s and M_q in one draft, both verified by M_p (MATH §2).

α, β: acceptance of M_q's and of M_s's tokens by M_p. c = cost(M_q) / cost(M_p),
c_s = cost(M_s) / cost(M_q). The formulas hold for the sound form of P2's Algorithm 2, which takes
ratio and residual from the model that drafted the slot; as printed it draws from full p after a
rejection, and is lossy. P2's finding holds and is sharper than it says: interleaving never beats
both single drafts, and the horizontal order never yields less at equal cost while α ≥ β.

The planner has the same figures from survival curves, without these formulas
(:mod:`hierspec.planner.latency`): apart, so that each tests the other.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

_TINY = 5e-324  # stands for an acceptance rate of 0, whose logarithm is not finite


def expected_tokens(alpha: ArrayLike, handed_up: ArrayLike) -> np.ndarray:
    """Return expected tokens of a round, (1 − α^{n+1}) / (1 − α), the verifier's own included.

    Args:
        alpha: acceptance rates, each test independent; ``handed_up``: draft lengths n ≥ 0. They
            broadcast.

    Source: Leviathan et al. (2023), eq. 1; α = 1 gives its limit n + 1.
    """
    log_alpha, count = np.log(np.maximum(alpha, _TINY)), np.asarray(handed_up) + 1
    step = np.where(log_alpha == 0.0, -1.0, log_alpha)  # expm1 is accurate for α near 1 as well
    return np.where(log_alpha == 0.0, count, np.expm1(count * step) / np.expm1(step))


def interleaved_tokens(alpha: ArrayLike, beta: ArrayLike, n: ArrayLike, m: ArrayLike) -> np.ndarray:
    """Return the expected tokens a round of m blocks, each n tokens of M_s and then 1 of M_q.

    (1 − β^{n+1}) / (1 − β) · (1 − Q^m) / (1 − Q) + Q^m with Q = αβⁿ [P2 Theorem 3.2]; n = 0 is
    drafting with M_q alone. All arguments broadcast; β = 1 and Q = 1 are limits.
    """
    n, m = np.asarray(n), np.asarray(m)
    q = np.asarray(alpha, dtype=np.float64) * np.asarray(beta, dtype=np.float64) ** n
    blocks = np.where(m > 0, expected_tokens(q, np.maximum(m - 1, 0)), 0.0)
    return expected_tokens(beta, n) * blocks + q**m


def horizontal_tokens(alpha: ArrayLike, beta: ArrayLike, n: ArrayLike, m: ArrayLike) -> np.ndarray:
    """Return the expected tokens a round of m tokens of M_q and then n of M_s; either may be 0.

    (1 − α^{m+1}) / (1 − α) + α^m (β + … + βⁿ). The cost of interleaving (n, m) is that of (mn, m)
    here (MATH §2).
    """
    all_m_kept = np.asarray(alpha, dtype=np.float64) ** np.asarray(m)
    return expected_tokens(alpha, m) + all_m_kept * (expected_tokens(beta, n) - 1.0)


def interleaved_speedup(
    alpha: ArrayLike, beta: ArrayLike, c: ArrayLike, c_s: ArrayLike, n: ArrayLike, m: ArrayLike
) -> np.ndarray:
    """Return the speed-up over plain decoding: tokens / (1 + mc + mn·c·c_s) [P2 Theorem 3.4]."""
    n, m, c, c_s = np.asarray(n), np.asarray(m), np.asarray(c), np.asarray(c_s)
    return interleaved_tokens(alpha, beta, n, m) / (1.0 + m * c + m * n * c * c_s)


def horizontal_speedup(
    alpha: ArrayLike, beta: ArrayLike, c: ArrayLike, c_s: ArrayLike, n: ArrayLike, m: ArrayLike
) -> np.ndarray:
    """Return the speed-up of m tokens of M_q and then n of M_s: tokens / (1 + mc + n·c·c_s)."""
    n, m, c, c_s = np.asarray(n), np.asarray(m), np.asarray(c), np.asarray(c_s)
    return horizontal_tokens(alpha, beta, n, m) / (1.0 + m * c + n * c * c_s)


@dataclass(frozen=True, slots=True)
class Ordering:
    """A way to use the three models, at its best lengths.

    Attributes:
        name: ``plain``, ``small`` or ``mid`` (a single draft by M_s or M_q), ``interleaved`` or
            ``horizontal``.
        n: tokens of M_s; where interleaved, in each block.
        m: tokens of M_q.
        tokens: expected tokens a round.
        speedup: over plain decoding.
    """

    name: str
    n: int
    m: int
    tokens: float
    speedup: float


def compare_orders(
    alpha: float, beta: float, c: float, c_s: float, longest: int = 15
) -> tuple[Ordering, ...]:
    """Return plain decoding, both single drafts, interleaved and horizontal order, fastest first.

    Args:
        longest: most tokens of one draft, of both models together.
    """
    n, m = np.meshgrid(np.arange(longest + 1), np.arange(longest + 1), indexing="ij")
    horizontal = horizontal_speedup(alpha, beta, c, c_s, n, m), horizontal_tokens(alpha, beta, n, m)
    interleaved = (
        interleaved_speedup(alpha, beta, c, c_s, n, m),
        interleaved_tokens(alpha, beta, n, m),
    )
    two_drafters = (n > 0) & (m > 0)
    kinds = {
        "plain": (horizontal, (n == 0) & (m == 0)),
        "mid": (horizontal, (n == 0) & (m > 0)),
        "small": (horizontal, (n > 0) & (m == 0)),
        "horizontal": (horizontal, two_drafters & (n + m <= longest)),
        "interleaved": (interleaved, two_drafters & (m * (n + 1) <= longest)),
    }
    orderings = []
    for name, ((speedup, num_tokens), allowed) in kinds.items():
        if allowed.any():
            best = np.unravel_index(np.argmax(np.where(allowed, speedup, -np.inf)), n.shape)
            lengths, figures = (int(n[best]), int(m[best])), (num_tokens[best], speedup[best])
            orderings.append(Ordering(name, *lengths, *map(float, figures)))
    return tuple(sorted(orderings, key=lambda ordering: -ordering.speedup))
