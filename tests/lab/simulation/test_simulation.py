"""Latency by simulation, against the exact numbers of MATH §4."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from numbered_chains import chain

from hierspec.core.nodes import Concatenate, Draft
from hierspec.core.windows import EntropyWindow
from hierspec.engine.trace import ListTracer
from hierspec.planner.estimates import Chain, ideal
from hierspec.planner.latency import latency
from hierspec.verifiers.registry import get
from hierspec_lab.papers.p1.tables import FIRST_COSTS, TABLE_6, example
from hierspec_lab.simulation import CoinFlips, simulate

RATES = example(FIRST_COSTS, TABLE_6, 6).survival[..., 1]


def test_calls_and_drafts_are_counted():
    result = simulate(chain([4, 8], [3, 4, 5]), CoinFlips(RATES, seed=1), FIRST_COSTS, 500)
    small, mid, target = result.levels
    assert small.calls == 4 * mid.calls
    assert small.num_draft_tokens == small.calls
    assert small.milliseconds == pytest.approx(0.25 * small.calls)
    assert target.calls == result.target_calls == 500


def test_certain_acceptance_has_no_spread():
    rates = [[0.0, 1.0, 1.0]] * 3
    result = simulate(chain([2, 3]), CoinFlips(rates), [1.0, 2.0, 3.0], 10)
    # Level 1 gathers 3 in one round of 2 + bonus; the target adds its own: 4 tokens.
    assert (result.num_tokens, result.ms_per_token) == (40, (2 + 2 + 3) / 4)
    assert result.standard_error == pytest.approx(0.0, abs=1e-12)
    short = simulate(chain([2, 3], bonus=False), CoinFlips(rates), [1.0, 2.0, 3.0], 10)
    assert short.mean_acceptance_length == 5  # two rounds of 2 below, and the target's bonus


def test_costs_may_depend_on_the_call():
    rates = [[0.0, 1.0], [0.0, 0.0]]
    result = simulate(chain([3]), CoinFlips(rates), lambda model, n: 1.0 if model == 0 else n, 5)
    assert result.ms_per_token == (3 * 1.0 + 4) / 4


def test_concatenations_count_their_parts():
    parts = (Draft(0, "mid", 1, 1), Draft(1, "small", 0, 2))
    root = dataclasses.replace(
        chain([1]), index=3, model=2, below=Concatenate(2, "horizontal", parts)
    )
    rates = [[0.0, 0.0, 0.0], [0.0, 0.0, 1.0], [0.0] * 3]
    result = simulate(root, CoinFlips(rates), [1.0, 5.0, 20.0], 4)
    assert [level.num_accepted_tokens for level in result.levels] == [4, 0, 0, 0]
    assert result.mean_acceptance_length == 2
    assert result.ms_per_token == (5 + 2 + 20) / 2


def test_tracing():
    tracer = ListTracer()
    simulate(chain([2, 3]), CoinFlips([[0.0, 1.0, 1.0]] * 3), [1.0] * 3, 2, tracer)
    kinds = [(event["kind"], event["level"]) for event in tracer.events[:4]]
    assert kinds == [
        ("draft", "model 0"),
        ("check", "model 1"),
        ("draft", "model 1"),
        ("check", "model 2"),
    ]
    assert tracer.events[4]["base_length"] == 4


def test_what_needs_laws_is_refused():
    root = chain([2])
    window = dataclasses.replace(root, below=Draft(0, "d", 0, 2, EntropyWindow()))
    with pytest.raises(ValueError, match="window"):
        simulate(window, CoinFlips(RATES), FIRST_COSTS, 1)
    with pytest.raises(ValueError, match="naive"):
        simulate(dataclasses.replace(root, rule=get("naive")), CoinFlips(RATES), FIRST_COSTS, 1)


def test_the_exact_model_is_what_simulations_say():
    """50 problems, each within three standard errors.

    Seeds are fixed, so the outcome is too. With fresh ones a right model would fail in about one
    of eight runs of this test (0.27 % a problem); a model wrong by a percent in any of them shows
    as a shift of several standard errors (they are near 0.4 %).
    """
    errors = []
    for seed in range(50):
        random = np.random.default_rng(1000 + seed)
        count = int(random.integers(2, 5))
        rates = random.uniform(0.2, 0.95, (count, count))
        costs = np.sort(10 ** random.uniform(-1, 1.5, count)).tolist()
        budgets = tuple(int(t) for t in random.integers(1, 7, count - 1))
        models = Chain(tuple(range(count)), budgets)
        expected = latency(ideal(costs, rates.tolist()), models).ms_per_token
        rounds_run = 4000 if count == 2 else 2000
        result = simulate(chain(budgets), CoinFlips(rates.tolist(), seed), costs, rounds_run)
        errors.append((result.ms_per_token - expected) / result.standard_error)
        assert result.standard_error < 0.03 * expected
    errors = np.array(errors)
    assert np.abs(errors).max() < 3
    assert abs(errors.mean()) < 3 / math.sqrt(50)  # no bias: their mean has deviation 1/√50
