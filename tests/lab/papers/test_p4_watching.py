"""P4 on models: tokens kept of real drafts against those expected, and the calls they take."""

import math
import time
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from paper_cases import P4_PROMPTS

from hierspec.core.distributions import DenseDistributions, OneHotDistributions
from hierspec.core.proposals import Proposal
from hierspec.engine import engine
from hierspec.lm.tabular import TabularModel
from hierspec.verifiers.registry import get
from hierspec_lab.bench.methods import ours
from hierspec_lab.bench.methods.base import RunRequest
from hierspec_lab.bench.methods.ours import HierarchyMethod
from hierspec_lab.papers import measured as counters
from hierspec_lab.papers.lab import Lab
from hierspec_lab.papers.measured import Measured, tokens_per_call
from hierspec_lab.papers.p4 import watching as p4_watching
from hierspec_lab.papers.p4.lab import measure_methods
from hierspec_lab.papers.p4.tabular import certificate, greedy_model, random_pair
from hierspec_lab.papers.p4.watching import (
    CURVES,
    DraftCollector,
    VerifiedDraft,
    evaluate_draft,
    gain,
    mean_expected,
    mean_kept,
    predicted_tokens_per_call,
    z_score,
)


def proposal(tokens, rows):
    n = len(tokens)
    distributions = (
        rows
        if isinstance(rows, OneHotDistributions)
        else DenseDistributions(torch.tensor(rows, dtype=torch.float64))
    )
    return Proposal(tuple(tokens), distributions, (0,) * n, (0,) * n, (math.nan,) * n)


def all_drafts(draft, target, n):
    """Yield every draft of n tokens: its chance, the draft, the target's n + 1 distributions."""
    for tokens in product(range(draft.vocab_size), repeat=n):
        q = [draft.distribution(tokens[:i]).tolist() for i in range(n)]
        p = [target.distribution(tokens[:i]).tolist() for i in range(n + 1)]
        chance = math.prod(row[token] for row, token in zip(q, tokens, strict=True))
        yield chance, proposal(tokens, q), DenseDistributions(torch.tensor(p, dtype=torch.float64))


WORKED = {  # MATH §1: p = (1/3, 2/3), q = (2/3, 1/3), two tokens
    "tokenwise": 10 / 9,
    "block": 11 / 9,
    "uncapped": 12 / 9,
    "naive": 12 / 9,
}


@pytest.mark.parametrize(("rule", "accepted"), WORKED.items())
def test_the_worked_example_by_hand(rule, accepted):
    third = 1 / 3
    distributions = [2 * third, third], [third, 2 * third]
    draft, target = (TabularModel(2, 0, {"": law}) for law in distributions)
    drafts = list(all_drafts(draft, target, 2))
    found = [(chance, evaluate_draft(get(rule), draft, p, 0)) for chance, draft, p in drafts]
    assert sum(c * s.mean for c, s in found) == pytest.approx(accepted, abs=1e-12)
    if rule in CURVES:
        total = sum(c * s.curves[rule][1:].sum() for c, s in found)
        assert total == pytest.approx(accepted, abs=1e-12)


@pytest.mark.parametrize("kind", ["random", "peaked", "zeros"])
@pytest.mark.parametrize("rule", ["tokenwise", "block", "naive", "uncapped"])
def test_expectations_over_all_drafts_are_the_interpreters(rule, kind):
    draft, target = random_pair(kind, 4)
    n = 3
    exact = certificate(rule, draft, target, n)
    mean, curve = 0.0, np.zeros(n + 1)
    for chance, one, p in all_drafts(draft, target, n):
        if chance > 0.0:
            found = evaluate_draft(get("tokenwise"), one, p, 0, (rule,))
            mean += chance * found.means[rule]
            if rule in CURVES:
                curve += chance * found.curves[rule]
    assert mean == pytest.approx(exact.expected_accepted, abs=1e-12)
    if rule in CURVES:
        assert curve[1:].sum() == pytest.approx(exact.expected_accepted, abs=1e-12)


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_predicted_tokens_a_call_are_the_certificates(n):
    """Compare with certificates, follow-up calls included: no zero cuts resampling short."""
    draft, target = random_pair("random", 7)
    drafts, chances = [], []
    for chance, one, p in all_drafts(draft, target, n):
        drafts.append(evaluate_draft(get("block"), one, p, 0))
        chances.append(chance)
    scale = np.array(chances) * len(drafts)  # a plain mean of these is the mean over drafts
    weighted = [
        VerifiedDraft(0, 0.0, 0.0, {}, {rule: row * w for rule, row in d.curves.items()})
        for d, w in zip(drafts, scale, strict=True)
    ]
    for rule in CURVES:
        exact = certificate(rule, draft, target, n).expected_tokens_per_target_call
        assert predicted_tokens_per_call(weighted, rule, n) == pytest.approx(exact, abs=1e-12)


