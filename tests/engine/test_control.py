"""Online control: the output law is untouched by any dependence on earlier rounds, harm is bounded
whatever drafts do, and gains come close to those of the plan that the text asks for.
"""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
from estimate_cases import COSTS, GOOD, GROWTH, estimates, rates
from hypothesis import given, settings
from hypothesis import strategies as st
from tabular_cases import V, chain, models

from hierspec import Hierarchy, HierarchyConfig, SamplingParams, certify
from hierspec.config.build import build
from hierspec.config.numbered import chain as numbered
from hierspec.core.nodes import Concatenate, Draft, Verify, initial_states, walk
from hierspec.core.windows import Counting, Counts, EntropyWindow
from hierspec.engine.control import JumpingController, label, levels_below, plan_of
from hierspec.exact import ExactInterpreter, Outcome, model_law, output_law
from hierspec.exact.certificate import certify_tree
from hierspec.planner.estimates import Chain
from hierspec.planner.latency import latency
from hierspec.planner.online.belief import Belief, Evidence, predict_passes, shift_survival
from hierspec.planner.online.controller import OnlineController
from hierspec.simulation import CoinFlips, simulate

TIGHT = 1e-12
PLAIN = COSTS[-1]
CATCH_UP = [GROWTH * ms for ms in COSTS]


USELESS = rates(0.0, 0.0, 0.0)


@pytest.fixture(scope="module")
def controller():
    return OnlineController(numbered([4, 6]), estimates(), Chain((0, 1, 2), (4, 6)))


def simulated(source, controller, tokens):
    return simulate(
        numbered([4, 6]),
        source,
        lambda model, scored: COSTS[model] * (1.0 + GROWTH * (scored - 1)),
        tokens=tokens,
        controller=controller,
        catch_up=CATCH_UP,
    )


class Changing:
    """Coin flips whose rates change after a number of the target's tokens."""

    def __init__(self, first, then, after, seed):
        self.sources, self.after, self.emitted = (
            (CoinFlips(first, seed), CoinFlips(then, ~seed & 99)),
            after,
            0,
        )

    def kept(self, model, owners):
        kept = self.sources[self.emitted >= self.after].kept(model, owners)
        self.emitted += (kept + 1) * (model == 2)
        return kept


# --- plans


def test_plans_keep_indices_and_count():
    root = chain(models("random", 4), ["tokenwise", "naive", "block"], [2, 2, 3])
    full = plan_of(root, [2, 2, 3])
    assert [node.index for node in walk(full)] == [0, 1, 2, 3]
    plan = plan_of(root, [0, 4, 1])
    assert [(type(n), n.index, n.budget) for n in walk(plan)][:2] == [(Draft, 1, 4), (Verify, 2, 1)]
    assert plan.below.rule.name == "naive"
    assert label(plan) == "level 1 4 > level 2 1"
    assert label(plan_of(root, [0, 0, 0])) == "plain"
    assert all(isinstance(node.window, Counting) for node in levels_below(plan))
    assert plan_of(root, [0, 2, 3]).below.exact_length is False
    assert plan_of(root, [2, 2, 3]).below.below.exact_length is True  # naive needs it
    with pytest.raises(ValueError, match="one budget"):
        plan_of(root, [1, 2])
    small = root.below.below.below
    with pytest.raises(ValueError, match="concatenation"):
        plan_of(dataclasses.replace(root, below=Concatenate(1, "c", (small,))), [1])


# --- the output law


@pytest.mark.parametrize("rule", ["tokenwise", "block"])
@pytest.mark.parametrize("family", ["random", "zeros", "disjoint"])
def test_any_dependence_on_earlier_rounds_is_lossless(rule, family):
    """Levels and budgets jump by all that the last round kept, inner levels included."""
    root = chain(models(family, 3, seed=6), [rule] * 2, [2, 1])
    jumping = JumpingController(root, [[2, 1], [0, 2], [1, 1], [0, 0], [1, 2], [2, 0]])
    certificate = certify_tree(root, V, controller=jumping)
    assert certificate.conclusive
    assert certificate.tv < TIGHT


