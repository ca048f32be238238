"""Losslessness by enumeration: what a rule or window declares is measured here, for all of them."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from tabular_cases import FAMILIES, WINDOWS, V, chain, models

from hierspec.core.nodes import Concatenate, Draft, initial_states
from hierspec.core.windows import Counting, EntropyWindow, FixedWindow
from hierspec.exact import UNLIMITED, ExactInterpreter, interpreter, longest_proposal
from hierspec.exact.certificate import certify_tree
from hierspec.exact.interpreter import round_numbers
from hierspec.exact.round_law import by_length
from hierspec.exact.shared_rounds import SharedRounds
from hierspec.lm.tabular import TabularModel
from hierspec.verifiers.registry import get, names
from hierspec.verifiers.soundness import check

# Rules for several drafts are, with one, the rules they are made from: tests/test_several.py.
EXACT = sorted(
    {get(name).name for name in names() if get(name).exact and not get(name).multi_draft}
)
BUDGETS = {2: [3], 3: [2, 2], 4: [2, 1, 1]}
TIGHT = 1e-12


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("levels", BUDGETS)
@pytest.mark.parametrize("rule", EXACT)
def test_every_exact_rule_under_every_window(rule, levels, window, family):
    """A rule that declares itself exact is so wherever `check` lets it stand."""
    budgets = BUDGETS[levels]
    # What adapts multiplies the states to enumerate: one adapting level, and shorter runs.
    others = FixedWindow() if window == "adaptive" else WINDOWS[window]
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
            check(root)
        return
    check(root)
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
    check(root)
    assert certify_tree(root, V).tv < TIGHT


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("top_m", [1, 2])
@pytest.mark.parametrize("final", ["tokenwise", "block"])
def test_leading_is_sound_in_the_middle(final, top_m, family):
    """P3's intermediate rule: lossy by itself, but it reports the law that its choice makes."""
    leading = get("leading", top_m=top_m)
    root = chain(models(family, 3, seed=5), [leading, final], [2, 2])
    check(root)
    assert certify_tree(root, V).tv < TIGHT


def test_leading_over_leading_and_under_a_window():
    rules = [get("leading", top_m=2), get("leading"), get("block")]
    windows = [WINDOWS["confidence"], WINDOWS["entropy"], WINDOWS["fixed"]]
    root = chain(models("random", 4, seed=8), rules, [2, 1, 1], windows)
    check(root)
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
    check(root)
    assert certify_tree(root, V).tv < TIGHT


def test_parts_of_a_concatenation_adapt_apart():
    small, mid, target = models("random", 3, seed=6)
    parts = (_leaf(0, small, 2, EntropyWindow()), _leaf(1, mid, 1, EntropyWindow()))
    root = chain([target], ["block"], [], below=Concatenate(2, "both", parts))
    assert certify_tree(root, V).tv < TIGHT


@pytest.mark.parametrize("rule", EXACT)
@pytest.mark.parametrize("horizon", [1, 2, 3, 5])
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


THIRD = 1.0 / 3.0


@pytest.mark.parametrize(
    ("rule", "expected"),
    [("tokenwise", 10 / 9), ("block", 11 / 9), ("uncapped", 12 / 9), ("naive", 4 / 3)],
)
def test_worked_example(rule, expected):
    """P4's example: i.i.d. p = (1/3, 2/3), q = (2/3, 1/3), two tokens; naive attains the bound."""
    q = TabularModel(2, 0, {"": [2 * THIRD, THIRD]})
    p = TabularModel(2, 0, {"": [THIRD, 2 * THIRD]})
    certificate = certify_tree(chain([q, p], [rule], [2]), 2)
    assert certificate.expected_accepted == pytest.approx(expected, abs=1e-12)


