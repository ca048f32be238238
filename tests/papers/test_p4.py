"""P4 on models: tokens kept of real drafts against those expected, and the tables of both."""

import json
import math
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from paper_cases import counters_of

from hierspec.bench.methods import ours
from hierspec.bench.methods.base import Run, RunRequest
from hierspec.bench.methods.ours import BenchModels, HierarchyMethod
from hierspec.config.schema import TargetConfig
from hierspec.core.distributions import DenseDistributions, OneHotDistributions
from hierspec.core.proposals import Proposal
from hierspec.engine import generation as generate
from hierspec.lm.tabular import TabularModel
from hierspec.verifiers.registry import get
from hierspec.verifiers.verify import verify_batch
from hierspec_papers import measured as counters
from hierspec_papers import reproduce
from hierspec_papers.lab import Lab
from hierspec_papers.measured import Measured, tokens_per_call
from hierspec_papers.p4 import cap as p4_cap
from hierspec_papers.p4 import cost as p4_cost
from hierspec_papers.p4 import drafts as p4_drafts
from hierspec_papers.p4 import rules as p4_rules
from hierspec_papers.p4 import watching as p4_watching
from hierspec_papers.p4.cap import Shift
from hierspec_papers.p4.lab import measure_methods
from hierspec_papers.p4.tabular import certificate, greedy_model, random_pair
from hierspec_papers.p4.watching import (
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

PROMPTS = ((5, 6, 7, 8, 9, 10), (20, 21, 22, 23), (40, 41, 42, 43, 44))


@pytest.fixture(scope="module")
def models(tiny_family):
    target = TargetConfig(model=tiny_family["target"], dtype="float64")
    return BenchModels(target, (tiny_family["draft"],))


@pytest.fixture
def lab(models):
    return Lab(models, PROMPTS, max_new_tokens=14, temperatures=(0.0, 1.0))


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
    runs = [method.run(PROMPTS[0], RunRequest(30, 1.0, seed)) for seed in range(25)]
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
    assert plain.run(PROMPTS[1], request).token_ids == watched.run(PROMPTS[1], request).token_ids


def test_warm_rounds_do_not_count(models):
    level = {"method": "draft_model", "model": models.drafts[0], "num_speculative_tokens": 3}
    method = DraftCollector("block", models, [level], verify="block")
    lab = Lab(models, PROMPTS[:2], max_new_tokens=8)
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
        run = method.run(PROMPTS[0], request)
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
    clock = SimpleNamespace(perf_counter=lambda: now[0])
    make = p4_watching.evaluate_draft

    def slow(*args):
        now[0] += 1.0
        return make(*args)

    monkeypatch.setattr(p4_watching, "evaluate_draft", slow)
    monkeypatch.setattr(p4_watching, "MAX_PENDING_BYTES", 0)
    for module in (p4_watching, ours, generate):
        monkeypatch.setattr(module, "time", clock)
    level = {"method": "draft_model", "model": models.drafts[0], "num_speculative_tokens": 3}
    method = DraftCollector("block", models, [level], verify="block")
    run = method.run(PROMPTS[0], RunRequest(12, 1.0, 0))
    assert now[0] == len(method.rounds[0]) > 1
    assert (run.seconds, run.decode_seconds) == (0.0, 0.0)


def test_calls_of_a_batch_are_counted_per_sequence_and_per_forward(models):
    """Check that in greedy decoding a sequence of a batch writes the same, in as many calls."""
    level = {"method": "draft_model", "model": models.drafts[0], "num_speculative_tokens": 3}
    method = HierarchyMethod("block", models, [level], verify="block")
    request = RunRequest(20, 0.0, 0)
    alone = [method.run(prompt, request) for prompt in PROMPTS]
    together = method.run_batch(PROMPTS, request)
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
    run = method.run(PROMPTS[0], RunRequest(30, 1.0, 0))
    calls = 29 / tokens_per_call([run])
    (drafts,) = method.rounds
    follow_ups = sum(max(0, d.length - d.kept - 1) for d in drafts)
    assert follow_ups > 0
    assert calls == pytest.approx(run.target.calls)
    # A text's last round may be one without a draft, which is seen by nobody.
    assert run.target.calls - len(drafts) - follow_ups in (0, 1)


def test_rules(lab):
    found = p4_rules.measure(lab, lengths=(1, 3, 5), pairs=2)
    names = [table.name for table in found.tables]
    assert names == [
        "Table 3(b)",
        "Rules at temperature 1",
        "Exact law at temperature 1",
        "One-hot drafts",
    ]
    beside, speeds, law, one_hot = found.tables
    assert [row.label for row in beside.rows] == ["Tokenwise", "Blockwise", "Hierarchical"]
    assert beside.rows[1].cells[0].computed == beside.rows[2].cells[0].computed
    assert not any(table.compared for table in found.tables)
    by_length = {row.label: row.extra for row in speeds.rows}
    tokens = speeds.extra.index("tokenwise /call")
    assert by_length["1"][tokens] == by_length["1"][tokens + 1] == by_length["1"][tokens + 2]
    same, seen_z = law.extra.index("gain, same drafts"), law.extra.index("z naive")
    gains = [row.extra[same] for row in law.rows]
    assert gains[0] == pytest.approx(0.0, abs=1e-12)
    assert min(gains[1:]) > 0.0
    assert all(abs(z) < 5.0 for row in law.rows for z in row.extra[: seen_z + 1])
    assert one_hot.inputs["largest_difference_one_hot"] < 1e-12
    (figure,) = found.figures
    assert {curve.kind for curve in figure.curves} == {"line", "points"}
    json.dumps(found.to_dict(), allow_nan=False)


def test_rules_stand_beside_printed_numbers_at_temperature_1_only(lab):
    lab.temperatures = (0.7,)
    names = [table.name for table in p4_rules.measure(lab, lengths=(2,), pairs=1).tables]
    assert names == ["Rules at temperature 0.7", "Exact law at temperature 0.7", "One-hot drafts"]


def test_drafts(lab):
    lab.source = {"file": "humaneval.jsonl"}
    found = p4_drafts.measure(lab, counts=(1, 3), length=3)
    beside, table, together = found.tables
    assert [cell.printed for cell in beside.rows[-1].cells] == ["8.26", "36.83"]
    assert [row.extra for row in beside.rows] == [(1,), (1,), (3,), (3,)]
    first = dict(zip(table.extra, table.rows[0].extra, strict=True))
    # One draft: with and without replacement are one rule, and they share their random numbers.
    assert first["rrs /call"] == first["rrs-without-replacement /call"]
    assert beside.rows[0].cells[0].computed == first["rrs /call"]
    assert together.inputs["batch_size"] == len(PROMPTS)
    assert all(speed > 0.0 for row in together.rows for speed in row.extra)
    json.dumps(found.to_dict(), allow_nan=False)


def test_cost_parts_add_up():
    counted = counters_of(forward_seconds=2.0, verify_seconds=0.0, seconds=2.5)
    target = counters_of(forward_seconds=4.0, verify_seconds=0.25, seconds=5.0)
    run = Run((1, 2, 3, 4), 10.0, 8.0, 2, (counted,), target)
    assert p4_cost.ms_by_part([run, run]) == {
        "Total": 2500.0,
        "Prefill": 500.0,
        "Draft Forward": 500.0,
        "Target Forward": 1000.0,
        "Logits Processing": 312.5,
        "Verification": 62.5,
        "Other": 125.0,
    }


def test_cost(lab):
    found = p4_cost.measure(lab, length=3, vocab=300, lengths=(2,))
    table, computed = found.tables
    assert [row.label for row in table.rows] == list(p4_cost.TABLE_A4)
    shares = {row.label: row.cells[1].computed for row in table.rows}
    assert sum(shares.values()) == pytest.approx(200.0)
    assert 0.0 < shares["Verification"] < 100.0
    assert [row.label for row in computed.rows] == ["tokenwise, 2", "block, 2"]
    json.dumps(found.to_dict(), allow_nan=False)


def test_verification_is_part_of_a_levels_time(models):
    level = {"method": "draft_model", "model": models.drafts[0], "num_speculative_tokens": 3}
    for rule, more in (("block", {}), ("block-rrs", {"num_drafts": 2})):
        method = HierarchyMethod(rule, models, [{**level, **more}], verify=rule)
        run = method.run(PROMPTS[0], RunRequest(10, 1.0, 0))
        target, (draft,) = run.target, run.levels
        assert target.verify_seconds > 0.0
        assert target.verify_seconds + target.forward_seconds <= target.seconds
        assert draft.verify_seconds == 0.0


def test_shares_of_a_round():
    timing = p4_cost.Timing(2.0, 3.0, {"block": 5.0}, {"block": 1.0})
    assert p4_cost.shares(timing, "block", 4, 10.0, 50.0) == {
        "verification": 0.05,
        "sampling": 0.05,
        "forwards": 0.9,
    }
    assert p4_cost.roofline_ms(5e8, 1e10) == 100.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_made_up_drafts_are_kept_now_and_then(dtype):
    """Check that verification reads rows of the vocabulary, which is what is timed."""
    found = p4_cost.timing(500, 4, batch=2, dtype=dtype, rounds=30)
    assert all(0.5 < value < 3.9 for value in found.kept.values())


def test_cap(lab):
    found = p4_cap.measure(lab, lengths=(1, 2), pairs=3, length=3)
    certified_, beside = found.tables
    for row in certified_.rows:
        keeps, uncapped, tv_block, median, largest = row.extra
        assert tv_block < 1e-12
        assert uncapped >= keeps - 1e-12
        assert largest >= median
        if row.label.endswith(", 1"):
            assert uncapped == pytest.approx(keeps)
            assert largest < 1e-12
        elif row.label.startswith("random"):
            assert largest > 0.01
    assert [row.label for row in beside.rows] == ["HSD + Capping", "HSD"]
    assert beside.inputs["gain_same_drafts"]["mean"] >= 0.0
    assert all(abs(row.extra[2]) < 5.0 for row in beside.rows[:1])
    json.dumps(found.to_dict(), allow_nan=False)


def test_a_shift_by_hand():
    law = torch.tensor([[0.5, 0.5, 0.0], [0.75, 0.25, 0.0]])
    found = Shift.from_tokens(law, [0, 1])
    entropy = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    assert found.total == pytest.approx(math.log(0.25) + entropy)
    second = 0.75 * math.log(0.75) ** 2 + 0.25 * math.log(0.25) ** 2
    assert found.variance == pytest.approx(second - entropy**2)
    assert (found + found).per_token == pytest.approx(found.per_token)
    assert found.z == pytest.approx(found.per_token / found.error)


def test_texts_are_scored_in_parts(models, monkeypatch):
    lab = Lab(models, PROMPTS, max_new_tokens=14)
    plain = HierarchyMethod("plain", models)
    runs = [plain.run(prompt, RunRequest(14, 1.0, i)) for i, prompt in enumerate(PROMPTS)]
    whole, rows = p4_cap._shift(lab, runs, 0.7), []
    from_tokens = Shift.from_tokens

    def counted(law, tokens):
        rows.append(len(law))
        return from_tokens(law, tokens)

    monkeypatch.setattr(Shift, "from_tokens", counted)
    monkeypatch.setattr(p4_cap, "_ROWS", 4)
    parts = p4_cap._shift(lab, runs, 0.7)
    assert rows == [4, 4, 4, 2] * 3
    assert parts.tokens == whole.tokens == 42
    assert parts.total == pytest.approx(whole.total, abs=1e-10)
    assert parts.variance == pytest.approx(whole.variance, abs=1e-10)


def test_a_lossless_text_has_no_shift_and_a_wrong_law_has_one(models):
    lab = Lab(models, [PROMPTS[0]] * 30, max_new_tokens=30, temperatures=(1.0,))
    level = {"method": "draft_model", "model": models.drafts[0], "num_speculative_tokens": 4}
    method = DraftCollector("block", models, [level], verify="block")
    (runs,) = measure_methods(lab, [method], 1.0, "test")
    assert abs(p4_cap._shift(lab, runs, 1.0).z) < 5.0  # but once in 10⁶
    assert p4_cap._shift(lab, runs, 0.5).z < -10.0  # the same texts are no draws at 0.5


def test_the_kept_residual_is_the_one_drawn_from():
    """Check that reusing the row that a passed test has summed gives the same token."""
    from hierspec.core.rng import PhiloxRng
    from hierspec.verifiers.verify import verify

    generator = torch.Generator().manual_seed(0)
    middles = 0
    for number in range(300):
        p = torch.rand(5, 7, generator=generator, dtype=torch.float64) ** 3
        q = torch.rand(4, 7, generator=generator, dtype=torch.float64) ** 3
        p, q = p / p.sum(-1, keepdim=True), q / q.sum(-1, keepdim=True)
        draft = proposal(
            torch.multinomial(q, 1, generator=generator).flatten().tolist(), q.tolist()
        )
        rows = DenseDistributions(p)
        (short,) = verify_batch(get("block"), [draft], [rows], [PhiloxRng(number, 0)])
        long = verify(get("block"), draft, rows, PhiloxRng(number, 0))
        assert short.emitted.tokens == long.emitted.tokens
        middles += 0 < short.num_accepted < 4
    assert middles > 50


@pytest.mark.parametrize("what", ["p4-rules", "p4-drafts", "p4-cost", "p4-cap"])
def test_what_is_missing_is_said(models, what):
    with pytest.raises(ValueError, match="give a lab"):
        reproduce(what)
    greedy = Lab(models, PROMPTS, temperatures=(0.0,))
    with pytest.raises(ValueError, match="temperature above 0"):
        reproduce(what, greedy)
    short = Lab(models, PROMPTS, max_new_tokens=2)
    with pytest.raises(ValueError, match="at least 3 new tokens"):
        reproduce(what, short)
    alone = Lab(BenchModels(models.target), PROMPTS)
    with pytest.raises(ValueError, match="needs a draft model"):
        reproduce(what, alone)
    silent = Lab(models, ())
    with pytest.raises(ValueError, match="needs prompts"):
        reproduce(what, silent)
