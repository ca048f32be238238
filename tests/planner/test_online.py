"""The plan of every next round: little harm whatever drafts do, and gains near the best plan's."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from estimate_cases import estimates, rates
from numbered_chains import chain as numbered
from tabular_cases import V, chain, continued, models

from hierspec.core.nodes import walk
from hierspec.core.windows import Counts
from hierspec.engine.control import label
from hierspec.exact.certificate import certify_tree
from hierspec.planner.estimates import Chain
from hierspec.planner.online.acceptance_estimate import (
    Evidence,
    add_tests,
    fade,
    predict_passes,
    shift_survival,
    shifts_of,
)
from hierspec.planner.online.controller import OnlineController
from hierspec.planner.online.prices import counts_of_levels, spent_ms, worst_ms

TIGHT = 1e-12


@pytest.fixture(scope="module")
def controller():
    return OnlineController(numbered([4, 6]), estimates(), Chain((0, 1, 2), (4, 6)))


@pytest.mark.parametrize("rule", ["tokenwise", "block"])
def test_the_online_controller_is_lossless(rule):
    root = chain(models("random", 3, seed=8), [rule] * 2, [1, 1])
    known = dataclasses.replace(estimates((1.0, 2.0, 9.0), rates(0.6, 0.8, 0.5)), max_budget=2)
    online = OnlineController(root, known, Chain((0, 1, 2), (1, 1)))
    online.first_wait, online.longest_wait = 1, 2
    met = []
    online_plan = online.plan

    class Seen:
        root, plans = online.root, online.plans
        initial, update = online.initial, online.update

        def plan(self, state):
            met.append(label(online_plan(state)))
            return online_plan(state)

    assert certify_tree(root, V, 5, controller=Seen()).tv < TIGHT
    assert len(set(met)) > 2  # it did choose


# --- levels that a drafter continues

TAIL, HORIZONTAL = Chain((0, 1, 2), (2, 4), tail=3), Chain((0, 1, 2), (3, 4), "horizontal")


def test_chains_of_levels_that_a_drafter_continues():
    assert TAIL.levels == ((0, 2), (1, 4), (0, 3))
    assert HORIZONTAL.levels == ((1, 4), (0, 3))
    for whole in (TAIL, HORIZONTAL):
        assert whole.with_budgets([budget for _, budget in whole.levels]) == whole
    assert TAIL.with_budgets([0, 4, 3]) == HORIZONTAL
    assert TAIL.with_budgets([2, 4, 0]) == Chain((0, 1, 2), (2, 4))
    assert HORIZONTAL.with_budgets([0, 5]) == Chain((0, 2), (5,))
    assert HORIZONTAL.with_budgets([4, 0]) == Chain((1, 2), (4,))
    assert TAIL.with_budgets([0, 0, 0]) == HORIZONTAL.with_budgets([0, 0]) == Chain((2,))
    assert TAIL.describe(lambda model, n: f"m{model} {n}") == "m0 2 > m1 4 + m0 3"


@pytest.mark.parametrize(
    ("first", "rest", "expected"),
    [  # drafts, drafted, accepted, rejected: as the round counts them → as the levels have them
        (Counts(1, 7, 2, 1), Counts(), [Counts(1, 4, 2, 1), Counts(1, 3, 0, 0)]),
        (Counts(), Counts(1, 7, 5, 1), [Counts(1, 4, 4, 0), Counts(1, 3, 1, 1)]),
        (Counts(), Counts(1, 6, 6, 0), [Counts(1, 4, 4, 0), Counts(1, 2, 2, 0)]),
        (Counts(1, 4, 4, 0), Counts(), [Counts(1, 4, 4, 0), Counts()]),  # nothing continued it
        (Counts(1, 2, 1, 1), Counts(), [Counts(1, 2, 1, 1), Counts()]),  # at the end of a text
        (Counts(), Counts(), [Counts(), Counts()]),
    ],
)
def test_each_level_gets_the_counts_of_its_own_tokens(first, rest, expected):
    assert counts_of_levels(HORIZONTAL, [first, rest]) == expected
    below = Counts(2, 4, 3, 1)
    assert counts_of_levels(TAIL, [below, first, rest]) == [below, *expected]


def test_what_a_joint_draft_costs():
    known = estimates()
    round_ms = spent_ms(known, HORIZONTAL, [Counts(1, 4, 4, 0), Counts(1, 3, 1, 1)])
    expected = known.draft_ms[1, 4] + known.draft_ms[0, 3] + known.verify_ms[1, 2, 7]
    assert round_ms == pytest.approx(expected)
    assert worst_ms(known, HORIZONTAL) == pytest.approx(expected)
    assert worst_ms(known, TAIL) > worst_ms(known, dataclasses.replace(TAIL, tail=0))


@pytest.mark.parametrize("whole", [TAIL, HORIZONTAL])
def test_control_of_levels_that_a_drafter_continues_is_lossless(whole):
    ones = [1 for _ in whole.levels]
    root = continued(models("random", 3, seed=8), "block", ones)
    known = dataclasses.replace(estimates((1.0, 2.0, 9.0), rates(0.6, 0.8, 0.5)), max_budget=2)
    online = OnlineController(root, known, whole.with_budgets(ones))
    online.first_wait, online.longest_wait = 1, 2
    assert certify_tree(root, V, 4, controller=online).tv < TIGHT


# --- acceptance


def test_belief_moves_with_the_text_and_notices_a_turn():
    known = estimates()
    curve = predict_passes(known, 0, 1)
    assert curve[3] == pytest.approx(2.4)
    steady = Evidence()
    for _ in range(30):
        steady = add_tests(steady, curve, Counts(1, 4, 4, 0))
    assert shifts_of((steady,))[0] > 0
    assert shifts_of((Evidence(), steady))[0] > 0  # untried pairs follow in part
    turned, drafts = steady, 0
    while shifts_of((turned,))[0] > -4:  # one log-odd below
        turned, drafts = add_tests(turned, curve, Counts(1, 4, 0, 1)), drafts + 1
    assert drafts < 12
    assert shifts_of((fade(steady, 5000.0),)) == (0,)


# Tokens of each of eight drafts, and how many of them are kept: half are empty, one is short.
DRAFTS = [(0, 0), (2, 2), (0, 0), (2, 0), (0, 0), (1, 1), (0, 0), (2, 1)]


def stopping():
    """Estimates of a drafter that stops by itself as those drafts do."""
    known, size = estimates(), 3
    joint = np.zeros((size, size))
    for n, kept in DRAFTS:
        joint[n, : kept + 1] += 1 / len(DRAFTS)
    survival = known.survival.copy()
    survival[0, 1, :size] = joint.sum(0)
    return dataclasses.replace(known, survival=survival, joint_survival={0: np.array([joint] * 3)})


def test_the_end_of_a_draft_is_no_test():
    """A text that keeps of every draft what the estimates say shifts nothing."""
    known = stopping()
    curve = predict_passes(known, 0, 1)
    np.testing.assert_allclose(curve, [0, 3 / 4, 3 / 4 + 1 / 2])
    as_expected = Evidence()
    for n, kept in DRAFTS * 20:
        as_expected = add_tests(as_expected, curve, Counts(1, n, kept, int(kept < n)))
    assert shifts_of((as_expected,)) == (0,)
    never_short = estimates()
    tests = np.arange(never_short.longest + 1)
    np.testing.assert_allclose(predict_passes(never_short, 0, 1), 0.8 * tests)


def test_shifted_estimates_stay_survival_curves():
    known = estimates()
    low = shift_survival(known, {(0, 1): -1.0})
    curve = low.survival[0, 1]
    assert curve[0] == 1.0
    assert (np.diff(curve) <= 0).all()
    assert curve[1] == pytest.approx(1 / (1 + np.exp(1.0) * 0.25))
    assert (low.survival[1, 2] == known.survival[1, 2]).all()


def test_plain_where_nothing_can_pay():
    known = estimates((9.0, 10.0, 11.0), rates(0.5, 0.5, 0.5))
    online = OnlineController(numbered([1, 1]), known, Chain((0, 1, 2), (1, 1)))
    state = online.initial()
    assert online.plan(state).below is None
    with pytest.raises(ValueError, match="one model of the estimates for each level"):
        OnlineController(numbered([1]), known, Chain((0, 1, 2), (1, 1)))
    with pytest.raises(ValueError, match="must end with"):
        OnlineController(numbered([1]), known, Chain((0, 1), (1,)))


def test_reading_the_prompt_counts_against_short_answers():
    """A level that must read a long prompt for a few tokens is not worth it; later it may be."""
    dear = OnlineController(numbered([4, 6]), estimates(), Chain((0, 1, 2), (4, 6)))
    dear.catch_up, dear.loss_budget = (0.0, 0.5), 3.5
    short = {
        n.index for n in walk(dear.plan(dear.initial(num_prompt_tokens=2000, max_new_tokens=32)))
    }
    assert short == {0, 2}
    long = {
        n.index for n in walk(dear.plan(dear.initial(num_prompt_tokens=2000, max_new_tokens=5000)))
    }
    assert 1 in long
