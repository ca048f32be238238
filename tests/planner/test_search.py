"""The search: prices of many chains, the lower bound, the local search, whole plans.

Problems are drawn from fixed seeds. The searches are held against brute force over all subsets
and all budgets, the bound against whatever chains may come.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from formula_cases import COSTS_1, COSTS_2, RATES_1, RATES_2, square

from hierspec.planner.bound import lower_bound
from hierspec.planner.concatenations import concatenations
from hierspec.planner.estimates import Chain, Estimates, ideal
from hierspec.planner.latency import PriceCache, latency
from hierspec.planner.search import ALL_VARIATIONS, Variations, plan


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


# Prices of many chains


@pytest.mark.parametrize("seed", range(12))
def test_many_at_once_cost_what_each_costs(seed):
    rng, estimates = random_problem(seed)
    chains = [random_chain(rng, estimates) for _ in range(40)]
    chains.append(random_order(rng, estimates))
    alone = [latency(estimates, chain).ms_per_token for chain in chains]
    np.testing.assert_allclose(PriceCache(estimates).price(chains), alone, rtol=1e-12)


def test_what_cannot_be_drafted_costs_everything():
    estimates = ideal([1, 2, 9], [[None, 0.5, None], [None, None, 0.8]])
    ms = PriceCache(estimates).price(
        [
            Chain((0, 2), (3,)),
            Chain((0, 1, 2), (3, 2)),
            Chain((0, 1, 2), (3, 2), order="horizontal"),
        ]
    )
    assert np.isinf(ms).tolist() == [True, False, True]


@pytest.mark.parametrize("seed", range(9))
def test_orders_at_once_cost_what_each_costs(seed):
    rng = np.random.default_rng(seed)
    stops = seed % 3 == 2  # the smallest, which is then only appended
    measured = random_measured(rng, 4, 5, longest=40, window=stops)
    estimates = random_ideal(rng, 4, 5) if seed % 3 == 1 else measured
    found = list(concatenations(estimates, range(4)))
    assert len(found) == (4 if stops else 6)
    for ms, chain in found:
        assert ms == pytest.approx(latency(estimates, chain).ms_per_token, rel=1e-12)
        budgets = itertools.product(range(1, 6), repeat=2)
        others = [latency(estimates, replace(chain, budgets=b)).ms_per_token for b in budgets]
        assert ms == pytest.approx(min(others), rel=1e-12)


# The lower bound


def test_the_bound_of_the_second_example():
    estimates = ideal(COSTS_2, square(RATES_2))
    assert lower_bound(estimates, usable=(3, 4)).ms == pytest.approx(15.884, abs=5e-4)


@pytest.mark.parametrize("seed", range(15))
def test_nothing_goes_below_the_bound(seed):
    rng, estimates = random_problem(seed)
    chains = [random_chain(rng, estimates) for _ in range(60)]
    orders = [random_order(rng, estimates) for _ in range(15)]
    bounds = {
        "plain": lower_bound(estimates).ms,
        "three": lower_bound(estimates, max_models=3).ms,
        "two": lower_bound(estimates, max_models=2).ms,
        "tails": lower_bound(estimates, tail=3).ms,
        "orders": lower_bound(estimates, tail=3, orders=True).ms,
    }
    assert bounds["plain"] <= bounds["three"] <= bounds["two"]
    assert bounds["orders"] <= bounds["tails"] <= bounds["plain"]
    below = 1 - 1e-12
    for chain in chains:
        ms = latency(estimates, chain).ms_per_token
        assert ms >= bounds["tails"] * below
        if not chain.tail:
            assert ms >= bounds["plain"] * below
            assert len(chain.models) > 3 or ms >= bounds["three"] * below
            assert len(chain.models) > 2 or ms >= bounds["two"] * below
    for chain in orders:
        assert latency(estimates, chain).ms_per_token >= bounds["orders"] * below


def test_one_draft_attains_its_bound():
    """Over two models it is the best draft's price, unless that wants more than the budget."""
    attained = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        estimates = random_ideal(rng, 5, 40) if seed % 2 else random_measured(rng, 5, 40, 50)
        bound = lower_bound(estimates, max_models=2)
        pairs = list(every_chain(estimates, 1))
        best = PriceCache(estimates).price(pairs).min()
        assert latency(estimates, bound.chain).ms_per_token >= best * (1 - 1e-12)
        if max(bound.chain.budgets, default=0) < 40:
            attained += 1
            assert bound.ms == pytest.approx(best, rel=1e-12)
    assert attained >= 10


# Plans


def test_plans_against_brute_force():
    """All subsets and budgets of 100 problems of 4 models: all but two are found exactly."""
    ratios = []
    for seed in range(100):
        _, estimates = random_problem(seed, count=4, budget=5)
        if estimates.joint_survival:  # who stops by itself may only be lowest
            estimates = replace(estimates, joint_survival={})
        best = PriceCache(estimates).price(every_chain(estimates)).min()
        ratios.append(plan(estimates).best.ms / best)
    ratios = np.array(ratios)
    assert (ratios > 1 - 1e-9).all()
    assert (ratios < 1 + 1e-9).sum() >= 98
    assert ratios.max() < 1.005


