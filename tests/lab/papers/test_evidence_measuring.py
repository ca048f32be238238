"""Evidence measured: what is counted of runs, files that can be resumed, and prompts."""

import json
import math
import statistics

import numpy as np
import pytest
import torch
from fakes.models import FakeFamily
from fakes.tokenizers import RecordingTemplate
from paper_evidence import counting, measuring
from paper_evidence.experiments import Experiment
from paper_evidence.families import FAMILIES
from paper_evidence.files import ExperimentRun
from paper_evidence.methods import MethodSpec, hispec
from work import Work

from hierspec.errors import HierspecError
from hierspec_lab.papers import prompts

# --- counting and measuring, on a small model


def test_counts_are_the_runs(tmp_path):
    """Compare a sequence of a batch with the same one alone, and with the engine's counters."""
    family = FAMILIES["trunk"]
    spec = hispec(family, 1, 2)
    models = family.models()
    method = counting.HierarchyMethod("hispec", models, spec.levels, **spec.top_level)
    texts = [list(range(40, 52)), list(range(90, 99))]
    request = counting.RunRequest(10, 0.0, 3)
    batch = counting.measure_runs(method, texts, request, 24, compares_kept=True)
    for number, (text, measured) in enumerate(zip(texts, batch, strict=True), 24):
        assert (measured.method, measured.prompt) == ("hispec", number)
        (alone,) = counting.measure_runs(method, [text], request, number, compares_kept=True)
        times = {"seconds", "decode_seconds", "level_seconds", "verify_seconds"}
        assert measured.model_dump(exclude=times) == alone.model_dump(exclude=times)
        run = method.run(text, request)
        low, high, target = measured.levels
        assert [level.name for level in measured.levels] == [part.name for part in run.counters]
        for counts, counter in ((low, run.levels[0]), (high, run.levels[1])):
            assert counts.drafted == counter.num_draft_tokens
            assert counts.accepted == counter.num_accepted_tokens
        assert target.calls == measured.target_calls == run.target_calls
        assert sum(counts.offered for counts in measured.rounds) == high.drafted
        assert measured.kept_sums.kept == high.accepted
        assert measured.kept_sums.drafts == len(measured.rounds)
        longest = measured.kept_sums.positions
        assert 0 < longest.drafts <= measured.kept_sums.drafts
        for less, more in (("tokenwise", "block"), ("block", "ideal")):
            for low, high in zip(longest.by_rule[less], longest.by_rule[more], strict=True):
                assert low <= high + 1e-6


@pytest.mark.parametrize("bonus", [True, False])
def test_prices_of_exits_are_what_the_counters_say(bonus):
    """Passes over the layers that the trunk counts, over the calls by level and their prices."""
    family = FAMILIES["trunk"]
    spec, models = hispec(family, 1, 2), family.models()
    low, high = spec.levels
    levels = (low, {**high, "bonus": bonus})
    method = counting.HierarchyMethod("hispec", models, levels, **spec.top_level)
    prices = counting.call_prices(method)
    trunk = method.hierarchy.root.model.trunk
    layers = np.diff([0, *trunk.exits])
    text, request = list(range(40, 52)), counting.RunRequest(24, 0.0, 3)
    method.run(text, request)  # the prompt's own call is not a call of a level
    done = Work(trunk)
    run = method.run(text, request)
    passes = np.array(done.calls) @ layers / trunk.exits[-1] - 1
    priced = sum(level.calls * prices[level.name] for level in run.counters)
    # A check of no draft, at the end of a text, runs all layers of its exit with or without.
    assert passes == pytest.approx(priced, abs=0.0 if bonus else 0.5)
    assert prices[run.counters[1].name] == pytest.approx(2 / 8 if bonus else 1 / 8)