def test_four_levels_and_dropped_bonus():
    root = chain(
        models("random", 4, seed=9),
        ["tokenwise", "block", "block"],
        [1, 1, 1],
        bonus=[False, True, True],
    )
    jumping = JumpingController(root, [[1, 1, 1], [0, 1, 1], [2, 0, 1], [1, 0, 0], [0, 0, 2]])
    assert certify_tree(root, V, controller=jumping).tv < TIGHT


@pytest.mark.parametrize("rule", ["tokenwise", "block"])
def test_control_beside_adaptive_windows_and_limits(rule):
    root = chain(
        models("random", 3, seed=7), [rule] * 2, [2, 1], [EntropyWindow(), EntropyWindow(0.9)]
    )
    jumping = JumpingController(root, [[2, 1], [0, 1], [0, 0]])
    assert certify_tree(root, V, controller=jumping).tv < TIGHT
    assert certify_tree(root, V, cut_at_horizon=True, controller=jumping).tv < TIGHT


class Peeking(ExactInterpreter):
    """Changes the budget within a round: by the value of the token that it has just seen."""

    def _leaf_proposals(self, node, context, limit, states):
        return [
            Outcome(
                o.probability, (o.value[0].truncated(2 - (o.value[0].tokens[1:] == (0,))), states)
            )
            for o in super()._leaf_proposals(node, context, limit, states)
        ]


def test_a_choice_within_the_round_is_caught():
    root = chain(models("random", 2, seed=6), ["tokenwise"], [2])
    jumping = JumpingController(root, [[2], [1], [0]])
    states = initial_states(jumping.root)
    for make, lossy in ((ExactInterpreter, False), (Peeking, True)):
        found = output_law(make(root, V), states, 4, controller=jumping)
        tv = float(np.abs(found - model_law(root.model, 4)).sum() / 2)
        assert tv > 1e-3 if lossy else tv < TIGHT


@pytest.mark.parametrize("rule", ["tokenwise", "block"])
def test_the_online_controller_is_lossless(rule):
    root = chain(models("random", 3, seed=8), [rule] * 2, [1, 1])
    known = dataclasses.replace(estimates((1.0, 2.0, 9.0), rates(0.6, 0.8, 0.5)), max_budget=2)
    online = OnlineController(root, known, Chain((0, 1, 2), (1, 1)), first_wait=1, longest_wait=2)
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


def test_cases_may_have_a_control():
    table = {"order": 0, "table": {"": [0.5, 0.3, 0.2]}}
    other = {"order": 1, "table": {"": [0.1, 0.3, 0.6]} | {str(t): [0.2, 0.2, 0.6] for t in "012"}}
    case = {
        "vocab": 3,
        "models": [table, other],
        "levels": [{"num_speculative_tokens": 2}, {"verify": "block"}],
        "control": [[2], [0], [1]],
    }
    assert certify(case).passed()
    lossy = case | {"levels": [case["levels"][0], {"verify": "uncapped"}]}
    assert not certify(lossy).passed()
    for wrong, match in (
        ([[1, 2]], "one budget"),
        ([["1"]], "list of plans"),
        ([], "list of plans"),
    ):
        with pytest.raises(ValueError, match=match):
            certify(case | {"control": wrong})


# --- belief


def test_belief_moves_with_the_text_and_notices_a_turn():
    belief, known = Belief(), estimates()
    curve = predict_passes(known, 0, 1)
    assert curve[3] == pytest.approx(2.4)
    steady = Evidence()
    for _ in range(30):
        steady = belief.add_tests(steady, curve, Counts(1, 4, 4, 0))
    assert belief.shifts((steady,))[0] > 0
    assert belief.shifts((Evidence(), steady))[0] > 0  # untried pairs follow in part
    turned, drafts = steady, 0
    while belief.shifts((turned,))[0] > -4:  # one log-odd below
        turned, drafts = belief.add_tests(turned, curve, Counts(1, 4, 0, 1)), drafts + 1
    assert drafts < 12
    assert belief.shifts((belief.fade(steady, 5000.0),)) == (0,)


def test_shifted_estimates_stay_survival_curves():
    known = estimates()
    low = shift_survival(known, {(0, 1): -1.0})
    curve = low.survival[0, 1]
    assert curve[0] == 1.0
    assert (np.diff(curve) <= 0).all()
    assert curve[1] == pytest.approx(1 / (1 + np.exp(1.0) * 0.25))
    assert (low.survival[1, 2] == known.survival[1, 2]).all()