def test_plans_with_a_drafter_that_stops_by_itself_against_brute_force():
    for seed in range(0, 30, 3):
        _, estimates = random_problem(seed, count=4, budget=5)
        assert estimates.joint_survival
        best = PriceCache(estimates).price(every_chain(estimates)).min()
        assert plan(estimates).best.ms == pytest.approx(best, rel=1e-9)


@pytest.mark.parametrize("seed", range(8))
def test_runners_up(seed):
    _, estimates = random_problem(seed, count=4, budget=5)
    estimates = replace(estimates, joint_survival={})
    by_levels: dict[tuple[int, ...], float] = {}
    chains = list(every_chain(estimates))
    for chain, ms in zip(chains, PriceCache(estimates).price(chains), strict=True):
        by_levels[chain.models] = min(ms, by_levels.get(chain.models, np.inf))
    answer = plan(estimates, top=4)
    found = [answer.best, *answer.runners_up]
    assert len({choice.chain.models for choice in found}) == 4
    assert [choice.ms for choice in found] == pytest.approx(sorted(by_levels.values())[:4])


def test_limits_are_kept():
    estimates = ideal(COSTS_1, square(RATES_1), max_budget=7, memory=[1, 2, 4, 8, 16, 32])
    free = plan(estimates, top=8)
    few = plan(estimates, max_models=3, top=8)
    small = plan(estimates, memory=45, top=8)
    one = plan(estimates, max_models=1, top=8)
    assert free.best.ms < few.best.ms < one.best.ms == 33
    assert free.best.ms < small.best.ms
    for answer in (free, few, small):
        assert answer.lower_bound <= answer.best.ms * (1 + 1e-12)
    chosen = [choice.chain for choice in (few.best, *few.runners_up)]
    assert max(len(chain.models) for chain in chosen) == 3
    chosen = [choice.chain for choice in (small.best, *small.runners_up)]
    assert max(estimates.bytes(chain.models) for chain in chosen) <= 45
    assert 4 not in small.best.chain.models  # 16 + 32 > 45
    budgets = [max(c.chain.budgets, default=0) for c in (free.best, *free.runners_up)]
    assert max(budgets) <= 7


def test_plain_decoding_is_an_answer():
    answer = plan(ideal([10, 12], [[None, 0.3]]))
    assert answer.best.chain == Chain((1,))
    assert answer.speedup == 1
    assert answer.lower_bound == 12
    assert [choice.chain.models for choice in answer.runners_up] == [(0, 1)]
    assert plan(ideal([3.0], [])).best.chain == Chain((0,))
    worthless = plan(ideal([1, 2, 9], [[None, 0, 0], [None, None, 0]]))
    assert worthless.best.chain.plain


@pytest.mark.parametrize("seed", range(6))
def test_more_shapes_never_make_it_slower(seed):
    _, estimates = random_problem(seed, count=5, budget=6)
    usual, more = plan(estimates), plan(estimates, variations=ALL_VARIATIONS)
    assert usual.best.chain.order == "chain"
    assert not usual.best.chain.tail
    assert not usual.best.chain.dropped_bonus
    assert more.best.ms <= usual.best.ms * (1 + 1e-12)
    assert more.lower_bound <= more.best.ms * (1 + 1e-12)
    priced = latency(estimates, more.best.chain).ms_per_token
    assert more.best.ms == pytest.approx(priced, rel=1e-12)


def test_tails_and_dropped_bonuses_are_found():
    """Against brute force where both matter."""
    rng = np.random.default_rng(5)
    gained = 0
    for _ in range(8):
        estimates = random_ideal(rng, 3, 5)
        chains = list(every_chain(estimates))
        for chain in [chain for chain in chains if len(chain.models) == 3]:
            for tail, dropped in itertools.product(range(3), ((), (1,))):
                chains.append(replace(chain, tail=tail, dropped_bonus=dropped))
        best = PriceCache(estimates).price(chains).min()
        found = plan(estimates, variations=Variations(tail=2, dropped_bonus=True))
        assert found.best.ms == pytest.approx(best, rel=1e-9)
        gained += found.best.ms < plan(estimates).best.ms * (1 - 1e-9)
    assert gained


def test_refusals():
    estimates = ideal([1, 9], [[None, 0.5]])
    for options, word in [
        ({"top": 0}, "at least 1"),
        ({"max_models": 0}, "at least 1"),
        ({"memory": 5}, "memory_bytes"),
    ]:
        with pytest.raises(ValueError, match=word):
            plan(estimates, **options)


def test_the_bound_is_not_above_the_plan_by_rounding():
    known = ideal([2.0**i for i in range(14)], [[0.9] * 14] * 14, max_budget=60)
    answer = plan(known)
    assert answer.lower_bound <= answer.best.ms
