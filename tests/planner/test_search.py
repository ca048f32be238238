"""The search: prices of many chains, the local search, whole plans.

Problems are drawn from fixed seeds. The searches are held against brute force over all subsets
and all budgets.
"""

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
from hierspec.planner.search import ALL_VARIATIONS, Space, Variations, plan

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
    answer = plan(estimates)
    found = [answer.best, *answer.runners_up]
    assert len({choice.chain.models for choice in found}) == 5
    assert [choice.ms for choice in found[:4]] == pytest.approx(sorted(by_levels.values())[:4])


def test_plain_decoding_is_an_answer():
    answer = plan(ideal([10, 12], [[None, 0.3]]))
    assert answer.best.chain == Chain((1,))
    assert answer.speedup == 1
    assert [choice.chain.models for choice in answer.runners_up] == [(0, 1)]
    assert plan(ideal([3.0], [])).best.chain == Chain((0,))
    worthless = plan(ideal([1, 2, 9], [[None, 0, 0], [None, None, 0]]))
    assert worthless.best.chain.plain


def test_drafts_that_continue_others_are_found():
    """Against brute force, look-ups among them: what is behind a draft costs rows alone."""
    gained = 0
    for seed in range(0, 40, 3):
        rng = np.random.default_rng(seed)
        estimates = random_measured(rng, 4, 5) if seed % 2 else random_ideal(rng, 4, 5)
        chains = [
            chain for chain in every_chain(estimates) if not stacks_a_window(chain, estimates)
        ]
        chains += [replace(chain, order="horizontal") for chain in chains if len(chain.models) == 3]
        best = PriceCache(estimates).price(chains).min()
        found = plan(estimates, variations=Variations(horizontal=True))
        assert found.best.ms == pytest.approx(best, rel=1e-9)
        gained += found.best.chain.order == "horizontal"
    assert gained


def stacks_a_window(chain, estimates):
    return any(estimates.stops_by_itself(model) for model in chain.models[1:-1])


def test_nothing_continues_several_drafts():
    _, estimates = random_problem(1, count=4)
    shapes = Variations(horizontal=True)
    space = Space(replace(estimates, multi_drafters=frozenset({1})), shapes)
    joined = [Chain((i, k, 3), (1, 1), "horizontal") for i, k in ((0, 1), (1, 2), (0, 2))]
    assert [space.contains(chain) for chain in joined] == [False, False, True]


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


@pytest.mark.parametrize("draft_ms", [-30.0, 0.0])
def test_a_search_ends_where_noise_has_made_times_absurd(draft_ms):
    known = ideal([0.01, 0.1, 1.0], [[None, 0.7, 0.6], [None, None, 0.8], [None] * 3], longest=8)
    wrong = np.full_like(known.draft_ms, draft_ms)
    wrong[:, 0] = 0.0
    known = replace(known, draft_ms=wrong, verify_ms=np.zeros_like(known.verify_ms))
    assert plan(known, variations=ALL_VARIATIONS).best.ms <= 0.0