# --- harm and gain


def loss(result):
    """Tokens of plain decoding by which a run was dearer than plain decoding."""
    return result.num_tokens * (result.ms_per_token / PLAIN - 1.0)


@given(st.lists(st.integers(0, 12), min_size=1, max_size=40), st.integers(1, 150))
@settings(max_examples=60, deadline=None)
def test_loss_is_bounded_whatever_is_kept(kept, tokens):
    """Not on average: every sequence of outcomes stays within ``loss_budget`` and ``risk``."""
    controller = _CONTROLLER
    calls = iter(kept * 100_000)

    class Adversary:
        def kept(self, model, owners):
            return min(next(calls), len(owners))

    bound = controller.loss_budget + controller.risk * tokens
    assert loss(simulated(Adversary(), controller, tokens)) <= bound + 1e-9


_CONTROLLER = OnlineController(numbered([4, 6]), estimates(), Chain((0, 1, 2), (4, 6)))


@pytest.mark.parametrize("acceptance", [USELESS, rates(0.8, 0.0, 0.0)])
def test_useless_drafts_do_little_harm(controller, acceptance):
    for tokens, most in ((64, 0.08), (500, 0.03)):
        result = simulated(CoinFlips(acceptance, seed=3), controller, tokens)
        assert loss(result) / tokens < most
        assert result.control["rounds"]["plain"] > 0.6 * tokens


def test_gains_come_near_the_plan_the_text_asks_for(controller):
    """Within 8 % of the best fixed plan where the estimates are right; beyond it elsewhere."""
    best = min(
        latency(estimates(), Chain((0, 1, 2), (i, j))).ms_per_token
        for i in range(1, 9)
        for j in range(1, 13)
    )
    as_estimated = simulated(CoinFlips(GOOD, seed=1), controller, 1500)
    assert as_estimated.ms_per_token < 1.08 * best
    for acceptance, gain in (
        (rates(0.95, 0.97, 0.92), 3.8),
        (rates(0.0, 0.9, 0.0), 1.6),  # the smallest level is left out
        (rates(0.2, 0.1, 0.7), 1.9),  # the middle one is
        (rates(0.5, 0.5, 0.4), 1.2),
    ):
        source = CoinFlips(acceptance, seed=2)
        assert PLAIN / simulated(source, controller, 1500).ms_per_token > gain


def test_it_follows_a_text_that_turns(controller):
    """Static plans: good then useless costs 2.2 times plain decoding."""
    down = simulated(Changing(GOOD, USELESS, 500, 1), controller, 1000)
    assert down.ms_per_token < 0.78 * PLAIN
    up = simulated(Changing(USELESS, GOOD, 500, 1), controller, 1000)
    assert up.ms_per_token < 0.88 * PLAIN
    assert up.control["switches"] > 2


def test_plain_where_nothing_can_pay():
    known = estimates((9.0, 10.0, 11.0), rates(0.5, 0.5, 0.5))
    online = OnlineController(numbered([1, 1]), known, Chain((0, 1, 2), (1, 1)))
    state = online.initial()
    assert online.plan(state).below is None
    with pytest.raises(ValueError, match="one model of the estimates for each level"):
        OnlineController(numbered([1]), known, Chain((0, 1, 2), (1, 1)))
    with pytest.raises(ValueError, match="must end with"):
        OnlineController(numbered([1]), known, Chain((0, 1), (1,)))
    with pytest.raises(ValueError, match="catch_up_ms"):
        OnlineController(numbered([1]), known, Chain((0, 2), (1,)), catch_up_ms=[1.0, 2.0])


def test_reading_the_prompt_counts_against_short_answers(controller):
    """A level that must read a long prompt for a few tokens is not worth it; later it may be."""
    dear = OnlineController(
        numbered([4, 6]),
        estimates(),
        Chain((0, 1, 2), (4, 6)),
        catch_up_ms=[0.0, 0.5],
        loss_budget=3.5,
    )
    short = {
        n.index for n in walk(dear.plan(dear.initial(num_prompt_tokens=2000, max_new_tokens=32)))
    }
    assert short == {0, 2}
    long = {
        n.index for n in walk(dear.plan(dear.initial(num_prompt_tokens=2000, max_new_tokens=5000)))
    }
    assert 1 in long


