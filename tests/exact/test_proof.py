"""No lossy hierarchy is certified, however late or rarely it shows; every lossless one is.

What a law of some tokens cannot show, one round from every state must: losses that wait for a
running mean, for a plan or for a context, and those of a generation's last rounds.
"""

from __future__ import annotations

import dataclasses
import json
import os
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch
from certificate_cases import is_lossy, lossless, with_a_mistake
from installed import needs_lab
from tabular_cases import V, chain, models

from hierspec.cli import run
from hierspec.cli.certify import show
from hierspec.core.nodes import initial_states
from hierspec.core.rules import Acceptance
from hierspec.core.windows import EntropyWindow
from hierspec.exact import certificate
from hierspec.exact.cases import JumpingController
from hierspec.exact.certificate import certify, certify_tree
from hierspec.exact.interpreter import UNLIMITED, ExactInterpreter
from hierspec.exact.output import Rounds
from hierspec.exact.proof import prove, search_reachable
from hierspec.exact.round_law import Continuation, by_length, drop_states, to_digits
from hierspec.exact.running_means import ComparingInterpreter, outcomes_by_region
from hierspec.lm.tabular import TabularModel
from hierspec.verifiers.tokenwise import Tokenwise

TIGHT = 1e-12
# Seeds of each kind; thousands belong to a release, not to every run.
SEEDS = range(int(os.environ.get("HIERSPEC_CERTIFICATES", "40")))

LATE_WINDOW = {
    "vocab": 2,
    "models": [
        {"order": 1, "table": {"": [0.67, 0.33], "0": [0.38, 0.62], "1": [0.87, 0.13]}},
        {"order": 1, "table": {"": [0.79, 0.21], "0": [0.82, 0.18], "1": [0.15, 0.85]}},
    ],
    "levels": [
        {"num_speculative_tokens": 2, "window": {"kind": "entropy"}},
        {"verify": "uncapped"},
    ],
}


def in_last_context():
    """Draft and target differ only where three tokens, the first a 1, lie behind."""
    contexts = [to_digits(n, length, 2) for length in range(4) for n in range(2**length)]
    table = {",".join(map(str, context)): [0.4, 0.6] for context in contexts}
    last = {key: [0.8, 0.2] for key in ("1,1,1", "1,1,0", "1,0,1", "1,0,0")}
    return {
        "vocab": 2,
        "models": [{"order": 3, "table": table | last}, {"order": 3, "table": table}],
        "levels": [{"num_speculative_tokens": 2}, {"verify": "uncapped"}],
    }


LATE_PLAN = {
    **LATE_WINDOW,
    "levels": [{"num_speculative_tokens": 2}, {"verify": "uncapped"}],
    "control": [[0]] * 8 + [[2]],
}
LATE = {"window": LATE_WINDOW, "plan": LATE_PLAN, "context": in_last_context()}


@pytest.mark.parametrize("late", LATE)
def test_a_loss_that_comes_late_is_seen(late):
    case = LATE[late]
    assert certify({**case, "horizon": 4}).tv < TIGHT  # the longest proposal + 2 hides it
    found = certify(case)
    assert found.tv > 0.01
    assert found.conclusive
    assert found.lossy_round["tv"] > 0.01
    assert not found.passed(allow_inconclusive=True)


@pytest.mark.parametrize("late", LATE)
def test_a_horizon_that_is_given_stays_and_certifies_nothing(late):
    found = certify({**LATE[late], "horizon": 4})
    assert (found.horizon, found.conclusive) == (4, False)
    assert found.lossy
    assert not found.passed(allow_inconclusive=True)


@pytest.mark.parametrize("rule", ["tokenwise", "block"])
@pytest.mark.parametrize("late", LATE)
def test_the_same_with_an_exact_rule_is_certified(late, rule):
    case = {**LATE[late], "levels": [LATE[late]["levels"][0], {"verify": rule}]}
    found = certify(case)
    assert found.passed()
    assert max(found.tv, found.worst_round_tv) < TIGHT


