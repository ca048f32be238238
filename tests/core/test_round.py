"""The recursive round is lossless: what rules and windows declare, enumerated for all of them."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
from tabular_cases import FAMILIES, WINDOWS, V, chain, models

from hierspec.core.nodes import Concatenate, Draft, initial_states
from hierspec.core.windows import EntropyWindow, FixedWindow
from hierspec.exact.certificate import certify_tree
from hierspec.exact.interpreter import UNLIMITED, ExactInterpreter, longest_proposal
from hierspec.verifiers.registry import get, names
from hierspec.verifiers.soundness import validate

# Rules for several drafts are, with one, the rules they are made from:
# tests/verifiers/test_several_drafts.py.
EXACT = sorted(
    {get(name).name for name in names() if get(name).exact and not get(name).multi_draft}
)
BUDGETS = {2: [3], 3: [2, 2], 4: [2, 1, 1]}
TIGHT = 1e-12


@pytest.mark.parametrize(
    ("levels", "family"), [*itertools.product((2, 4), FAMILIES), (3, "random"), (3, "zeros")]
)
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("rule", EXACT)
def test_every_exact_rule_under_every_window(rule, levels, window, family):
    """A rule that declares itself exact is so wherever `check` lets it stand."""
    # What adapts multiplies the states to enumerate: one adapting level, and shorter runs.
    others = FixedWindow() if window == "adaptive" else WINDOWS[window]
    budgets = [2, 1] if window == "adaptive" and levels == 3 else BUDGETS[levels]
    bonus = [not (window == "adaptive" and levels == 4)] * (levels - 2) + [True]
    root = chain(
        models(family, levels, seed=levels),
        [rule] * (levels - 1),
        budgets,
        [WINDOWS[window]] + [others] * (levels - 2),
        bonus,
    )
    if get(rule).fixed_length and not WINDOWS[window].fixed_length:
        with pytest.raises(ValueError, match="window"):
            validate(root)
        return
    validate(root)
    certificate = certify_tree(root, V)
    assert certificate.conclusive
    assert certificate.tv < TIGHT


@pytest.mark.parametrize(
    ("rules", "budgets"),
    [
        (["tokenwise", "block", "tokenwise"], [2, 2, 1]),
        (["block", "tokenwise", "block"], [1, 2, 1]),
        (["naive", "block"], [2, 2]),
        (["block", "naive"], [2, 2]),
        (["tokenwise", "naive", "block"], [1, 2, 1]),
        (["naive", "tokenwise", "naive"], [2, 1, 2]),
    ],
)
def test_rules_mix_over_levels(rules, budgets):
    root = chain(models("random", len(rules) + 1, seed=3), rules, budgets)
    validate(root)
    assert certify_tree(root, V).tv < TIGHT


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("top_m", [1, 2])
@pytest.mark.parametrize("final", ["tokenwise", "block"])
def test_leading_is_sound_in_the_middle(final, top_m, family):
    """P3's intermediate rule: lossy by itself, but it reports the law that its choice makes."""
    leading = get("leading", top_m=top_m)
    root = chain(models(family, 3, seed=5), [leading, final], [2, 2])
    validate(root)
    assert certify_tree(root, V).tv < TIGHT


def test_leading_over_leading_and_under_a_window():
    rules = [get("leading", top_m=2), get("leading"), get("block")]
    windows = [WINDOWS["confidence"], WINDOWS["entropy"], WINDOWS["fixed"]]
    root = chain(models("random", 4, seed=8), rules, [2, 1, 1], windows)
    validate(root)
    assert certify_tree(root, V).tv < TIGHT


@pytest.mark.parametrize("rule", EXACT)
@pytest.mark.parametrize("bonus", [(False, True), (True, False), (False, False)])
def test_the_bonus_may_be_dropped(rule, bonus):
    root = chain(models("random", 3, seed=1), [rule] * 2, [2, 2], bonus=bonus)
    assert certify_tree(root, V).tv < TIGHT


@pytest.mark.parametrize("rule", ["tokenwise", "block"])
def test_both_thresholds_adapt(rule):
    """P5, sound reading: τ_1 and τ_2 follow the entropies at rejected tokens and persist."""
    windows = [EntropyWindow(), EntropyWindow()]
    root = chain(models("random", 3, seed=2), [rule] * 2, [2, 1], windows)
    assert certify_tree(root, V).tv < TIGHT


def _leaf(index, model, budget, window=None):
    return Draft(index, f"part {index}", model, budget, window or FixedWindow())


@pytest.mark.parametrize("rule", ["tokenwise", "block"])
@pytest.mark.parametrize("order", ["interleaved", "horizontal", "tail"])
def test_concatenations(order, rule):
    """P2's orders and CS-Drafting's tail: ratio and residual by the law that drafted the slot."""
    small, mid, target = models("random", 3, seed=4)
    if order == "interleaved":
        parts, repeat = (_leaf(0, small, 1), _leaf(1, mid, 1)), 2
    elif order == "horizontal":
        parts, repeat = (_leaf(0, mid, 2), _leaf(1, small, 2, EntropyWindow(threshold=0.9))), 1
    else:
        level = dataclasses.replace(chain([small, mid], ["tokenwise"], [1]), budget=1)
        parts, repeat = (level, _leaf(2, small, 2)), 1
    below = Concatenate(parts[-1].index + 1, order, parts, repeat)
    root = chain([target], [rule], [], below=below)
    validate(root)
    assert certify_tree(root, V).tv < TIGHT


def test_parts_of_a_concatenation_adapt_apart():
    small, mid, target = models("random", 3, seed=6)
    parts = (_leaf(0, small, 2, EntropyWindow()), _leaf(1, mid, 1, EntropyWindow()))
    root = chain([target], ["block"], [], below=Concatenate(2, "both", parts))
    assert certify_tree(root, V).tv < TIGHT


@pytest.mark.parametrize("rule", EXACT)
@pytest.mark.parametrize("horizon", [1, 2, 5])
def test_the_limit_of_a_generation_cuts_by_count(rule, horizon):
    """A generation of H tokens limits its last rounds; what comes out keeps its law."""
    root = chain(models("random", 3, seed=7), [rule] * 2, [2, 3])
    assert certify_tree(root, V, horizon, cut_at_horizon=True).tv < TIGHT


def test_overshoot_is_handed_up():
    """A level that holds one token may yet gain a whole round; `longest_proposal` is attained."""
    tables = models("equal", 3)
    root = chain(tables, ["tokenwise", "block"], [2, 4])
    assert longest_proposal(root.below) == 6  # rounds of 3 and 3
    exact = ExactInterpreter(root, V)
    lengths = {
        len(outcome.value[0])
        for outcome in exact.proposals(root.below, (), UNLIMITED, initial_states(root))
    }
    assert lengths == {6}
    tables = models("random", 3)
    root = chain(tables, ["tokenwise", "block"], [2, 4])
    exact = ExactInterpreter(root, V)
    found = exact.proposals(root.below, (), UNLIMITED, initial_states(root))
    assert {len(outcome.value[0]) for outcome in found} == {4, 5, 6}


def test_order_two_and_plain_decoding():
    generator_models = models("random", 3, order=2, seed=9)
    root = chain(generator_models, ["block", "tokenwise"], [2, 1])
    assert certify_tree(root, V).tv < TIGHT
    plain = dataclasses.replace(root, below=None)
    certificate = certify_tree(plain, V)
    assert certificate.tv < TIGHT
    assert certificate.expected_accepted == 0.0
    assert certificate.expected_tokens_per_target_call == 1.0
