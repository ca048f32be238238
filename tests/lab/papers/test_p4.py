"""P4's tables on models: rules, several drafts, costs, and what the missing cap does."""

import json

import pytest
import torch
from paper_cases import P4_PROMPTS, counters_of

from hierspec_lab.bench.methods.base import Run, RunRequest
from hierspec_lab.bench.methods.ours import BenchModels, HierarchyMethod
from hierspec_lab.papers import reproduce
from hierspec_lab.papers.lab import Lab
from hierspec_lab.papers.p4 import cap as p4_cap
from hierspec_lab.papers.p4 import cost as p4_cost
from hierspec_lab.papers.p4 import drafts as p4_drafts
from hierspec_lab.papers.p4 import rules as p4_rules
from hierspec_lab.papers.p4.lab import measure_methods
from hierspec_lab.papers.p4.watching import DraftCollector


@pytest.fixture
def lab(models):
    return Lab(models, P4_PROMPTS, max_new_tokens=14, temperatures=(0.0, 1.0))


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
    assert together.inputs["batch_size"] == len(P4_PROMPTS)
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
        run = method.run(P4_PROMPTS[0], RunRequest(10, 1.0, 0))
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


def test_a_lossless_text_has_no_shift_and_a_wrong_law_has_one(models):
    lab = Lab(models, [P4_PROMPTS[0]] * 30, max_new_tokens=30, temperatures=(1.0,))
    level = {"method": "draft_model", "model": models.drafts[0], "num_speculative_tokens": 4}
    method = DraftCollector("block", models, [level], verify="block")
    (runs,) = measure_methods(lab, [method], 1.0, "test")
    found, wrong = (p4_cap.total_likelihood(lab, runs, t) for t in (1.0, 0.5))
    assert abs(found.law_z) < 5.0  # but once in 10⁶
    assert wrong.law_z < -10.0  # the same texts are no draws at 0.5


@pytest.mark.parametrize("what", ["p4-rules", "p4-drafts", "p4-cost", "p4-cap"])
def test_what_is_missing_is_said(models, what):
    with pytest.raises(ValueError, match="give a lab"):
        reproduce(what)
    greedy = Lab(models, P4_PROMPTS, temperatures=(0.0,))
    with pytest.raises(ValueError, match="temperature above 0"):
        reproduce(what, greedy)
    short = Lab(models, P4_PROMPTS, max_new_tokens=2)
    with pytest.raises(ValueError, match="at least 3 new tokens"):
        reproduce(what, short)
    alone = Lab(BenchModels(models.target), P4_PROMPTS)
    with pytest.raises(ValueError, match="needs a draft model"):
        reproduce(what, alone)
    silent = Lab(models, ())
    with pytest.raises(ValueError, match="needs prompts"):
        reproduce(what, silent)
