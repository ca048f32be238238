"""Wrong outputs are told from rounding and from chance."""

import json
import math

import pytest
import torch
from fake_methods import fixed
from fakes.tables import OneLaw
from tiny_benches import PROMPTS, TOKENS, bench, fake_entry, methods_of, shown

from hierspec_lab.bench import correctness
from hierspec_lab.bench.methods.base import RunRequest
from hierspec_lab.bench.methods.ours import HierarchyMethod
from hierspec_lab.bench.report.table import equality


def test_a_wrong_greedy_method_is_told_from_rounding(models):
    def plain(prompt, request):
        run = HierarchyMethod("plain", models).run(prompt, request)
        return list(run.token_ids)

    def wrong(prompt, request):
        ids = plain(prompt, request)
        worst = correctness.scores(models.plain.root.model, prompt, ids)[4].argmin()
        return [*ids[:4], int(worst), *ids[5:]]

    def short(prompt, request):
        return plain(prompt, request)[:-1]

    data = bench(models, [fake_entry(f.__name__, f) for f in (plain, wrong, short)][1:]).run()
    found, cell = methods_of(data), data.cells[0]
    assert found["plain"].summary.same_as_plain == 3
    assert found["wrong"].summary.same_as_plain == 0
    limit = cell.near_tie_tolerance
    assert all(run.first_difference_gap > 100 * limit for run in found["wrong"].runs)
    assert all(run.first_difference_gap is None for run in found["short"].runs)
    assert str(equality(cell, found["plain"])) == "equal 3/3"
    assert str(equality(cell, found["wrong"])) == "WRONG 3/3"
    assert str(equality(cell, found["short"])) == "WRONG 3/3"
    for run in found["wrong"].runs:
        run.first_difference_gap = limit / 2
    assert str(equality(cell, found["wrong"])) == "equal 0, near-tie 3"


def test_the_gap_is_that_of_the_worse_token(models):
    model, prompt = models.plain.root.model, PROMPTS[0]
    ids = list(HierarchyMethod("plain", models).run(prompt, RunRequest(4)).token_ids)
    row = correctness.scores(model, prompt, ids)[2]
    second = int(row.topk(2).indices[1])
    found = correctness.gap(model, prompt, ids, [*ids[:2], second, 0])
    assert found == pytest.approx(float(row.max() - row[second]), abs=1e-4)
    assert correctness.gap(model, prompt, ids, ids) is None


def test_a_lossy_method_is_caught_by_the_likelihood(models):
    """Three prompts × 40 tokens from a law at temperature 1.5 instead of 1; seeds are fixed."""

    def lossy(prompt, request):
        hotter = RunRequest(request.max_new_tokens, 1.5 * request.temperature, request.seed)
        return HierarchyMethod("plain", models).run(prompt, hotter).token_ids

    def honest(prompt, request):
        other = RunRequest(request.max_new_tokens, request.temperature, request.seed + 100)
        return HierarchyMethod("plain", models).run(prompt, other).token_ids

    entries = [fake_entry("lossy", lossy), fake_entry("honest", honest)]
    data = bench(models, entries, temperatures=(1.0,), tokens=40).run()
    found = {name: r.summary.logprob for name, r in methods_of(data).items()}
    assert not found["lossy"].within_noise
    assert found["lossy"].difference_from_plain < 0
    assert found["honest"].within_noise
    assert found["plain"].within_noise
    assert found["plain"].difference_from_plain == 0
    assert "OTHER DISTRIBUTION" in shown(data)


@pytest.mark.parametrize("rows", [1, 32])
def test_likelihood_against_the_law_by_hand(monkeypatch, rows):
    """However many of its distributions are held at once."""
    monkeypatch.setattr(correctness, "_ROWS", rows)
    model = OneLaw(torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64).log())
    found = correctness.likelihood(model, [0], [0, 2, 1], 1.0)
    p = [0.5, 0.3, 0.2]
    entropy = -sum(x * math.log(x) for x in p)
    variance = sum(x * math.log(x) ** 2 for x in p) - entropy**2
    assert found.logprob == pytest.approx(math.log(0.5 * 0.2 * 0.3))
    assert found.surplus == pytest.approx(found.logprob + 3 * entropy)
    assert found.variance == pytest.approx(3 * variance)
    squared = [x * x / sum(y * y for y in p) for x in p]  # temperature ½
    assert correctness.likelihood(model, [0], [1], 0.5).logprob == pytest.approx(
        math.log(squared[1])
    )


def test_a_wrong_token_is_seen_where_the_law_leaves_nothing_to_chance():
    sure, wrong = (
        correctness.Likelihood(2),
        correctness.Likelihood(2, -900.0, -900.0, 0.0),
    )
    assert correctness.law_test([sure], [sure]).within_noise
    assert not correctness.law_test([wrong], [sure]).within_noise


def test_scores_of_masked_ids_leave_the_tolerance_finite():
    model = OneLaw(torch.tensor([0.0, -5.0, -math.inf]))
    expected = correctness._FINE_ROUNDING_STEPS * torch.finfo(torch.float32).eps * 5
    assert correctness.tolerance(model, [0]) == pytest.approx(expected)
    assert correctness.gap(model, [0], [0], [1]) == 5.0
    assert correctness.gap(model, [0], [0], [2]) is None


def test_an_impossible_token_is_a_row_and_the_file_stays_json(models, monkeypatch, tmp_path):
    honest = correctness.likelihood

    def masked(model, prompt, ids, temperature):
        if list(ids) == list(range(TOKENS)):
            return correctness.Likelihood(TOKENS, -math.inf, -math.inf, 1.0)
        return honest(model, prompt, ids, temperature)

    monkeypatch.setattr(correctness, "likelihood", masked)
    path = tmp_path / "r.json"
    bench(models, [fake_entry("fake", fixed)], path, temperatures=(1.0,)).run()
    found = methods_of(json.loads(path.read_text()))
    assert "probability 0" in found["fake"].skipped
    assert found["plain"].summary.logprob is not None