@needs_lab
def test_a_loss_of_float32s_rounding_is_told_apart(capsys):
    found = certify(next(iter(LATE.values())))
    show(dataclasses.replace(found, tv=2e-8, worst_round_tv=2e-8), passed=False, with_law=False)
    assert "LOSSY" in (out := capsys.readouterr().out)
    assert "as far as float32 rounds" in out


@needs_lab
@pytest.mark.parametrize("late", LATE)
def test_the_command_fails_and_says_where(late, tmp_path, capsys):
    file = tmp_path / "case.json"
    file.write_text(json.dumps(LATE[late]))
    assert run(["certify", str(file)]) == 1
    out = capsys.readouterr().out
    assert "LOSSY" in out
    assert "first lossy round         after the text" in out
    assert "float32" not in out
    assert run(["certify", str(file), "--json", "--allow-inconclusive"]) == 1
    data = json.loads(capsys.readouterr().out)
    assert data["tv"] > 1e-9
    assert data["lossless"] is False


@pytest.mark.parametrize("seed", SEEDS)
def test_no_lossy_case_is_certified(seed):
    case = with_a_mistake(seed)
    found = certify_tree(case.root, case.vocab_size, controller=case.controller)
    if is_lossy(case):
        assert found.lossy
        assert not found.passed(allow_inconclusive=True)
    if found.passed():
        assert case.tv(case.longest + 3) < 1e-9


@pytest.mark.parametrize("seed", SEEDS)
def test_every_lossless_case_is_certified(seed):
    case = lossless(seed)
    found = certify_tree(case.root, case.vocab_size, controller=case.controller)
    assert found.passed()
    assert max(found.tv, found.worst_round_tv) < TIGHT


class WrongForOneToken(Tokenwise):
    """Exact for drafts of two tokens: only a generation's end has shorter ones here."""

    def acceptance(self, batch):
        accepted = super().acceptance(batch)
        short = (batch.lengths == 1).unsqueeze(-1)
        return Acceptance((accepted.h * (1.0 + 0.1 * short)).clamp(max=1.0), accepted.w)


def test_a_generations_last_rounds_count():
    root = chain(models("random", 2, seed=1), [WrongForOneToken()], [2])
    found = certify_tree(root, V)
    assert found.tv < TIGHT
    assert found.lossy_round["tokens_wanted"] == 2
    assert not found.conclusive
    assert not found.passed(allow_inconclusive=True)


def test_a_state_out_of_reach_does_no_harm():
    """Odd plans are never chosen: every round of the others adds two to the control state."""
    root = chain(models("random", 2, seed=0), ["uncapped"], [2])
    found = certify_tree(root, V, controller=JumpingController(root, [[0], [2], [0], [2]]))
    assert found.passed()
    assert not certify_tree(root, V, controller=JumpingController(root, [[0], [2], [2]])).passed()


def test_contexts_that_the_target_never_writes_do_no_harm():
    target = TabularModel(2, 1, {"": [1.0, 0.0], "0": [1.0, 0.0], "1": [0.4, 0.6]})
    draft = TabularModel(2, 1, {"": [1.0, 0.0], "0": [1.0, 0.0], "1": [0.7, 0.3]})
    assert certify_tree(chain([draft, target], ["uncapped"], [2]), 2).passed()


