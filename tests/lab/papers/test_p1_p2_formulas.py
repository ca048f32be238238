"""P1's linear program, P2's orders: the product's search and exact model agree."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from formula_cases import random_problem
from linear_program import solve

from hierspec.planner.estimates import Chain, ideal
from hierspec.planner.latency import latency
from hierspec_lab.papers.p2.formula import (
    compare_orders,
    expected_tokens,
    horizontal_speedup,
    horizontal_tokens,
    interleaved_speedup,
    interleaved_tokens,
)
from hierspec_lab.planning.corollary import corollary
from hierspec_lab.planning.dynamic import build_graph, rank_chains

# P1


@pytest.mark.parametrize("seed", range(100))
def test_the_linear_program_is_the_search(seed):
    random = np.random.default_rng(seed)
    table = build_graph(random_problem(random, measured=seed % 2 == 1, gaps=seed % 4 > 1))
    least = rank_chains(table)[0][0]
    value, chain = solve(table)
    assert corollary(table.estimates, chain).ms_per_token == pytest.approx(least, rel=1e-8)
    assert value == pytest.approx(least, rel=1e-8)


def test_a_target_alone_is_its_own_chain():
    assert solve(build_graph(ideal([33.0], [[0]]))) == (33.0, Chain((0,)))


# P2


def test_tokens_of_a_round():
    assert (expected_tokens([0.0, 1.0], 5) == [1.0, 6.0]).all()
    for rate in (1e-9, 0.1, 0.8, 0.99, 1 - 1e-9, 1 - 1e-13):
        by_sum = sum(rate**m for m in range(6))
        assert float(expected_tokens(rate, 5)) == pytest.approx(by_sum, rel=1e-15)


def test_speedups_of_the_interleaved_order():
    lengths = (0, 1, 2, 3, 4, 8, 16)
    values = [round(float(interleaved_speedup(0.8, 0.5, 0.1, 0.1, n, 4)), 4) for n in lengths]
    assert values == [2.4011, 1.7094, 1.4768, 1.3705, 1.3074, 1.1642, 0.9804]


def test_special_cases_of_the_interleaved_order():
    """P2's remarks below Theorem 3.2, and the limits."""
    assert float(interleaved_tokens(0.8, 0.5, 0, 4)) == pytest.approx(
        float(expected_tokens(0.8, 4))
    )
    assert float(interleaved_tokens(0.5, 0.5, 6, 1)) == pytest.approx(
        float(expected_tokens(0.5, 7))
    )
    assert float(interleaved_tokens(0.9, 0.5, 400, 3)) == pytest.approx(2.0)
    assert float(interleaved_tokens(1.0, 1.0, 3, 2)) == 9
    assert float(interleaved_tokens(0.8, 0.5, 3, 0)) == 1


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.8, 1.0])
@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
def test_orders_agree_with_the_exact_model(alpha, beta):
    c, c_s = 0.2, 0.3
    costs, rates = [c * c_s, c, 1.0], [[0, 0.7, beta], [0, 0, alpha], [0, 0, 0]]
    estimates = ideal(costs, rates)
    for n, m in itertools.product((1, 2, 5), (1, 3, 4)):
        mixed = latency(estimates, Chain((0, 1, 2), (n, m), order="interleaved"))
        assert mixed.tokens_per_call == pytest.approx(
            float(interleaved_tokens(alpha, beta, n, m)), rel=1e-12
        )
        assert 1 / mixed.ms_per_token == pytest.approx(
            float(interleaved_speedup(alpha, beta, c, c_s, n, m)), rel=1e-12
        )
        in_line = latency(estimates, Chain((0, 1, 2), (n, m), order="horizontal"))
        assert in_line.tokens_per_call == pytest.approx(
            float(horizontal_tokens(alpha, beta, n, m)), rel=1e-12
        )
        assert 1 / in_line.ms_per_token == pytest.approx(
            float(horizontal_speedup(alpha, beta, c, c_s, n, m)), rel=1e-12
        )


def test_interleaving_never_beats_both_single_drafts():
    random = np.random.default_rng(0)
    lengths = np.arange(200)
    for _ in range(500):
        alpha, beta, c, c_s = random.random(4)
        n, m = random.integers(1, 12, 2)
        mixed = float(interleaved_speedup(alpha, beta, c, c_s, n, m))
        mid = horizontal_speedup(alpha, beta, c, c_s, 0, lengths).max()
        small = horizontal_speedup(alpha, beta, c, c_s, lengths, 0).max()
        assert mixed <= max(mid, small)
        if alpha >= beta:  # the same models in line, at the same cost
            assert horizontal_tokens(alpha, beta, n * m, m) >= mixed * (
                1 + m * c + m * n * c * c_s
            ) * (1 - 1e-12)


def test_comparing_the_orders():
    found = compare_orders(0.8, 0.5, 0.1, 0.1)
    assert [ordering.name for ordering in found] == [
        "horizontal", "mid", "small", "interleaved", "plain",
    ]  # fmt: skip
    best, mid, *_ = found
    assert (best.n, best.m, round(best.speedup, 4)) == (3, 4, 2.6014)
    assert (mid.n, mid.m, round(mid.speedup, 4)) == (0, 6, 2.4696)
    assert best.tokens == pytest.approx(1 + 0.8 + 0.64 + 0.512 + 0.4096 * (1 + 0.875))
    assert compare_orders(0.1, 0.1, 2.0, 0.9)[0].name == "plain"
