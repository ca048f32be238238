"""Races with shared noise: the closed form, proved by its marginals and the engine's rng."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from race_law import agreement, joint_law, least_agreement
from scipy.stats import chi2

from hierspec.core.distributions import race
from hierspec.core.rng import PhiloxRng


def laws(size):
    """Distributions of which some entries are 0."""
    rows = st.lists(st.integers(0, 20), min_size=size, max_size=size)
    return rows.filter(sum).map(lambda row: np.array(row, dtype=float) / sum(row))


@settings(max_examples=300, deadline=None)
@given(st.integers(2, 6).flatmap(lambda size: st.tuples(laws(size), laws(size))))
def test_each_race_draws_its_own_law(pair):
    """Whatever the other does: the target's token has law p exactly."""
    p, q = pair
    joint = joint_law(p, q)
    assert (joint >= 0.0).all()
    np.testing.assert_allclose(joint.sum(1), p, atol=1e-12)
    np.testing.assert_allclose(joint.sum(0), q, atol=1e-12)
    kept = float(agreement(p, q).sum())
    assert kept == pytest.approx(float(np.trace(joint)), abs=1e-12)
    tv = np.abs(p - q).sum() / 2
    assert least_agreement(p, q) - 1e-12 <= kept <= 1.0 - tv + 1e-12
    assert kept >= float((p * q).sum()) - 1e-12, "never below independent draws"


def test_the_bound_is_met():
    """Daliri et al.: no coupling without communication is better in the worst case."""
    size = 2000
    p, q = np.ones(size), np.ones(size)
    p[0], q[1] = 0.0, 0.0
    kept = agreement(p / p.sum(), q / q.sum()).sum()
    assert kept == pytest.approx(least_agreement(p / p.sum(), q / q.sum()), rel=1e-6)


def test_three_levels_agree_where_all_pairs_do():
    p, q, r = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.3, 0.5]), np.array([0.4, 0.4, 0.2])
    three = agreement(p, q, r)
    assert (three <= agreement(p, q) + 1e-15).all()
    np.testing.assert_allclose(agreement(p, p, q), agreement(p, q))


def test_the_rng_races_by_the_closed_form():
    """χ² over 10,000 places; a sound one fails once in a million."""
    p, q = np.array([0.5, 0.25, 0.15, 0.1]), np.array([0.1, 0.2, 0.3, 0.4])
    rows, counts = torch.tensor(np.stack([p, q])), np.zeros((4, 4))
    for seed in range(4):
        noise = PhiloxRng(seed, seed % 2).noise
        for position in range(2_500):
            (x,), (y,) = race(rows[:1], noise, position), race(rows[1:], noise, position)
            counts[x, y] += 1
    expected = 10_000 * joint_law(p, q)
    possible = expected > 0
    assert not counts[~possible].any()
    statistic = ((counts - expected)[possible] ** 2 / expected[possible]).sum()
    assert chi2.sf(statistic, possible.sum() - 1) > 1e-6