def _ideal(q, p, n):
    """Σ_i Σ_{x^i} min(p(x^i), q(x^i)), the most any coupling of n tokens can keep."""
    total, p_joint, q_joint, texts = 0.0, np.ones(1), np.ones(1), [()]
    for _ in range(n):
        p_joint = np.concatenate(
            [w * p.distribution(t).numpy() for w, t in zip(p_joint, texts, strict=True)]
        )
        q_joint = np.concatenate(
            [w * q.distribution(t).numpy() for w, t in zip(q_joint, texts, strict=True)]
        )
        texts = [(*t, x) for t in texts for x in range(V)]
        total += float(np.minimum(p_joint, q_joint).sum())
    return total


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("family", FAMILIES)
def test_naive_reaches_the_ideal_and_still_loses(family, n):
    q, p = models(family, 2, seed=11)
    kept, per_call = {}, {}
    for rule in ("tokenwise", "block", "naive"):
        certificate = certify_tree(chain([q, p], [rule], [n]), V)
        kept[rule] = certificate.expected_accepted
        per_call[rule] = certificate.expected_tokens_per_target_call
    assert kept["naive"] == pytest.approx(_ideal(q, p, n), abs=1e-12)
    assert kept["tokenwise"] <= kept["block"] + 1e-12
    assert kept["block"] <= kept["naive"] + 1e-12
    assert per_call["naive"] <= per_call["block"] + 1e-12


def test_branch_is_block():
    assert get("branch") is get("block")


def test_children_are_answered_once():
    """Memoised by the tokens that matter: two contexts of equal ending share their outcomes."""
    root = chain(models("random", 2), ["block"], [2])
    exact = ExactInterpreter(root, V)
    states = initial_states(root)
    first = exact.proposals(root.below, (0, 1, 2), UNLIMITED, states)
    assert exact.proposals(root.below, (2, 2), UNLIMITED, states) is first
    assert exact.proposals(root.below, (2,), UNLIMITED - 5, states) is first
    assert exact.proposals(root.below, (), UNLIMITED, states) is not first


@pytest.mark.parametrize("rules", [["block", "tokenwise"], ["naive", "block"]])
def test_merging_equal_coroutines_changes_nothing(rules, monkeypatch):
    """Two coroutines at one line with equal variables have one future: against following all."""
    root = chain(models("random", 3, seed=2), rules, [1, 2], [EntropyWindow(), FixedWindow()])
    if rules[0] == "naive":
        root = chain(models("random", 3, seed=2), rules, [2, 3])
    merged = certify_tree(root, V, horizon=4)
    monkeypatch.setattr(interpreter, "suspended_state", lambda coroutine: (object(),))
    apart = certify_tree(root, V, horizon=4)
    assert apart.paths > merged.paths
    assert np.abs(apart.output - merged.output).max() < 1e-14
    assert apart.expected_accepted == pytest.approx(merged.expected_accepted, abs=1e-12)
    assert apart.expected_tokens_per_target_call == pytest.approx(
        merged.expected_tokens_per_target_call, abs=1e-12
    )


@pytest.mark.parametrize("rule", ["block", "match"])
def test_rounds_shared_by_window_states_are_those_of_each_state(rule):
    """From every state of the first rounds, laws and next states are as without sharing."""
    windows = [EntropyWindow(), Counting(EntropyWindow())]
    root = chain(models("random", 3, seed=2), [rule] * 2, [2, 1], windows)
    exact, shared = ExactInterpreter(root, V), SharedRounds(root, V)

    def rounded(laws):
        return {(m, tuple(map(round_numbers, states))): law for (m, states), law in laws.items()}

    waiting = [((), initial_states(root))]
    for context, states in waiting:
        laws = shared.laws(context, UNLIMITED, states)
        found = rounded(laws)
        expected = rounded(by_length(exact.round(context, UNLIMITED, states), V))
        assert found.keys() == expected.keys()
        assert all(np.abs(found[key] - expected[key]).max() < 1e-15 for key in expected)
        after = [((token,), states) for _, states in laws for token in range(V)]
        waiting += [place for place in after if len(waiting) < 100 and place not in waiting]
    assert len(waiting) >= 100
    assert shared.interpreter.paths < exact.paths / 3