def test_two_levels_without_a_choice_of_models():
    """The common case: one drafter over the target; catch-up priced from the estimates."""
    known = estimates((1.0, 10.0), [[0.0, 0.8], [0.0, 0.0]])
    online = OnlineController(numbered([4]), known, Chain((0, 1), (4,)))
    assert online.catch_up == pytest.approx((0.04,))
    result = simulate(
        numbered([4]),
        CoinFlips([[0.0, 0.8], [0.0, 0.0]]),
        lambda model, n: (1.0, 10.0)[model] * (1 + GROWTH * (n - 1)),
        tokens=600,
        controller=online,
    )
    best = min(latency(known, Chain((0, 1), (n,))).ms_per_token for n in range(1, 12))
    assert result.ms_per_token < 1.1 * best
    with pytest.raises(ValueError, match="rounds to run or the tokens"):
        simulate(numbered([4]), CoinFlips(GOOD), COSTS)


def test_states_are_values(controller):
    result = simulated(CoinFlips(GOOD, seed=1), controller, 40)
    again = simulated(CoinFlips(GOOD, seed=1), controller, 40)
    assert result.control == again.control
    assert hash(controller.initial()) == hash(controller.initial())


# --- generation


PROMPTS = [[5, 9, 7], [11, 4, 4, 30, 8], [60], list(range(3, 40))]


@pytest.fixture(scope="module")
def made(tiny_family):
    level = {"method": "draft_model", "num_speculative_tokens": 3}
    config = HierarchyConfig.load(
        json.dumps(
            {
                "target": {"model": tiny_family["target"], "dtype": "float64"},
                "levels": [
                    {**level, "model": tiny_family["small"]},
                    {**level, "model": tiny_family["draft"], "verify": "block"},
                ],
            }
        )
    )
    return build(config)


def controllers(root):
    yield JumpingController(root, [[2, 3], [0, 2], [0, 0], [4, 0], [1, 1]])
    yield OnlineController(root, estimates(), Chain((0, 1, 2), (3, 3)), first_wait=2)


@pytest.mark.parametrize("which", [0, 1])
def test_greedy_output_is_that_of_the_static_hierarchy(made, which):
    static = Hierarchy(made)
    steered = Hierarchy(made, controller=list(controllers(made.root))[which])
    options = {"max_new_tokens": 24, "temperature": 0, "seed": 1}
    expected = static.generate_batch(PROMPTS, **options)
    found = steered.generate_batch(PROMPTS, **options)
    assert [r.token_ids for r in found] == [r.token_ids for r in expected]
    assert "control" not in expected[0].to_dict()
    control = found[0].to_dict()["control"]
    assert sum(control["rounds"].values()) > 1
    assert len(control["rounds"]) > 1
    assert control["switches"] >= len(control["rounds"]) - 1
    assert set(control["tokens"]) == set(control["rounds"])
    alone = steered.generate(PROMPTS[0], **options)
    assert alone.token_ids == expected[0].token_ids


def test_sampling_is_reproducible_under_control(made):
    steered = Hierarchy(made, controller=list(controllers(made.root))[1])
    sampling = SamplingParams(temperature=0.8)
    runs = [steered.generate(PROMPTS[1], sampling=sampling, seed=5) for _ in range(2)]
    assert runs[0].token_ids == runs[1].token_ids
    assert runs[0].control == runs[1].control


def test_a_controller_of_another_hierarchy_is_refused(made):
    other = Hierarchy(made, controller=JumpingController(numbered([1]), [[1]]))
    with pytest.raises(ValueError, match="another hierarchy"):
        other.generate([5], max_new_tokens=2)


def test_kinds_of_text_in_the_estimates_do_not_hide_what_a_text_shows():
    known = estimates()
    kinds = dataclasses.replace(known, classes=(known, known))
    chain, useless = Chain((0, 1, 2), (4, 6)), rates(0.0, 0.0, 0.0)
    spent = [
        simulated(CoinFlips(useless, seed=1), OnlineController(numbered([4, 6]), each, chain), 400)
        for each in (known, kinds)
    ]
    assert spent[0].ms_per_token == spent[1].ms_per_token
