"""What a rule does in the engine and not where it is enumerated is found out by `certify`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from hierspec.cli import run
from hierspec.core.rules import Acceptance
from hierspec.errors import HierspecError
from hierspec.exact.certificate import certify, load_case
from hierspec.verifiers import registry
from hierspec.verifiers.multi_draft import RRS
from hierspec.verifiers.tokenwise import Tokenwise

EXAMPLES = sorted((Path(__file__).parents[2] / "examples" / "certify").glob("*.json"))
DRAFT = {"": [0.2, 0.5, 0.3], "0": [0.5, 0.3, 0.2], "1": [0.7, 0.2, 0.1], "2": [0.1, 0.1, 0.8]}
TARGET = {"": [0.6, 0.3, 0.1], "0": [0.1, 0.6, 0.3], "1": [0.4, 0.3, 0.3], "2": [0.3, 0.2, 0.5]}


def case(rule="mine", **level):
    return {
        "vocab": 3,
        "models": [{"order": 1, "table": table} for table in (DRAFT, TARGET)],
        "levels": [{"num_speculative_tokens": 2, **level}, {"verify": rule}],
    }


@pytest.fixture
def mine(monkeypatch):
    """Makes a rule known as a user's."""
    monkeypatch.setattr(registry, "_RULES", dict(registry._RULES))
    return lambda kind: registry._RULES.update(mine=kind())


class Rule(Tokenwise):
    name = "mine"


class WritesIntoQ(Rule):
    """To no effect on these tables: only where a draft is certain."""

    def acceptance(self, batch):
        batch.q.clamp_(max=0.99)
        return super().acceptance(batch)


class WritesByNumpy(Rule):
    """The target's distributions, which another level reads where this one is not the last."""

    def reported(self, batch):
        batch.p.numpy()[:] = 1.0 / 3.0
        return batch.p


class WritesIntoRows(RRS):
    name = "mine"

    def choose(self, drafts, p):
        p[0].row(0).mul_(0.5)
        return (yield from super().choose(drafts, p))


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (WritesIntoQ, r"test_engine_rounds.py, line \d+: rule 'mine' writes into batch.q"),
        (WritesByNumpy, "rule 'mine' writes into batch.p"),
        (WritesIntoRows, "rule 'mine' writes into a row of p, or of a draft"),
    ],
)
def test_a_rule_that_writes_into_what_it_is_given_is_refused(rule, words, mine):
    mine(rule)
    with pytest.raises(HierspecError, match=words):
        certify(case(num_drafts=2 if rule is WritesIntoRows else 1))


class TakesTheFirstDraftsTau(Rule):
    """As good as its own where all drafts of a batch stop at one place, as enumerated ones do."""

    def correction(self, batch, accepted, tau):
        return super().correction(batch, accepted, tau[0].expand(len(tau)))


class DecidesByItself(Rule):
    def decide(self, p_x, q_x, uniforms, excess):
        return len(p_x), 1.0


class WearsOut(Rule):
    """Another one after some calls."""

    calls, good_for = 0, 1 << 30

    def acceptance(self, batch):
        type(self).calls += 1
        accepted = super().acceptance(batch)
        return accepted if self.calls <= self.good_for else self.worn(accepted)

    def worn(self, accepted):
        return Acceptance(accepted.h.sqrt(), accepted.w)


class FailsLater(WearsOut):
    def worn(self, accepted):
        raise KeyError("no more")


@pytest.fixture
def worn(mine):
    """Makes a rule known that is another one where the enumeration ends."""

    def make(rule):
        mine(rule)
        rule.calls, rule.good_for = 0, 1 << 30
        assert certify(case(), engine_runs=0).passed()
        rule.calls, rule.good_for = 0, rule.calls

    return make


@pytest.mark.parametrize(
    ("rule", "place"),
    [
        (TakesTheFirstDraftsTau, "in a batch with others"),
        (DecidesByItself, "alone"),
        (WearsOut, "alone"),
    ],
)
def test_a_rule_that_is_lossy_in_the_engine_is_not_certified(rule, place, mine, worn):
    (worn if rule is WearsOut else mine)(rule)
    assert rule is WearsOut or certify(case(), engine_runs=0).passed()
    certificate = certify(case())
    assert certificate.tv < 1e-12
    assert certificate.lossy
    assert not certificate.passed(allow_inconclusive=True)
    assert certificate.engine.tv > 1e-3
    assert not certificate.engine.complete
    assert certificate.engine.lossy_round["state"] == place


