"""Random problems and chains of the planner."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np

from hierspec.planner.estimates import Chain, Estimates, ideal


def random_ideal(rng, count, budget, longest=64):
    costs = np.sort(10 ** rng.uniform(-2, 2, count))
    quality = np.sort(rng.uniform(0.2, 1, count))
    rates = 1 - np.abs(quality[:, None] - quality) - rng.uniform(0, 0.2, (count, count))
    return ideal(costs.tolist(), np.clip(rates, 0, 1).tolist(), None, budget, longest)


def random_measured(rng, count, budget, longest=24, window=True):
    """Any falling survival curves, any rising costs, and a smallest drafter that may stop."""
    costs = np.sort(10 ** rng.uniform(-2, 1, count))
    steps = np.concatenate([[0], rng.uniform(0.5, 1.5, longest)])
    survival, verify = np.full((2, count, count, longest + 1), np.nan)
    for i, k in itertools.combinations(range(count), 2):
        survival[i, k] = np.concatenate([[1], np.cumprod(rng.uniform(0.3, 1, longest))])
        verify[i, k] = costs[k] * (1 + np.cumsum(rng.uniform(0, 0.1, longest + 1)))
    # Dropping a bonus may cost anything less.
    without_bonus = verify * rng.uniform(0.3, 1, (count, count, 1))
    joint_survival = {}
    if window:
        stops = np.concatenate([[0], rng.dirichlet(np.ones(budget))])
        joint = np.full((count, budget + 1, budget + 1), np.nan)
        for k, n in itertools.product(range(1, count), range(budget + 1)):
            keeps = np.concatenate([[1], np.cumprod(rng.uniform(0.3, 1, budget))])
            joint[k, n] = stops[n] * keeps * (np.arange(budget + 1) <= n)
        joint_survival[0] = joint
    return Estimates(
        names=tuple(f"model {i}" for i in range(count)),
        survival=survival,
        draft_ms=costs[:, None] * np.cumsum(steps),
        verify_ms=verify,
        plain_ms=float(costs[-1]),
        max_budget=budget,
        joint_survival=joint_survival,
        verify_without_bonus_ms=without_bonus,
    )


def random_problem(seed, count=5, budget=6):
    rng = np.random.default_rng(seed)
    longest = (64, 12)[seed % 2]  # the shorter one cuts long hand-ups
    if seed % 3:
        return rng, random_ideal(rng, count, budget, longest)
    return rng, random_measured(rng, count, budget, longest)


def random_chain(rng, estimates, tail=3):
    target = estimates.target
    depth = int(rng.integers(0, target + 1))
    levels = tuple(sorted(rng.choice(target, depth, replace=False).tolist()))
    chain = Chain(
        (*levels, target), tuple(rng.integers(1, estimates.max_budget + 1, depth).tolist())
    )
    if depth < 2:
        return chain
    dropped = tuple(model for model in levels[1:] if rng.random() < 0.3)
    return replace(chain, dropped_bonus=dropped, tail=int(rng.integers(0, tail + 1)))


def random_order(rng, estimates):
    order = ("interleaved", "horizontal")[int(rng.integers(2))]
    small = 1 if estimates.joint_survival and order == "interleaved" else 0
    mid = int(rng.integers(small + 1, estimates.target))
    budgets = tuple(rng.integers(1, estimates.max_budget + 1, 2).tolist())
    return Chain((small, mid, estimates.target), budgets, order=order)


def every_chain(estimates, deepest=None):
    target, budgets = estimates.target, range(1, estimates.max_budget + 1)
    for depth in range((target if deepest is None else deepest) + 1):
        for levels in itertools.combinations(range(target), depth):
            for chosen in itertools.product(budgets, repeat=depth):
                yield Chain((*levels, target), chosen)
