"""Plans within limits, of every shape, and the lower bound on all of them."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from planner_cases import (
    every_chain,
    random_chain,
    random_ideal,
    random_measured,
    random_order,
    random_problem,
)

from hierspec.planner.estimates import Chain, ideal
from hierspec.planner.latency import PriceCache, latency
from hierspec.planner.search import ALL_VARIATIONS
from hierspec_lab.papers.p1.tables import FIRST_COSTS, SECOND_COSTS, TABLE_6, TABLE_7, example
from hierspec_lab.planning.bound import lower_bound
from hierspec_lab.planning.concatenations import concatenations
from hierspec_lab.planning.search import plan


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


def test_the_bound_of_the_second_example():
    estimates = example(SECOND_COSTS, TABLE_7, 6)
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


@pytest.mark.parametrize("latency_model", ["exact", "corollary"])
def test_limits_are_kept(latency_model):
    known = example(FIRST_COSTS, TABLE_6, 6)
    sizes = dict(zip(known.names, (1, 2, 4, 8, 16, 32), strict=True))
    estimates = replace(known, max_budget=7, owners=known.names, memory=sizes)
    free, few, small, one = (
        plan(estimates, latency_model=latency_model, top=8, **limits)
        for limits in ({}, {"max_models": 3}, {"memory": 45}, {"max_models": 1})
    )
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


def test_plain_decoding_attains_its_bound():
    answer = plan(ideal([10, 12], [[None, 0.3]]))
    assert (answer.best.chain, answer.lower_bound) == (Chain((1,)), 12)


def test_what_makes_several_drafts_is_in_no_order():
    known = example(SECOND_COSTS, TABLE_7, 6)
    estimates = replace(known, multi_drafters=frozenset({1}))
    used = {i for _, chain in concatenations(estimates, range(5)) for i in chain.models}
    assert used == {0, 2, 3, 4, 5}
