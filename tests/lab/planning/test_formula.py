"""P1's formula and the searches over it."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from formula_cases import random_problem

from hierspec.planner.estimates import Chain, Estimates, ideal
from hierspec.planner.latency import latency
from hierspec_lab.planning.corollary import corollary, rounds_from_survival
from hierspec_lab.planning.dynamic import build_graph, rank_chains


def enumerated(survival, length, budget):
    """γ by walking through every sequence of rounds."""

    def expected(held):
        if held >= budget:
            return 0.0
        total = 1.0
        for kept in range(length + 1):
            stays = survival[kept] - (survival[kept + 1] if kept < length else 0.0)
            total += stays * expected(held + kept + 1)
        return total

    return expected(0)


# γ


def test_renewal_of_measured_curves_is_the_enumeration():
    random = np.random.default_rng(0)
    curves = np.cumprod(np.concatenate((np.ones((4, 1)), random.random((4, 6))), 1), 1)
    solved = rounds_from_survival(curves.reshape(2, 2, 7), 6)
    assert solved.shape == (2, 2, 7, 7)
    for c, length, budget in itertools.product(range(4), range(7), range(7)):
        assert solved[c // 2, c % 2, length, budget] == pytest.approx(
            enumerated(curves[c], length, budget), rel=1e-13
        )


def test_unknown_parts_of_a_curve():
    curve = np.array([1.0, 0.7, 0.4, np.nan, np.nan])
    solved = rounds_from_survival(curve, 4)
    known = rounds_from_survival(curve[:3], 2)
    assert np.array_equal(solved[:3, :3], known)
    assert np.isfinite(solved[:3]).all()
    assert np.isnan(solved[3:, 4]).all()
    with pytest.raises(ValueError, match="known up to 4"):
        rounds_from_survival(curve, 5)


@pytest.mark.parametrize(("draft", "budget"), [(1, 12), (3, 12), (3, 8), (5, 3)])
def test_rounds_in_closed_form(draft, budget):
    alpha, gamma = 0.7, 0.0
    b = alpha ** (draft + 1)
    for s in range(budget):
        m, r = divmod(s, draft + 1)
        gamma += (1 - alpha) * (1 - b**m) / (1 - b) + b**m * (1 - alpha if r else 1.0)
    solved = rounds_from_survival(alpha ** np.arange(13), 12)
    assert solved[draft, budget] == pytest.approx(gamma, rel=1e-14)


def test_rounds_at_extreme_rates():
    length, budget = np.arange(13)[:, None], np.arange(13)[None]
    never, always = rounds_from_survival(np.array([0.0, 1.0])[:, None] ** np.arange(13), 12)
    assert (never == budget).all()  # a token a round
    assert (always == -(-budget // (length + 1))).all()  # T + 1 a round


# Corollary 3.1


def test_formula_and_its_parts():
    costs, rates = [1.0, 5.0, 40.0], [[0, 0.6, 0.3], [0, 0, 0.8], [0, 0, 0]]
    estimates = ideal(costs, rates)
    result = corollary(estimates, Chain((0, 1, 2), (3, 4)))
    # One call of the target, on what γ rounds of the middle level gathered.
    gamma, emitted = enumerated(0.6 ** np.arange(4), 3, 4), (1 - 0.8**5) / 0.2
    assert result.tokens_per_call == pytest.approx(emitted, rel=1e-14)
    assert result.spent == pytest.approx(
        (gamma * 3.0 / emitted, gamma * 5.0 / emitted, 40.0 / emitted), rel=1e-14
    )
    assert corollary(estimates, Chain((2,))).ms_per_token == 40.0
    # α = 1: V_1 = 1 · (5 + 3), which the target takes whole and adds one to.
    certain = ideal(costs, [[0, 1, 1], [0, 0, 1], [0, 0, 0]])
    assert corollary(certain, Chain((0, 1, 2), (3, 4))).ms_per_token == (40 + 5 + 3) / 5


def test_formula_is_an_upper_bound_where_budgets_overshoot():
    random = np.random.default_rng(2)
    for _ in range(50):
        estimates = random_problem(random, models=4, top=6)
        budgets = tuple(int(t) for t in random.integers(1, 7, 3))
        chain = Chain((0, 1, 2, 3), budgets)
        assert corollary(estimates, chain).ms_per_token >= latency(
            estimates, chain
        ).ms_per_token * (1 - 1e-13)


def test_a_level_without_a_bonus_is_priced_by_what_it_costs_then():
    """Exits after 1, 2 and 8 layers of 8, one token each [MATH §4]: passes a token, by hand."""
    a, b = 0.7, 0.8
    n = np.arange(9)
    survival, with_bonus = np.full((2, 3, 3, 9), np.nan)
    without = np.full((3, 3, 9), np.nan)
    layers = np.array([1, 2, 8]) / 8
    for i, k, rate in ((0, 1, a), (1, 2, b)):
        survival[i, k] = rate**n
        with_bonus[i, k] = layers[k]
        without[i, k] = np.where(n > 0, layers[k] - layers[i], layers[k])
    exits = Estimates(
        ("draft", "middle", "target"),
        survival,
        layers[:, None] * n,
        with_bonus,
        1.0,
        verify_without_bonus_ms=without,
    )
    kept = latency(exits, Chain((0, 1, 2), (1, 1))).ms_per_token
    dropped = latency(exits, Chain((0, 1, 2), (1, 1), dropped_bonus=(1,))).ms_per_token
    # With the bonus the middle level hands up two tokens where it keeps the drafted one.
    assert kept == pytest.approx((1 + 2 + 8) / 8 / (1 + b + a * b**2))
    assert dropped == pytest.approx((1 + (2 - 1) + 8) / 8 / (1 + b))


def test_the_formula_refuses_what_it_does_not_cover():
    estimates = ideal([1.0, 5.0, 40.0], [[0, 0.6, None], [0, 0, 0.8], [0, 0, 0]])
    for chain in (
        Chain((0, 1, 2), (3, 4), tail=1),
        Chain((0, 1, 2), (3, 4), order="horizontal"),
        Chain((0, 1, 2), (3, 4), dropped_bonus=(1,)),
    ):
        with pytest.raises(ValueError, match="exact latency model"):
            corollary(estimates, chain)
    with pytest.raises(ValueError, match="nothing is known of model 0's drafts for model 2"):
        corollary(estimates, Chain((0, 2), (3,)))


# Searches


def every_chain(estimates):
    below, top = estimates.target, estimates.max_budget
    for count in range(below + 1):
        for models in itertools.combinations(range(below), count):
            levels = (*models, below)
            if all(estimates.can_draft(i, k) for i, k in itertools.pairwise(levels)):
                for budgets in itertools.product(range(1, top + 1), repeat=count):
                    yield Chain(levels, budgets)


def brute_force(estimates):
    """(price, chain) of every chain, by the formula."""
    return [(corollary(estimates, chain).ms_per_token, chain) for chain in every_chain(estimates)]


@pytest.mark.parametrize("seed", range(24))
def test_search_is_brute_force(seed):
    random = np.random.default_rng(seed)
    estimates = random_problem(random, measured=seed % 2 == 1, gaps=seed % 4 > 1)
    table = build_graph(estimates)
    found = rank_chains(table)
    every = brute_force(estimates)
    least = min(every)[0]
    assert found[0][0] == pytest.approx(least, rel=1e-12)
    assert corollary(estimates, found[0][1]).ms_per_token == pytest.approx(least, rel=1e-12)
    # Runners-up: the best for every model below the target and its budget, plain decoding too.
    ends = {}
    for price, chain in every:
        end = (chain.models[-2:], chain.budgets[-1:])
        ends[end] = min(ends.get(end, math.inf), price)
    assert {(c.models[-2:], c.budgets[-1:]) for _, c in found} == set(ends)
    for price, chain in found:
        assert price == pytest.approx(ends[chain.models[-2:], chain.budgets[-1:]], rel=1e-12)
        assert corollary(estimates, chain).ms_per_token == pytest.approx(price, rel=1e-12)
    assert [price for price, _ in found] == sorted(price for price, _ in found)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("most", [1, 2, 3, 4, 9])
def test_a_largest_number_of_models(seed, most):
    estimates = random_problem(np.random.default_rng(seed), gaps=seed % 2 == 1)
    price, chain = rank_chains(build_graph(estimates), max_models=most)[0]
    allowed = [(p, c) for p, c in brute_force(estimates) if len(c.models) <= most]
    assert len(chain.models) <= most
    assert price == pytest.approx(min(allowed)[0], rel=1e-12)
    assert corollary(estimates, chain).ms_per_token == pytest.approx(price, rel=1e-12)


def with_memory(estimates, random):
    """Owners drawn from few, so that several models share one, some of them the target's."""
    count = len(estimates.names)
    owners = tuple(f"w{random.integers(0, 4)}" for _ in range(count))
    sizes = {f"w{i}": int(random.integers(0, 10)) for i in range(4)}
    return Estimates(
        estimates.names,
        estimates.survival,
        estimates.draft_ms,
        estimates.verify_ms,
        estimates.plain_ms,
        estimates.max_budget,
        owners,
        sizes,
    )


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("most", [None, 3])
def test_a_memory_budget(seed, most):
    """Every end state at every budget between the target's bytes and all bytes."""
    random = np.random.default_rng(seed)
    estimates = with_memory(random_problem(random, models=5, top=2, gaps=seed % 3 == 0), random)
    table, every = build_graph(estimates), brute_force(estimates)
    least, all_bytes = estimates.bytes([4]), estimates.bytes(range(5))
    for budget in range(least, all_bytes + 2):
        ends = {}
        for price, chain in every:
            if estimates.bytes(chain.models) <= budget and len(chain.models) <= (most or 9):
                end = (chain.models[-2:], chain.budgets[-1:])
                ends[end] = min(ends.get(end, math.inf), price)
        found = rank_chains(table, max_models=most, memory=budget)
        assert {(c.models[-2:], c.budgets[-1:]) for _, c in found} == set(ends)
        for price, chain in found:
            assert estimates.bytes(chain.models) <= budget
            assert price == pytest.approx(ends[chain.models[-2:], chain.budgets[-1:]], rel=1e-12)
            assert corollary(estimates, chain).ms_per_token == pytest.approx(price, rel=1e-12)