@pytest.mark.parametrize(
    ("rule", "status", "words"),
    [
        (WearsOut, 1, "LOSSY: the engine's rounds are not those that were enumerated"),
        (FailsLater, 2, "rule 'mine' fails in the engine: KeyError: 'no more'"),
    ],
)
def test_the_command_says_what_the_engine_did(rule, status, words, worn, tmp_path, capsys):
    worn(rule)
    file = tmp_path / "case.json"
    file.write_text(json.dumps(case()))
    assert run(["certify", str(file)]) == status
    said = capsys.readouterr()
    assert words in said.out + said.err
    assert "Traceback" not in said.err


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_in_the_engine(path):
    certificate = certify(load_case(path), engine_runs=150)
    engine = certificate.engine
    assert engine.states > 0 or engine.lossy_round
    assert engine.tv == pytest.approx(certificate.worst_round_tv, abs=1e-12)


@pytest.mark.parametrize("name", sorted(registry._BUILT_IN))
def test_rules_in_the_engine(name):
    rule = registry.get(name)
    certificate = certify(case(name, num_drafts=2 if rule.multi_draft else 1), engine_runs=200)
    assert (certificate.engine.runs > 0) is not rule.draft_independent
    assert certificate.passed() is (certificate.engine.tv < 1e-12) is rule.exact


class AsksTheScores(Rule):
    """Keeps less where the best score is low, and draws accordingly."""

    reads_scores = True

    def share(self, batch):
        return (batch.scores.amax(-1) > -1.0).double().mul(0.5).add(0.5)

    def acceptance(self, batch):
        accepted = super().acceptance(batch)
        return Acceptance(accepted.h * self.share(batch)[:, :-1], accepted.w)

    def rest(self, p, w, batch, at):
        return p - self.share(batch)[at].unsqueeze(-1) * torch.minimum(p, batch.q[at])


def test_what_differs_and_is_lossless_is_certified(mine):
    """In the engine scores are others than the enumeration makes up."""
    mine(AsksTheScores)
    certificate = certify(case())
    assert certificate.passed()
    assert certificate.engine.complete


class Recursive(RRS):
    name = "mine"


@pytest.mark.parametrize(("rule", "num_drafts"), [(Rule, 1), (Recursive, 2)])
def test_what_float32_rounds_in_rare_drafts_is_certified(rule, num_drafts, mine):
    mine(rule)
    content = case(num_drafts=num_drafts)
    rows = [0.0, 1.0 - 1e-8, 1e-8], [1e-40, 1.0, 1e-30]
    content["models"] = [{"order": 0, "table": {"": row}} for row in rows]
    assert certify(content).passed()


class RoundsItsRatios(Recursive):
    """In float32 alone, where 1e8 and 1 more are the same."""

    def choose(self, drafts, p):
        choice, kept = super().choose(drafts, p), None
        while True:
            try:
                h = choice.send(kept)
            except StopIteration as stop:
                return stop.value
            kept = yield h * (0.9 if p[0].row(0).sum() + 1e8 == 1e8 else 1.0)


def test_several_drafts_are_decided_in_float32_too(mine):
    mine(RoundsItsRatios)
    with pytest.raises(HierspecError, match=r"float32, as a model's are: compute with p\[j\]"):
        certify(case(num_drafts=2))


class HasParameters(Rule):
    def acceptance(self, batch):
        accepted = super().acceptance(batch)
        one = torch.nn.Parameter(torch.ones((), dtype=torch.float64))
        return Acceptance(accepted.h * one, accepted.w)


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.enable_grad])
def test_modes_of_torch_do_not_matter(mode, mine):
    mine(HasParameters)
    with mode():
        assert certify(case()).passed()


@pytest.mark.parametrize(
    ("content", "complete"),
    [
        (case("block") | {"control": [[2], [1], [0]]}, True),
        (case("block", window={"kind": "entropy"}), False),
        (case("block", window={"kind": "entropy", "threshold": 0.8}), True),
    ],
)
def test_plans_and_windows(content, complete):
    certificate = certify(content, engine_runs=4000)
    assert certificate.passed()
    assert 0 < certificate.engine.runs < 4000
    assert certificate.engine.complete is complete


def test_hierspecs_own_rules_are_not_run_unasked():
    assert certify(case("block")).engine is None


def test_runs_that_are_not_all(mine, tmp_path, capsys):
    mine(Rule)
    whole = certify(case())
    assert whole.engine.complete
    assert whole.passed()
    part = certify(case(), engine_runs=whole.engine.runs - 1)
    assert not part.engine.complete
    assert part.engine.runs == whole.engine.runs - 1
    assert part.engine.states == whole.engine.states - 1
    file = tmp_path / "case.json"
    file.write_text(json.dumps(case()))
    assert run(["certify", str(file), "--engine-runs", "30"]) == 0
    said = capsys.readouterr().out
    assert "runs of the engine        30" in said
    assert "lossless as enumerated" in said
