"""The planner's prices against the algorithm itself, for every shape that a plan can have."""

from __future__ import annotations

import dataclasses
from itertools import product

import numpy as np
import pytest

from hierspec.core.nodes import walk
from hierspec.planner.estimates import Chain, Estimates, ideal
from hierspec.planner.latency import latency
from hierspec.profiling.curves import joint_survival
from hierspec_lab.planning.simulated import (
    Records,
    ReplayedAcceptances,
    SampledAcceptances,
    build_root,
    constant_costs,
    simulate_chain,
)

SHAPES = {
    "plain": Chain((3,)),
    "plain of a smaller model": Chain((2,)),
    "single": Chain((0, 3), (5,)),
    "three": Chain((0, 1, 3), (3, 6)),
    "four": Chain((0, 1, 2, 3), (2, 3, 5)),
    "wide below": Chain((0, 1, 3), (6, 2)),
    "tail": Chain((0, 1, 3), (3, 4), tail=3),
    "tails": Chain((0, 1, 2, 3), (2, 3, 4), tail=2),
    "no bonus": Chain((0, 1, 2, 3), (2, 3, 4), dropped_bonus=(1,)),
    "tails, no bonus": Chain((0, 1, 2, 3), (2, 2, 3), tail=1, dropped_bonus=(1, 2)),
    "interleaved": Chain((0, 2, 3), (2, 3), order="interleaved"),
    "horizontal": Chain((0, 2, 3), (3, 4), order="horizontal"),
}


def estimates(seed: int = 0) -> Estimates:
    """Four models: curves that are no powers, and costs that depend on length and pair."""
    random, size = np.random.default_rng(seed), 65
    survival = np.full((4, 4, size), np.nan)
    verify_ms = np.zeros((4, 4, size))
    lengths = np.arange(size)
    for i in range(4):
        for k in range(i + 1, 4):
            rates = np.clip(random.uniform(0.55, 0.9) + 0.05 * np.sin(lengths + i), 0, 0.98)
            survival[i, k] = np.concatenate([[1.0], rates[1:].cumprod()])
            base, slope = 5.0**k * random.uniform(0.8, 1.2), random.uniform(0.1, 0.4)
            verify_ms[i, k] = base * (1 + slope * lengths / 4) + (lengths > 6) * 0.3 * base
    draft_ms = np.stack([5.0**i * (lengths * 0.9 + 0.3 * (lengths > 0)) for i in range(4)])
    without_bonus_ms = verify_ms * random.uniform(0.5, 1.0, (4, 4, 1))
    return Estimates(
        ("a", "b", "c", "d"),
        survival,
        draft_ms,
        verify_ms,
        5.0**3,
        verify_without_bonus_ms=without_bonus_ms,
    )


def windowed(seed: int = 0) -> Estimates:
    """The smallest model stops by itself: sometimes at once, the easier the later."""
    random = np.random.default_rng(seed)
    lengths = random.integers(0, 6, 500)
    ease = 0.4 + 0.09 * lengths
    whole = estimates(seed)
    joint = np.zeros((4, 6, 6))
    for k in range(1, 4):
        curves = (ease + 0.02 * k)[:, None] ** np.arange(6)
        joint[k] = joint_survival(lengths, curves)
    return dataclasses.replace(whole, joint_survival={0: joint})


def agrees(found, expected, errors: float = 4) -> bool:
    return abs(found.ms_per_token - expected) <= errors * found.standard_error + 1e-9 * expected


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("make", [estimates, windowed])
def test_prices_are_what_simulations_say(shape, make):
    """Four standard errors: with fresh seeds a right model fails once in 700 runs of the 24."""
    known, chain = make(1), SHAPES[shape]
    expected = latency(known, chain)
    found = simulate_chain(known, chain, "curves", rounds=3000, seed=7)
    assert agrees(found, expected.ms_per_token)
    assert found.standard_error < 0.02 * expected.ms_per_token
    assert found.mean_acceptance_length == pytest.approx(expected.tokens_per_call, rel=0.05)


@pytest.mark.parametrize("shape", ["three", "tail", "interleaved", "horizontal"])
def test_independent_acceptances(shape):
    """The price of the ideal estimates with the same first rates, and the same costs."""
    known, chain = estimates(2), SHAPES[shape]
    powers = known.survival[:, :, 1:2] ** np.arange(known.survival.shape[2])
    flat = dataclasses.replace(known, survival=powers)
    assert agrees(
        simulate_chain(known, chain, "iid", rounds=3000), latency(flat, chain).ms_per_token
    )


def test_artificial_costs():
    known, chain = estimates(3), SHAPES["four"]
    prices = constant_costs(known)
    assert prices == pytest.approx([1.2, 6.0, 30.0, 125.0])
    flat = ideal(prices, np.zeros((4, 4)).tolist())
    flat = dataclasses.replace(flat, survival=known.survival)
    found = simulate_chain(known, chain, "curves", "artificial", rounds=3000)
    assert agrees(found, latency(flat, chain).ms_per_token)
    assert simulate_chain(known, chain, "curves", prices, rounds=3000) == found
    assert found.levels[0].milliseconds == pytest.approx(1.2 * found.levels[0].calls)


def test_classes_of_text_weigh_the_same_tokens():
    hard, easy = estimates(4), estimates(5)
    both = dataclasses.replace(hard, classes=(hard, easy))
    chain = SHAPES["three"]
    found = simulate_chain(both, chain, rounds=4000)
    parts = [
        simulate_chain(one, chain, rounds=2000, seed=at) for at, one in enumerate((hard, easy))
    ]
    assert agrees(found, latency(both, chain).ms_per_token)
    assert found.ms_per_token == pytest.approx(sum(part.ms_per_token for part in parts) / 2)
    assert found.target_calls == 4000
    assert found.levels[0].calls == sum(part.levels[0].calls for part in parts)


