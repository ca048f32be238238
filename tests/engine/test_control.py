"""Online control: the output law is untouched by any dependence on earlier rounds."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
from estimate_cases import estimates
from numbered_chains import chain as numbered
from tabular_cases import V, chain, continued, models, output_law

from hierspec import Hierarchy, HierarchyConfig, SamplingParams, certify
from hierspec.config.build import build
from hierspec.core.nodes import Concatenate, Draft, Verify, initial_states, walk
from hierspec.core.windows import Counting, EntropyWindow
from hierspec.engine.control import label, levels_below, plan_of
from hierspec.exact.cases import JumpingController
from hierspec.exact.certificate import certify_tree
from hierspec.exact.interpreter import ExactInterpreter, Outcome
from hierspec.exact.output import model_law
from hierspec.planner.estimates import Chain
from hierspec.planner.online.controller import OnlineController

TIGHT = 1e-12

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


def test_a_drafter_that_continues_is_the_last_level():
    root = continued(models("random", 3), "tokenwise", (2, 2, 1))
    assert [node.index for node in levels_below(root)] == [0, 1, 2]
    plans = {
        (2, 3, 1): "small 2 > mid 3 + behind 1",
        (0, 3, 1): "mid 3 + behind 1",
        (2, 3, 0): "small 2 > mid 3",
        (0, 0, 4): "behind 4",
        (0, 0, 0): "plain",
    }
    for budgets, text in plans.items():
        plan = plan_of(root, budgets)
        assert label(plan) == text
        assert {node.index: node.budget for node in levels_below(plan)} == {
            place: budget for place, budget in enumerate(budgets) if budget
        }
    twice = dataclasses.replace(root.below, repeat=2)
    with pytest.raises(ValueError, match="concatenation"):
        levels_below(dataclasses.replace(root, below=twice))


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


@pytest.mark.parametrize("rule", ["tokenwise", "block"])
def test_levels_that_a_drafter_continues(rule):
    plans = [[1, 1, 1], [0, 1, 1], [1, 2, 0], [0, 0, 2], [0, 0, 0]]
    root = continued(models("random", 3, seed=6), rule, (1, 1, 1))
    certificate = certify_tree(root, V, controller=JumpingController(root, plans))
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
    online = OnlineController(root, estimates(), Chain((0, 1, 2), (3, 3)))
    online.first_wait = 2
    yield online


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