def test_plain_decoding_is_a_candidate():
    estimates = ideal([30.0, 33.0], [[0, 0.5], [0, 0]])
    assert rank_chains(build_graph(estimates))[0] == (33.0, Chain((1,)))
    useless = ideal([0.0, 33.0], [[0, 0.0], [0, 0]])
    assert rank_chains(build_graph(useless))[0][1].plain  # no worse than a draft that is never kept
    alone = ideal([33.0], [[0]])
    assert rank_chains(build_graph(alone)) == [(33.0, Chain((0,)))]


def test_mistakes_of_a_search():
    estimates = ideal([1.0, 33.0], [[0, 0.5], [0, 0]], max_budget=70)
    with pytest.raises(ValueError, match="measured up to 64 tokens"):
        build_graph(estimates)
    with pytest.raises(ValueError, match="at least 1, not 0"):
        build_graph(ideal([1.0, 33.0], [[0, 0.5], [0, 0]], max_budget=0))
    with pytest.raises(ValueError, match="counts the target"):
        rank_chains(build_graph(ideal([1.0, 33.0], [[0, 0.5], [0, 0]])), max_models=0)
    known = ideal([1.0, 33.0], [[0, 0.5], [0, 0]], memory=[1, 10])
    with pytest.raises(ValueError, match="the target alone needs 10 bytes"):
        rank_chains(build_graph(known), memory=9)
