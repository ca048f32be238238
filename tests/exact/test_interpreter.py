"""The interpreter that enumerates rounds: what it remembers, merges and shares changes nothing."""

from __future__ import annotations

import numpy as np
import pytest
from tabular_cases import V, chain, models

from hierspec.core.nodes import initial_states
from hierspec.core.windows import Counting, EntropyWindow, FixedWindow
from hierspec.exact import interpreter
from hierspec.exact.certificate import certify_tree
from hierspec.exact.interpreter import UNLIMITED, ExactInterpreter, round_numbers
from hierspec.exact.round_law import by_length
from hierspec.exact.shared_rounds import SharedRounds


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