def test_block_is_above_tokenwise_draft_by_draft_and_naive_above_block():
    for seed in range(10):
        draft, target = random_pair("random", seed)
        for _, one, p in all_drafts(draft, target, 3):
            tokenwise, block, naive = (
                evaluate_draft(get("block"), one, p, 0).curves[r] for r in CURVES
            )
            assert (block >= tokenwise - 1e-12).all()
            assert (naive >= block - 1e-12).all()


def test_an_impossible_token_ends_every_curve():
    draft = proposal([0, 1, 0], [[0.5, 0.5]] * 3)
    p = DenseDistributions(torch.tensor([[0.5, 0.5], [1.0, 0.0], [0.5, 0.5], [0.5, 0.5]]).double())
    found = evaluate_draft(get("block"), draft, p, 1)
    for rule in CURVES:
        assert found.curves[rule].tolist() == [1.0, 1.0, 0.0, 0.0]
    # Certain at two tokens, and (1 − 0) of the time at one: D = Σ max(p − q, 0) = ½ over ½ + 0.
    assert (found.mean, found.variance) == (1.0, 0.0)


def test_a_one_hot_draft_makes_block_tokenwise():
    for seed in range(5):
        draft, target = random_pair("random", seed)
        greedy = greedy_model(draft)
        one, other = (certificate(rule, greedy, target, 3) for rule in ("tokenwise", "block"))
        assert one.expected_accepted == pytest.approx(other.expected_accepted, abs=1e-12)
        sampled = [certificate(rule, draft, target, 3) for rule in ("tokenwise", "block")]
        assert sampled[0].expected_accepted < sampled[1].expected_accepted
    p = DenseDistributions(torch.tensor([[0.25, 0.75]] * 3).double())
    curves = evaluate_draft(
        get("block"), proposal([1, 0], OneHotDistributions((1, 0))), p, 0
    ).curves
    assert curves["block"].tolist() == pytest.approx([1.0, 0.75, 0.1875])
    assert curves["tokenwise"].tolist() == pytest.approx(curves["block"].tolist())


def test_z_scores_and_gains_by_hand():
    curve = {"tokenwise": np.array([1, 0.5]), "block": np.array([1, 0.75])}
    drafts = [VerifiedDraft(1, 0.5, 0.25, {}, curve), VerifiedDraft(1, 0.5, 0.25, {}, curve)]
    assert mean_kept(drafts) == 1.0
    assert mean_expected(drafts).value == 0.5
    assert mean_expected(drafts).error == pytest.approx(math.sqrt(0.5) / 2)
    assert z_score(drafts) == pytest.approx(0.5 / (math.sqrt(0.5) / 2))
    assert (gain(drafts).value, gain(drafts).error) == (0.25, 0.0)
    certain = [VerifiedDraft(2, 2.0, 0.0, {}, curve)]
    assert z_score(certain) == 0.0
    assert math.isnan(gain(certain).error)


@pytest.mark.parametrize("rule", ["tokenwise", "block", "naive"])
def test_the_runtime_keeps_what_the_exact_law_says(models, rule):
    """Check that |z| < 5, which a correct runtime fails once in 10⁶."""
    level = {"method": "draft_model", "model": models.drafts[0], "num_speculative_tokens": 4}
    method = DraftCollector(rule, models, [level], verify=rule)
    runs = [method.run(P4_PROMPTS[0], RunRequest(30, 1.0, seed)) for seed in range(25)]
    drafts = method.drafts(runs)
    assert len(method.rounds) == 25
    assert len(drafts) > 150
    assert abs(z_score(drafts)) < 5.0
    accepted = sum(level.num_accepted_tokens for run in runs for level in run.levels)
    assert sum(draft.kept for draft in drafts) == accepted


def test_watching_changes_nothing(models):
    level = {"method": "draft_model", "model": models.drafts[0], "num_speculative_tokens": 3}
    plain = HierarchyMethod("plain", models, [level], verify="block")
    watched = DraftCollector("watched", models, [level], verify="block")
    request = RunRequest(20, 1.0, 3)
    assert (
        plain.run(P4_PROMPTS[1], request).token_ids == watched.run(P4_PROMPTS[1], request).token_ids
    )


