"""Searches by P1's formula, and the product's search from its plans."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from formula_cases import random_problem

from hierspec.planner import search
from hierspec.planner.estimates import ideal
from hierspec_lab.papers.p1.tables import FIRST_COSTS, SECOND_COSTS, TABLE_6, TABLE_7, example
from hierspec_lab.planning.search import plan


@pytest.mark.parametrize(
    ("costs", "rates", "latencies"),
    [
        (FIRST_COSTS, TABLE_6, [14.3659, 11.2106, 10.6565, 10.6345, 10.6171]),
        (SECOND_COSTS, TABLE_7, [19.3089, 17.1050, 15.5837, 15.5202, 15.5201]),
    ],
)
def test_the_papers_examples(costs, rates, latencies):
    """By P1's formula with the 2..6 largest models (MATH §4); the exact model is never above."""
    for count, expected in zip(range(2, 7), latencies, strict=True):
        estimates = example(costs, rates, count)
        answer = plan(estimates, latency_model="corollary")
        assert answer.best.ms == pytest.approx(expected, abs=5e-5)
        exact = plan(estimates)
        assert exact.best.ms <= answer.best.ms * (1 + 1e-12)
        assert exact.lower_bound <= exact.best.ms
        assert answer.lower_bound <= answer.best.ms


@pytest.mark.parametrize("seed", range(20))
def test_the_products_search_finds_as_fast_a_plan_without_the_formula(seed):
    estimates = random_problem(np.random.default_rng(seed), measured=seed % 2 == 1, top=5)
    assert search.plan(estimates).best.ms == pytest.approx(plan(estimates).best.ms, rel=1e-12)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"latency_model": "wald"}, "corollary"),
        ({"latency_model": "corollary", "variations": search.ALL_VARIATIONS}, "exact"),
    ],
)
def test_refusals(options, word):
    with pytest.raises(ValueError, match=word):
        plan(ideal([1, 9], [[None, 0.5]]), **options)


def test_the_formula_and_its_bound_read_the_same_curves():
    known = ideal([1.0, 3.0, 20.0], [[0, 0.8, 0.6], [0, 0, 0.7], [0, 0, 0]])
    easy = ideal([1.0, 3.0, 20.0], [[0, 0.9, 0.8], [0, 0, 0.9], [0, 0, 0]])
    hard = ideal([1.0, 3.0, 20.0], [[0, 0.2, 0.1], [0, 0, 0.2], [0, 0, 0]])
    answer = plan(replace(known, classes=(easy, hard)), latency_model="corollary")
    assert answer.best.ms == plan(known, latency_model="corollary").best.ms
    assert answer.lower_bound <= answer.best.ms