@pytest.fixture
def experiment(monkeypatch):
    def measure_runs(method, ids, request, first, **options):
        return [
            ExperimentRun(
                method=method.name,
                prompt=number,
                tokens=1,
                text=f"{request.seed} {number}",
                target_calls=0,
                seconds=1.0,
                decode_seconds=0.0,
                levels=[],
                rounds=[],
            )
            for number, _ in enumerate(ids, first)
        ]

    monkeypatch.setattr(measuring.counting, "measure_runs", measure_runs)
    monkeypatch.setattr(measuring.counting, "call_prices", lambda method: None)

    def make(family):
        return {"a": MethodSpec(), "b": MethodSpec(({"method": "x"},))}

    return Experiment("p3-trunk", "", FakeFamily(), make, 0.0, max_prompts=48)  # type: ignore[arg-type]


def texts(count):
    return [prompts.Prompt(f"text {i}", "file", i, "qa") for i in range(count)]


def test_measuring_goes_on_where_it_stopped(experiment, tmp_path):
    whole, parts = tmp_path / "whole.json", tmp_path / "parts.json"
    silent = {"report_progress": lambda line: None}
    assert measuring.measure(experiment, texts(48), [], whole, lambda file: False, **silent)
    data = json.loads(whole.read_text())
    assert (len(data["prompts"]), len(data["runs"])) == (48, 96)
    assert data["environment"][0]["versions"]["torch"]

    def interrupt(line):
        raise KeyboardInterrupt

    for _ in range(4):  # groups of 12, each interrupted once it is written
        with pytest.raises(KeyboardInterrupt):
            measuring.measure(
                experiment, texts(48), [], parts, lambda file: False, report_progress=interrupt
            )
    assert measuring.measure(
        experiment, texts(48), [], parts, lambda file: False, report_progress=interrupt
    )
    late = tmp_path / "late.json"
    assert not measuring.measure(
        experiment, texts(48), [], late, lambda file: False, max_prompts=24, **silent
    )
    assert len(json.loads(late.read_text())["prompts"]) == 24
    expired = {"deadline": -math.inf, **silent}
    assert not measuring.measure(experiment, texts(48), [], late, lambda file: False, **expired)
    again = json.loads(parts.read_text())
    assert again["runs"] == data["runs"]
    assert again["prompts"] == data["prompts"]


def test_measuring_stops_at_a_look_that_decides(experiment, tmp_path):
    path = tmp_path / "one.json"
    looks = []

    def decided(file):
        looks.append(len(file.prompts))
        return len(file.prompts) >= 36

    assert measuring.measure(
        experiment, texts(48), [], path, decided, report_progress=lambda line: None
    )
    assert looks == [24, 36]
    assert len(json.loads(path.read_text())["prompts"]) == 36


def test_other_prompts_are_refused(experiment, tmp_path):
    path = tmp_path / "one.json"
    silent = {"report_progress": lambda line: None}
    measuring.measure(experiment, texts(48), [{"file": "a"}], path, lambda file: True, **silent)
    with pytest.raises(HierspecError, match="remove it to begin anew"):
        measuring.measure(experiment, texts(48), [{"file": "b"}], path, lambda file: True, **silent)