def test_every_class_has_a_spread_however_few_rounds_there_are():
    both = dataclasses.replace(estimates(4), classes=(estimates(4), estimates(5)))
    found = simulate_chain(both, SHAPES["three"], rounds=2)
    assert found.target_calls == 4
    assert found.standard_error > 0


# Recorded drafts


def records(longest: int = 8, count: int = 400) -> Records:
    random = np.random.default_rng(0)
    kept = {
        (i, k): np.minimum(random.geometric(0.25 + 0.05 * i, count) - 1, longest).tolist()
        for i, k in product(range(4), range(4))
        if i < k
    }
    return Records({i: [longest] * count for i in range(3)}, kept)


def empirical(known: Estimates, recorded: Records) -> Estimates:
    """The same with the curves that the records give."""
    lengths = np.arange(known.survival.shape[2])
    survival = known.survival.copy()
    for pair, kept in recorded.kept.items():
        survival[pair] = (np.array(kept)[:, None] >= lengths).mean(0)
    return dataclasses.replace(known, survival=survival)


@pytest.mark.parametrize("budget", [1, 3, 8])
def test_a_recorded_draft_has_the_price_of_its_empirical_curve(budget):
    """To the last digit, once around: every draft counts once."""
    recorded, chain = records(), Chain((0, 3), (budget,))
    expected = latency(empirical(estimates(), recorded), chain)
    found = simulate_chain(estimates(), chain, recorded, rounds=400)
    assert found.ms_per_token == pytest.approx(expected.ms_per_token, rel=1e-12)
    assert found.mean_acceptance_length == pytest.approx(expected.tokens_per_call, rel=1e-12)
    assert simulate_chain(estimates(), chain, recorded, rounds=800).ms_per_token == pytest.approx(
        expected.ms_per_token, rel=1e-12
    )


@pytest.mark.parametrize(
    "chain",
    [
        Chain((0, 1, 3), (3, 4)),  # hand-ups of 4 … 7 tokens
        Chain((0, 1, 3), (2, 3), tail=2),
        Chain((0, 2, 3), (2, 2), order="interleaved"),
        Chain((0, 2, 3), (3, 4), order="horizontal"),
    ],
)
def test_recorded_plans_have_the_price_of_the_empirical_curves(chain):
    """These records are independent, so in order or drawn anew is all one."""
    recorded = records()
    expected = latency(empirical(estimates(), recorded), chain).ms_per_token
    assert agrees(simulate_chain(estimates(), chain, recorded, rounds=4000), expected)


def test_records_that_are_too_short_go_on_with_the_next():
    recorded = Records({0: [2, 2, 2]}, {(0, 1): [2, 1, 2]})
    source = ReplayedAcceptances(recorded, ideal([1, 2], [[None, 0.5]]))
    assert source.start_draft(0, 5) == 5
    assert source.kept(1, [0] * 5) == 3  # 2 of 2, then 1 of 2
    assert source.kept(1, [0]) == 1  # a hand-up that nobody announced: the third record
    assert source.kept(1, [0, 0, 0]) == 3
    with pytest.raises(ValueError, match="no recorded drafts of model 0 for model 2"):
        source.kept(2, [0])
    with pytest.raises(ValueError, match="no recorded drafts of model 1"):
        source.kept(2, [1])


def test_recorded_drafts_keep_the_lengths_they_had():
    known = windowed()
    recorded = Records({0: [3, 0, 1]}, {(0, 3): [2, 0, 1]})
    found = simulate_chain(known, Chain((0, 3), (2,)), recorded, rounds=3)
    assert found.levels[0].calls == 2 + 0 + 1
    assert found.num_tokens == (2 + 0 + 1) + 3
    check = known.verify_ms[0, 3]
    spent = known.draft_ms[0, 2] + known.draft_ms[0, 1] + check[2] + check[0] + check[1]
    assert found.ms_per_token == pytest.approx(spent / 6)


# Shapes as nodes


def test_shapes_as_nodes():
    for chain in SHAPES.values():
        nodes = list(walk(build_root(chain)))
        assert sorted(node.index for node in nodes) == list(range(len(nodes)))
    tail = build_root(SHAPES["tails"], ["a", "b", "c", "d"])
    assert [node.name for node in walk(tail)] == [
        "a", "b", "a (tail)", "b and tail", "c", "a (tail)", "c and tail", "d",
    ]  # fmt: skip
    middle = [getattr(node, "bonus", None) for node in walk(build_root(SHAPES["no bonus"]))]
    assert middle == [None, False, True, True]


def test_what_is_not_known_is_refused():
    known = estimates()
    known.survival[0, 1] = np.nan
    for chain in (SHAPES["three"], dataclasses.replace(SHAPES["three"], tail=1)):
        with pytest.raises(ValueError, match="nothing is known of a's drafts for b"):
            simulate_chain(known, chain, rounds=1)
    assert simulate_chain(known, SHAPES["single"], rounds=10).target_calls == 10


def test_curves_that_rise_by_a_hair():
    """Nobody can keep three tokens more often than two: then whoever keeps two keeps three."""
    known = ideal([1.0, 10.0], [[None, 0.5]])
    known.survival[0, 1, 3] = known.survival[0, 1, 2] + 1e-3
    source = SampledAcceptances(known, seed=0)
    assert {source.kept(1, [0] * 3) for _ in range(200)} == {0, 1, 3}