def test_warm_rounds_do_not_count(models):
    level = {"method": "draft_model", "model": models.drafts[0], "num_speculative_tokens": 3}
    method = DraftCollector("block", models, [level], verify="block")
    lab = Lab(models, P4_PROMPTS[:2], max_new_tokens=8)
    (runs,) = measure_methods(lab, [method], 1.0, "test")
    assert len(method.rounds) == 3
    assert method.drafts(runs) == [d for rounds in method.rounds[1:] for d in rounds]


@pytest.mark.parametrize("length", [3, 7])
def test_what_a_run_holds_is_bounded_and_changes_no_number(models, monkeypatch, length):
    level = {"method": "draft_model", "model": models.drafts[0], "num_speculative_tokens": length}
    request, found, held = RunRequest(30, 1.0, 5), [], []
    on_round_end = p4_watching._DraftObserver.on_round_end

    def listening(self, sequences, verdicts):
        on_round_end(self, sequences, verdicts)
        held.append(self.verified_drafts.num_bytes)

    monkeypatch.setattr(p4_watching._DraftObserver, "on_round_end", listening)
    for most in (1 << 28, 5000):  # float64 rows of 97 tokens: one draft of 3 has 5432 bytes
        monkeypatch.setattr(p4_watching, "MAX_PENDING_BYTES", most)
        method, start = (
            DraftCollector("block", models, [level], ("naive",), verify="block"),
            len(held),
        )
        run = method.run(P4_PROMPTS[0], request)
        assert 0 < (run.decode_seconds or 0) < run.seconds
        found.append((run.token_ids, method.rounds[-1]))
        assert max(held[start:]) <= most
    (ids, drafts), (again, others) = found
    assert ids == again
    assert max(held) > 5000, "otherwise the first run was bounded as well"
    for one, other in zip(drafts, others, strict=True):
        assert (one.kept, one.mean, one.variance, one.means) == (
            other.kept,
            other.mean,
            other.variance,
            other.means,
        )


def test_the_clock_stands_still_while_numbers_are_made(models, monkeypatch):
    """Time made by hand: a second passes in every reduction, and none elsewhere."""
    now = [0.0]
    clock = SimpleNamespace(perf_counter=lambda: now[0], monotonic=time.monotonic)
    make = p4_watching.evaluate_draft

    def slow(*args):
        now[0] += 1.0
        return make(*args)

    monkeypatch.setattr(p4_watching, "evaluate_draft", slow)
    monkeypatch.setattr(p4_watching, "MAX_PENDING_BYTES", 0)
    for module in (p4_watching, ours, engine):
        monkeypatch.setattr(module, "time", clock)
    level = {"method": "draft_model", "model": models.drafts[0], "num_speculative_tokens": 3}
    method = DraftCollector("block", models, [level], verify="block")
    run = method.run(P4_PROMPTS[0], RunRequest(12, 1.0, 0))
    assert now[0] == len(method.rounds[0]) > 1
    assert (run.seconds, run.decode_seconds) == (0.0, 0.0)


def test_calls_of_a_batch_are_counted_per_sequence_and_per_forward(models):
    """Check that in greedy decoding a sequence of a batch writes the same, in as many calls."""
    level = {"method": "draft_model", "model": models.drafts[0], "num_speculative_tokens": 3}
    method = HierarchyMethod("block", models, [level], verify="block")
    request = RunRequest(20, 0.0, 0)
    alone = [method.run(prompt, request) for prompt in P4_PROMPTS]
    together = method.run_batch(P4_PROMPTS, request)
    calls = [run.target_calls or 0 for run in alone]
    assert counters.target_calls(alone) == sum(calls) == counters.target_forwards(alone)
    assert counters.target_calls(together) == sum(calls)
    assert counters.target_forwards(together) == pytest.approx(max(calls))
    assert tokens_per_call(together) == tokens_per_call(alone) == 3 * 19 / sum(calls)
    one = Measured("block", tuple(together), tuple(alone))
    assert one.tokens_per_call == tokens_per_call(together)


def test_follow_up_calls_are_calls(models):
    """Count every call of the target in naive branch resampling, not only its rounds."""
    level = {"method": "draft_model", "model": models.drafts[0], "num_speculative_tokens": 5}
    method = DraftCollector("naive", models, [level], verify="naive")
    run = method.run(P4_PROMPTS[0], RunRequest(30, 1.0, 0))
    calls = 29 / tokens_per_call([run])
    (drafts,) = method.rounds
    follow_ups = sum(max(0, d.length - d.kept - 1) for d in drafts)
    assert follow_ups > 0
    assert calls == pytest.approx(run.target.calls)
    # A text's last round may be one without a draft, which is seen by nobody.
    assert run.target.calls - len(drafts) - follow_ups in (0, 1)
