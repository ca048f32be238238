"""The joint law of two draws whose races share their noise, in closed form.

A race draws argmax_x p(x) / e(x) with independent exponential numbers e
(:func:`hierspec.core.distributions.race`). Write a_z = p(z)/p(x) and b_z = q(z)/q(y). Token x wins
p's race and y wins q's where e_z > max(a_z e_x, b_z e_y) for every z. Its density at e_x and
e_y = s · e_x is exp(−e_x Σ_z max(a_z, s b_z)), the terms of x and y being their own; so

    x = y:  J(x, x) = 1 / Σ_z max(p(z)/p(x), q(z)/q(x))
    x ≠ y:  J(x, y) = ∫ ds / (Σ_z max(a_z, s b_z))²  over  p(y)/p(x) < s < q(y)/q(x),

whose sum is linear in s between the places a_z/b_z: on a piece A + B s, and the integral is
(s₂ − s₁) / ((A + B s₁)(A + B s₂)). The marginals of J are p and q; its diagonal is what the rule
``match`` keeps, at least (1 − TV)/(1 + TV) [Daliri et al. 2024; MATH §3].
"""

from __future__ import annotations

import itertools
import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hierspec.verifiers.formulas import total_variation

Floats = NDArray[np.float64]


def agreement(*distributions: ArrayLike) -> Floats:
    """Return P(all races are won by x) of two or more distributions [V] with shared noise → [V]."""
    rows = np.stack([np.asarray(row, dtype=np.float64) for row in distributions])
    out = np.zeros(rows.shape[1])
    for x in np.flatnonzero((rows > 0.0).all(0)):
        out[x] = 1.0 / (rows / rows[:, x : x + 1]).max(0).sum()
    return out


def joint_law(p: ArrayLike, q: ArrayLike) -> Floats:
    """Return P(p's race is won by x, q's by y) → [V, V]."""
    p, q = np.asarray(p, dtype=np.float64), np.asarray(q, dtype=np.float64)
    out = np.diag(agreement(p, q))
    for x in np.flatnonzero(p > 0.0):
        for y in np.flatnonzero(q > 0.0):
            if x != y:
                out[x, y] = _joint_probability(p / p[x], q / q[y], int(x), int(y))
    return out


def _joint_probability(a: Floats, b: Floats, x: int, y: int) -> float:
    """Return J(x, y) of two different tokens, a [V] = p/p(x) and b [V] = q/q(y)."""
    low, high = float(a[y]), 1.0 / float(b[x]) if b[x] > 0.0 else math.inf
    if not low < high:
        return 0.0
    breaks = np.divide(a, b, out=np.full_like(a, math.inf), where=b > 0.0)
    inside = np.unique(breaks[(breaks > low) & (breaks < high)])
    edges = [low, *inside.tolist(), high]
    total = 0.0
    for start, stop in itertools.pairwise(edges):
        constant = breaks >= stop  # where a_z is the larger throughout
        level, slope = float(a[constant].sum()), float(b[~constant].sum())
        begin = level + slope * start
        if math.isinf(stop):
            total += 1.0 / (slope * begin)
        else:
            total += (stop - start) / (begin * (level + slope * stop))
    return total


def least_agreement(p: ArrayLike, q: ArrayLike) -> float:
    """Return the lower bound (1 − TV)/(1 + TV) of the sum of :func:`agreement`."""
    rows = (np.asarray(row, dtype=np.float64) for row in (p, q))
    distance = float(total_variation(*rows))
    return (1.0 - distance) / (1.0 + distance)