def test_too_many_states_are_inconclusive(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(certificate, "_MAX_PROOF_STATES", 5)
    monkeypatch.setattr(certificate, "_MAX_SEARCH_STATES", 5)
    case = {**LATE_WINDOW, "levels": [LATE_WINDOW["levels"][0], {"verify": "block"}]}
    found = certify(case)
    assert not found.complete
    assert not found.conclusive
    assert not found.passed()
    assert found.passed(allow_inconclusive=True)
    file = tmp_path / "case.json"
    file.write_text(json.dumps(case))
    assert run(["certify", str(file)]) == 1
    assert "inconclusive: there are more than" in capsys.readouterr().out
    assert run(["certify", str(file), "--allow-inconclusive"]) == 0
    assert "not proved to be lossless" in capsys.readouterr().out


@dataclass(frozen=True)
class Remembering:
    """A window of a third party: it stops at once while ``observed`` says so."""

    modulus: int
    signal: ClassVar[str] = "entropy"
    fixed_length: ClassVar[bool] = False

    def init(self):
        return (1.0,)

    def stops(self, signals, state):
        return state[0] % 3 != 0

    def observe(self, state, signals, num_accepted):
        return ((state[0] + 1.0) % self.modulus,)


@pytest.mark.parametrize("rule", ["block", "uncapped"])
def test_other_windows_with_a_memory_are_followed(rule, monkeypatch):
    """To the end where they remember little; where they remember all, nothing is certified."""
    monkeypatch.setattr(certificate, "_MAX_SEARCH_STATES", 200)
    tables = models("random", 2, seed=0)
    found = certify_tree(chain(tables, [rule], [2], [Remembering(4)]), V)
    assert found.passed() == (rule == "block")
    endless = certify_tree(chain(tables, [rule], [2], [Remembering(1 << 40)]), V)
    assert not endless.passed()


@pytest.mark.parametrize(
    ("rules", "budgets", "windows"),
    [
        (["block"], [3], [EntropyWindow()]),
        (["tokenwise", "block"], [2, 2], [EntropyWindow(), EntropyWindow(0.9)]),
        (["tokenwise", "tokenwise"], [2, 1], [EntropyWindow(), EntropyWindow()]),
    ],
)
def test_regions_of_running_means_cover_what_is_reached(rules, budgets, windows):
    """Every state reached makes its round that of one of the regions tried."""
    seeds = (torch.Generator().manual_seed(seed) for seed in range(len(rules) + 1))
    tables = [TabularModel.random(2, 1, seed) for seed in seeds]
    root = chain(tables, rules, budgets, windows)
    exact, comparing = ExactInterpreter(root, 2), ComparingInterpreter(root, 2)
    rounds, found = Rounds(exact), {}
    layer = {((), rounds.initial(initial_states(root), 5))}
    for _ in range(5):
        deeper = set()
        for context, states in sorted(layer)[:60]:
            distributions = rounds.round(context, UNLIMITED, states)
            if context not in found:
                every = outcomes_by_region(comparing, context, UNLIMITED)
                found[context] = [_law(by_length(outcomes, 2)) for outcomes in every]
            mine = _law(distributions)
            assert min(_gap(mine, other) for other in found[context]) < TIGHT
            for (m, after), law in distributions.items():
                ends = {to_digits(int(n), m, 2)[-1:] for n in np.flatnonzero(law)}
                deeper |= {(end, after) for end in ends}
        layer = deeper
    assert len({states for _, states in layer}) > 15


def _law(distributions):
    out = {}
    for m, law in drop_states(distributions):
        out[m] = out.get(m, 0.0) + law
    return out


def _gap(one, other):
    if set(one) != set(other):
        return 1.0
    return max(float(np.abs(one[m] - other[m]).max()) for m in one)


def test_proof_and_search_agree():
    """Without a memory both see all there is: the same states, the same worst round."""
    for rule in ("block", "uncapped"):
        root = chain(models("random", 2, seed=3), [rule], [3])
        rounds, states = Rounds(ExactInterpreter(root, V)), initial_states(root)
        target = Continuation(root.model)
        proof = prove(rounds, states, target, 1.0, 1000)
        way = search_reachable(rounds, rounds.initial(states, 5), target, 1.0, 1000)
        assert proof.complete
        assert way.complete
        assert proof.worst_tv == pytest.approx(way.worst_tv, abs=1e-15)
        assert (proof.worst_tv > 0.01) == (rule == "uncapped")


def test_adaptive_windows_under_any_rule_are_proved_over_regions():
    root = chain(models("random", 3, seed=2), ["tokenwise", "block"], [2, 1], [EntropyWindow()] * 2)
    found = certify_tree(root, V)
    assert found.complete
    assert found.states > 50
    assert found.passed()


def test_an_entropy_does_not_exceed_a_mean_of_itself():
    """n equal numbers need not add up to n times the number; no stop may hang on that."""
    window = EntropyWindow()
    for value in np.random.default_rng(0).uniform(0.1, 1.0, 200).tolist():
        state = window.init()
        assert window.stops((value,), state)
        for _ in range(12):
            state = window.observe(state, (value,), 0)
            assert not window.stops((value,), state)