def test_prompts_take_turns(tmp_path):
    for name, key in (("humaneval", "prompt"), ("gsm8k", "question")):
        lines = [json.dumps({key: f"{name} {i}"}) for i in range(3)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    kinds = ["writing", "qa", "rag", "math", "qa"]
    rows = [json.dumps({"turns": [f"{i}"], "category": kind}) for i, kind in enumerate(kinds)]
    with pytest.raises(HierspecError, match=r"spec_bench\.jsonl"):
        prompts.read(tmp_path, 4)
    (tmp_path / "spec_bench.jsonl").write_text("\n".join(rows))
    read_prompts, files = prompts.read(tmp_path, 8)
    domains = [prompt.domain for prompt in read_prompts]
    assert domains == ["humaneval", "gsm8k", "chat", "qa", "rag", "humaneval", "gsm8k", "chat"]
    assert (read_prompts[1].text, read_prompts[1].line) == ("gsm8k 0", 1)
    assert [len(file["sha256"]) for file in files] == [64] * 3


def test_second_turns_are_whole_conversations_with_the_first_answered(tmp_path):
    rows = [
        {"question_id": 1, "turns": ["a", "bb"], "category": "writing"},
        {"question_id": 2, "turns": ["alone"], "category": "qa"},
        {"question_id": 3, "turns": ["cccc", "ddddd"], "category": "math"},
    ]
    (tmp_path / "spec_bench.jsonl").write_text("\n".join(map(json.dumps, rows)))
    read_prompts, files = prompts.second_turns(tmp_path, 24)
    assert [prompt.to_dict() for prompt in read_prompts] == [
        {"file": "spec_bench.jsonl", "line": line, "domain": kind, "turn": 2}
        for line, kind in ((1, "writing"), (3, "math"))
    ]
    asked_with = []

    def answer(ids):
        asked_with.append(ids)
        return "answered"

    tokenizer = RecordingTemplate()
    assert read_prompts[1].token_ids(tokenizer, answer) == [1]
    assert asked_with == [[0]]
    assert [[message["content"] for message in chat] for chat in tokenizer.asked] == [
        ["cccc"],
        ["cccc", "answered", "ddddd"],
    ]
    assert [file["file"] for file in files] == ["spec_bench.jsonl"]


def test_the_exact_law_of_several_drafts_is_what_their_rules_keep():
    """Compare with tokens that the runtime's verification keeps, averaged over many seeds."""
    from tabular_cases import models

    from hierspec.core.distributions import DenseDistributions
    from hierspec.core.proposals import Proposal
    from hierspec.core.rng import PhiloxRng
    from hierspec.verifiers.multi_draft import verify_drafts
    from hierspec.verifiers.registry import get

    small, target = models("random", 2, seed=4)

    def rows(model, tokens):
        return DenseDistributions(
            torch.stack([model.distribution((0, *tokens[:i])) for i in range(len(tokens) + 1)])
        )

    checked_drafts = [
        (Proposal(tokens, rows(small, tokens).rows(0, 2), (0, 0), (0, 0)), rows(target, tokens))
        for tokens in ((0, 1), (0, 2), (1, 1))
    ]
    expected = counting.expected_kept_by_rule(checked_drafts)
    drafts, p = map(list, zip(*checked_drafts, strict=True))
    for rule in counting.MULTI_DRAFT_RULES:
        rng = PhiloxRng(7)
        kept = [verify_drafts(get(rule), drafts, p, rng)[0].num_accepted for _ in range(4000)]
        error = statistics.stdev(kept) / math.sqrt(len(kept))
        assert abs(statistics.fmean(kept) - expected[rule]) <= 5 * error + 1e-9  # 6e-7 by chance
    assert all(
        expected[rule] >= expected["one"] > 0
        for rule in counting.MULTI_DRAFT_RULES
        if rule != "rrs"
    )


def test_a_power_of_a_draft_is_another_temperature():
    """Check that of scores z, softmax(z / .6) to the power 1.2 is softmax(z / .5), normalised."""
    from hierspec.core.distributions import DenseDistributions

    generator = torch.Generator().manual_seed(3)
    z = torch.randn(1, 9, generator=generator, dtype=torch.float64)
    p = torch.randn(1, 9, generator=generator, dtype=torch.float64).softmax(-1)
    chances = counting.first_kept_chances(
        DenseDistributions((z / 0.6).softmax(-1)), DenseDistributions(p)
    )
    for power, temperature in {"0.75": 0.8, "1": 0.6, "1.2": 0.5, "2": 0.3}.items():
        kept = (z / temperature).softmax(-1).minimum(p).sum()
        assert chances[power] == pytest.approx(float(kept), abs=1e-12)
