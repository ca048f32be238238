"""``hierspec bench``: the whole command, going on after an interruption, and what it finds out."""

import contextlib
import io
import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import profiling_cases
import pytest
import torch
from fakes import FakeMethod, fixed
from rich.console import Console

from hierspec import TargetConfig, cli
from hierspec.bench import correctness, memory, results, roofline, spec_bench, summary
from hierspec.bench.chats import round_robin
from hierspec.bench.method_records import LevelCounters, RunRecord
from hierspec.bench.methods import grids
from hierspec.bench.methods.base import RunRequest, Unavailable
from hierspec.bench.methods.catalogue import catalogue, select
from hierspec.bench.methods.entry import MethodEntry
from hierspec.bench.methods.ours import BenchModels, HierarchyMethod
from hierspec.bench.methods.planned import chain_of
from hierspec.bench.records import BenchSettings
from hierspec.bench.report.page import html
from hierspec.bench.report.table import equality, rendered
from hierspec.bench.run import Bench
from hierspec.bench.turns import run_group
from hierspec.presets.registry import PRESETS
from hierspec.profiling.profile import from_dict

pytestmark = pytest.mark.usefixtures("small_buffer")

PROMPTS = [[5, 9, 33, 7], [11, 2, 60], [70, 8, 8, 41, 3]]
TUNING = [[4, 44, 17]]
TOKENS = 10
COMMITTED = Path(__file__).parents[2] / "benchmarks" / "results"
RECORD = {
    "name", "title", "group", "source", "lossless", "configuration", "skipped", "tuning",
    "predicted_ms_per_token", "parameters", "runs", "summary",
}  # fmt: skip
RUN = {
    "prompt", "turn", "num_tokens", "seconds", "decode_seconds", "ms_per_token",
    "decode_ms_per_token", "overhead_ms_per_token", "target_calls", "mean_acceptance_length",
    "same_as_plain", "logprob_per_token", "token_ids", "levels", "target",
}  # fmt: skip
SUMMARY = {
    "ms_per_token", "decode_ms_per_token", "tokens_per_second", "overhead_ms_per_token",
    "mean_acceptance_length", "speedup", "speedup_over_best_transformers",
    "standardized_walltime_improvement", "acceptance_per_position", "levels", "same_as_plain",
    "logprob", "peak_memory_bytes",
}  # fmt: skip


def entry(name, candidates, group="baseline"):
    return MethodEntry(name, name, group, "", "for a test", candidates)


def fake_entry(name, write, **more):
    return entry(name, lambda models, temperature: [FakeMethod(name, write, **more)])


@pytest.fixture(scope="module")
def models(tiny_family):
    target = TargetConfig(model=tiny_family["target"], dtype="float32")
    return BenchModels(target, (tiny_family["small"], tiny_family["draft"]))


def bench(models, entries, path=None, temperatures=(0.0,), overwrite=False, **more):
    """A bench of plain decoding and these, ready to run."""
    plain = catalogue()["plain"]
    settings = BenchSettings(
        target="tiny",
        methods=("plain", *(one.name for one in entries)),
        temperatures=temperatures,
        max_new_tokens=more.pop("tokens", TOKENS),
        num_prompts=len(PROMPTS),
        tune_tokens=4,
        **more,
    )
    data = results.resume(path, results.make(settings, {"cpu": "here"}), overwrite)
    return Bench(models, settings, [plain, *entries], PROMPTS, TUNING, data, path=path)


def methods_of(data, cell=0):
    """Records by name, of results or of a file's JSON."""
    if isinstance(data, dict):
        data = results.parse(data, "a test's file")
    return {record.name: record for record in data.cells[cell].methods}


def shown(data, width=200):
    """What is printed on a console of this width."""
    console = Console(width=width, record=True, file=io.StringIO())
    for part in rendered(data):
        console.print(part)
    return console.export_text()


# The command.


@pytest.fixture(scope="module")
def command(tmp_path_factory):
    """A small bench on two tiny models that have a tokenizer."""
    folder = tmp_path_factory.mktemp("models")
    target = profiling_cases.save_model(folder / "target")
    draft = profiling_cases.save_model(folder / "draft", 0.03)
    return [
        "bench", "--target", target, "--draft", draft, "--num-prompts", "2",
        "--tune-prompts", "1", "--tune-tokens", "3", "--max-new-tokens", "6",
        "--methods", "planned,online,speculative", "--methods", "interleaved, prompt-lookup",
    ]  # fmt: skip


@pytest.fixture(scope="module")
def written(command, tmp_path_factory):
    """The file of a whole run of the command."""
    path = tmp_path_factory.mktemp("bench") / "r.json"
    with pytest.MonkeyPatch.context() as patch:
        small = profiling_cases.SMALL
        patch.setattr("hierspec.bench.methods.planned.settings", lambda *_: small)
        said = io.StringIO()
        with contextlib.redirect_stderr(said):
            assert cli.run([*command, "-o", str(path)]) == 0
        path.with_suffix(".said").write_text(said.getvalue())
    return path


def test_without_a_terminal_lines_say_which_method_is_tuned(written):
    said = written.with_suffix(".said").read_text()
    for line in ("tuning speculative", "tuning interleaved", "prompt 1 of 2", "checking plain"):
        assert line in said
    assert " · " not in said, "what changes with every run is for terminals"


def test_the_file_has_the_agreed_shape(written):
    data = json.loads(written.read_text())
    assert (data["schema_version"], data["kind"], data["finished"]) == (1, "hierspec-bench", True)
    draft = data["settings"]["drafts"][0]
    assert data["settings"]["prompts"] == {"file": "built in", "sha256": None}
    assert any("built in" in note for note in data["notes"])
    assert data["floor"]["ms_per_token"] == pytest.approx(
        1e3 * data["floor"]["weight_bytes"] / data["floor"]["bytes_per_second"]
    )
    assert [cell["temperature"] for cell in data["cells"]] == [0.0, 1.0]
    for cell in data["cells"]:
        assert set(cell["load_average"]) == {"before", "after"}
        names = [record["name"] for record in cell["methods"]]
        expected = ["plain", "planned", "online", "interleaved", "speculative", "prompt-lookup"]
        assert names == expected
        for record in cell["methods"]:
            assert set(record) == RECORD
            if record["name"] == "interleaved":  # one draft model alone
                assert "two draft models" in record["skipped"]
                assert record["summary"] is None
                continue
            assert record["skipped"] is None
            assert set(record["summary"]) == SUMMARY
            assert [run["prompt"] for run in record["runs"]] == [0, 1]
            for run in record["runs"]:
                assert set(run) == RUN
                assert run["num_tokens"] == 6 == len(run["token_ids"])
    greedy, sampled = (
        {record["name"]: record for record in data["cells"][cell]["methods"]} for cell in (0, 1)
    )
    assert all(r["summary"]["same_as_plain"] == 2 for r in greedy.values() if r["summary"])
    assert all(r["summary"]["logprob"]["within_noise"] for r in sampled.values() if r["summary"])
    assert len(greedy["speculative"]["tuning"]["trials"]) == grids.TRIALS
    assert greedy["speculative"]["tuning"]["prompts"] == 1
    assert greedy["plain"]["tuning"] is None
    assert greedy["planned"]["predicted_ms_per_token"] > 0
    assert greedy["plain"]["predicted_ms_per_token"] > 0
    assert greedy["online"]["predicted_ms_per_token"] is None  # its levels change
    assert greedy["plain"]["summary"]["standardized_walltime_improvement"] == 1.0
    assert greedy["plain"]["summary"]["mean_acceptance_length"] == 1.0
    single = greedy["speculative"]["summary"]
    assert [level["name"] for level in single["levels"]] == [
        draft, data["settings"]["target"],
    ]  # fmt: skip
    position = single["acceptance_per_position"][draft]
    assert all(0 <= share <= 1 for share in position)
    assert position == sorted(position, reverse=True)


def test_a_finished_file_is_shown_and_not_overwritten(written, command, capsys, tmp_path):
    before = written.read_bytes()
    assert cli.run([*command, "-o", str(written)]) == 2
    err = capsys.readouterr().err
    assert "finished" in err
    assert "--overwrite" in err
    answers = tmp_path / "answers.jsonl"
    assert cli.run(["bench", "--from", str(written), "--spec-bench", str(answers)]) == 0
    out = capsys.readouterr().out
    assert "temperature 1" in out
    assert "skipped interleaved: " in out
    rows = (tmp_path / "answers-planned-temperature-0.jsonl").read_text().splitlines()
    assert [json.loads(row)["model_id"] for row in rows] == ["planned", "planned"]
    assert cli.run(["bench", "--from", str(written), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(before)
    assert written.read_bytes() == before


def test_other_settings_are_refused_by_name(written, command, capsys, tmp_path):
    data = json.loads(written.read_text())
    path = tmp_path / "r.json"
    path.write_text(json.dumps({**data, "finished": False}))
    assert cli.run([*command, "-o", str(path), "--seed", "7"]) == 2
    err = capsys.readouterr().err
    assert "seed 0" in err
    assert "7" in err
    assert "another -o" in err
    other = {**data, "finished": False}
    other["environment"] = {**data["environment"], "threads": 999}
    path.write_text(json.dumps(other))
    assert cli.run([*command, "-o", str(path)]) == 2
    assert "threads was 999" in capsys.readouterr().err
    other["environment"] = {**data["environment"], "GOMP_SPINCOUNT": "7"}
    path.write_text(json.dumps(other))
    assert cli.run([*command, "-o", str(path)]) == 2
    assert "GOMP_SPINCOUNT was '7'" in capsys.readouterr().err


def test_a_file_without_a_measurement_binds_nobody(tmp_path):
    path = tmp_path / "r.json"
    results.write(path, results.make(BenchSettings(target="mistyped"), {}))
    fresh = results.make(BenchSettings(target="right"), {})
    assert results.resume(path, fresh) is fresh


def test_answers_need_the_prompts_that_were_measured(written, tmp_path, capsys):
    other = tmp_path / "other.jsonl"
    other.write_text("\n".join(json.dumps({"prompt": f"text {i}"}) for i in range(3)))
    argv = ["bench", "--from", str(written), "--spec-bench", str(tmp_path / "answers.jsonl")]
    assert cli.run([*argv, "--prompts", str(other)]) == 2
    assert "leave --prompts out" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [other]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"schema_version": 2}, "schema version 2"),
        ({"kind": "hierspec-profile"}, "hierspec-profile"),
        ({"cells": None}, None),
    ],
)
def test_other_files_are_refused_with_the_reason(change, says, tmp_path, capsys):
    path = tmp_path / "r.json"
    data = {**results.make(BenchSettings(target="x"), {}).to_dict(), **change}
    if says is None:
        del data["cells"]
        says = "'cells' is missing"
    path.write_text(json.dumps(data))
    for argv in (["--from", str(path)], ["--target", "zoo:small", "-o", str(path)]):
        assert cli.run(["bench", *argv]) == 2
        err = capsys.readouterr().err
        assert says in err
        assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--methods", "hispeck"], "did you mean 'hispec'"),
        (["--num-prompts", "16"], "lower --num-prompts"),
        (["--num-prompts", "6", "--batch-size", "4"], "--num-prompts 4 or 8"),
        (["--num-prompts", "3", "--batch-size", "4"], "--num-prompts 4,"),
        (["--prompts", "nowhere.jsonl"], "nowhere.jsonl"),
        (["--temperature", "-1"], "--temperature"),
        (["--from", "nowhere.json"], "nowhere.json"),
        (["--report", "/"], "it is a folder"),
        (["--target", "zoo:large?eps=x"], "zoo:large?eps=0.1"),
        (["--target", "zoo:small", "--max-new-tokens", "4000"], "--max-new-tokens"),
    ],
)
def test_mistakes_are_one_line(argv, says, capsys):
    assert cli.run(["bench", *argv]) == 2
    err = capsys.readouterr().err
    assert says in err
    assert "Traceback" not in err


def test_prompts_to_warm_up_on_need_room_for_the_text_too(tmp_path, capsys):
    small = BenchModels(TargetConfig(model="zoo:small"))
    longest = small.plain.root.model.max_length
    words = longest * 1000 // len(small.tokenizer("def " * 1000, verbose=False)["input_ids"])
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n".join(json.dumps(text) for text in ("def", "def " * (words - 40))))
    argv = ["bench", "--target", "zoo:small", "--methods", "plain", "--prompts", str(path)]
    argv += ["--num-prompts", "1", "--tune-prompts", "1", "--tune-tokens", "4"]
    assert cli.run([*argv, "--max-new-tokens", "90"]) == 2
    assert "with 90 more" in capsys.readouterr().err


def test_the_list_names_every_preset(capsys):
    assert cli.run(["bench", "--list", "--json"]) == 0
    listed = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert set(PRESETS) - {"autoregressive"} <= set(listed)
    assert listed["hispec"]["group"] == "paper"
    assert cli.run(["bench", "--list"]) == 0
    assert "dynamic-windows" in capsys.readouterr().out


def test_groups_and_names_select():
    known = catalogue()

    def names(*words):
        return {one.name for one in select(words, known)}

    assert names("planned") == {"plain", "planned"}  # a name and a group: the name
    papers = {name for name, one in known.items() if one.group == "paper"}
    assert names("papers", "prompt-lookup") == {"plain", "prompt-lookup"} | papers
    assert names("all") == set(known)
    with pytest.raises(ValueError, match=r"speculative.*groups: all"):
        names("speculativ")


def test_each_drafter_alone_without_a_model_of_its_own(tiny_family, tmp_path):
    target = TargetConfig(model=tiny_family["target"], dtype="float32")
    models = BenchModels(target, ("suffix", "quantized"))
    entries = select(["alone"], catalogue(models.drafts))[1:]
    trial = [replace(one, candidates=first_of(one.candidates)) for one in entries]
    done = methods_of(bench(models, trial).run())
    assert list(done) == ["plain", "alone-suffix", "alone-quantized"]
    for record in done.values():
        assert record.skipped is None
        assert all(run.same_as_plain for run in record.runs)
    assert done["alone-quantized"].configuration["levels"][0]["method"] == "quantized"
    assert grids.chains("hierarchy", models)[0].configuration["levels"][1]["method"] == "quantized"


def first_of(candidates):
    return lambda *given: candidates(*given)[:1]


# Going on.


def outline(data):
    """A file without what times decide."""
    timed = {"seconds", "decode_seconds", "ms_per_token", "decode_ms_per_token",
             "overhead_ms_per_token", "forward_seconds", "verify_seconds", "created",
             "load_average", "floor", "summary", "trials"}  # fmt: skip
    if isinstance(data, dict):
        return {k: outline(v) for k, v in data.items() if k not in timed}
    return [outline(one) for one in data] if isinstance(data, list) else data


class Steady(HierarchyMethod):
    """Takes as many seconds as it has tokens to draft, so that tuning always finds the same."""

    def run(self, prompt, request, tracer=None):
        run = super().run(prompt, request, tracer)
        return replace(run, seconds=self.configuration["levels"][0]["num_speculative_tokens"])


def test_a_bench_whose_time_is_over_sums_up_what_it_has(models, tmp_path):
    short = bench(models, [fake_entry("fake", fixed)], temperatures=(0.0, 1.0))
    short.seconds = 0.0
    data = short.run()
    assert data.finished
    for number, temperature in enumerate((0, 1)):
        for record in methods_of(data, number).values():
            assert len(record.runs) == 1
            assert record.final_summary.ms_per_token.n == 1
        said = f"temperature {temperature}: stopped after 1 of {len(PROMPTS)} prompts"
        assert any(note.startswith(said) for note in data.notes)


def test_an_interrupted_bench_is_summed_up(models, tmp_path):
    calls = iter(range(1000))

    def write(prompt, request):
        if next(calls) == 3:
            raise KeyboardInterrupt
        return fixed(prompt, request)

    path = tmp_path / "r.json"
    with pytest.raises(KeyboardInterrupt):
        bench(models, [fake_entry("fake", write)], path).run()  # a warm-up, two rounds
    again = bench(models, [fake_entry("fake", fixed)], path)
    again.seconds = 0.0
    assert [len(record.runs) for record in methods_of(again.run()).values()] == [2, 2]
    assert results.read(path).finished


def test_an_interrupted_bench_goes_on_where_it_was(models, tmp_path):
    def speculative(given, temperature):
        return [
            Steady(method.name, given, **method.configuration)
            for method in grids.single("speculative", given, "tokenwise")[:2]
        ]

    def entries(stop_at):
        calls = iter(range(1000))

        def write(prompt, request):
            if next(calls) == stop_at:
                raise KeyboardInterrupt
            return fixed(prompt, request)

        return [entry("speculative", speculative), fake_entry("fake", write)]

    path, whole_path = tmp_path / "r.json", tmp_path / "whole.json"
    with pytest.raises(KeyboardInterrupt):
        bench(models, entries(3), path, temperatures=(0.0, 1.0)).run()  # a warm-up, two rounds
    first = results.read(path)
    assert not first.finished
    kept = methods_of(first)
    assert [len(record.runs) for record in kept.values()] == [2, 2, 2]
    assert kept["speculative"].tuning.trials
    again = bench(models, entries(None), path, temperatures=(0.0, 1.0)).run()
    after = methods_of(again)
    assert after["speculative"].tuning == kept["speculative"].tuning
    checked = {"same_as_plain", "first_difference_gap"}
    for name, record in kept.items():
        for before, now in zip(record.runs, after[name].runs, strict=False):
            same = {k: v for k, v in now.to_dict().items() if k not in checked}
            assert same == {k: v for k, v in before.to_dict().items() if k not in checked}
    whole = bench(models, entries(None), whole_path, temperatures=(0.0, 1.0)).run()
    assert outline(again.to_dict()) == outline(whole.to_dict())
    assert json.loads(path.read_text()) == again.to_dict()
    for one, other in zip(again.cells, whole.cells, strict=True):
        for a, b in zip(one.methods, other.methods, strict=True):
            assert [r.prompt for r in a.runs] == [r.prompt for r in b.runs]
            assert set(a.summary.to_dict()) == set(b.summary.to_dict())


# What goes wrong is a row.


def test_failures_are_rows_and_leave_the_others_alone(models):
    def broken(prompt, request):
        if tuple(prompt) == tuple(PROMPTS[1]):
            raise RuntimeError("the engine\nfell over")
        return fixed(prompt, request)

    def nowhere(given, temperature):
        raise Unavailable("no such engine here: pip install it")

    def buggy(given, temperature):
        raise MemoryError

    def half(given, temperature):
        def fails(prompt, request):
            raise OSError("no")

        return [FakeMethod("half", fails), FakeMethod("half", fixed)]

    data = bench(
        models,
        [
            fake_entry("broken", broken),
            entry("nowhere", nowhere),
            entry("buggy", buggy),
            entry("half", half),
            fake_entry("foreign", lambda prompt, request: [10**6, 1]),
            fake_entry("fine", fixed),
        ],
    ).run()
    found = methods_of(data)
    assert found["broken"].skipped == "RuntimeError: the engine fell over"
    assert found["broken"].runs == []
    assert found["nowhere"].skipped == "no such engine here: pip install it"
    assert found["buggy"].skipped == "MemoryError"
    assert "IndexError" in found["foreign"].skipped  # no token of the target's
    assert found["half"].skipped is None
    trials = found["half"].tuning.trials
    assert (trials[0].ms_per_token, trials[0].skipped) == (None, "OSError: no")
    assert len(found["fine"].runs) == len(found["plain"].runs) == 3
    assert "skipped broken: RuntimeError: the engine fell over" in shown(data)


def test_plain_decoding_must_run(models, monkeypatch):
    def fails(*args, **options):
        raise RuntimeError("broken")

    monkeypatch.setattr(HierarchyMethod, "run", fails)
    with pytest.raises(ValueError, match="plain decoding cannot run: RuntimeError: broken"):
        bench(models, []).run()


# Are outputs right?


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
    assert "OTHER LAW" in shown(data)


def test_likelihood_against_the_law_by_hand():
    class Coin:
        """Scores of a law over three tokens, whatever came before."""

        law = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)

        def open(self):
            return None

        def close(self, slot):
            pass

        def score(self, queries):
            return self.law.log().expand(queries[0].num_rows, 3)

    found = correctness.likelihood(Coin(), [0], [0, 2, 1], 1.0)
    p = [0.5, 0.3, 0.2]
    entropy = -sum(x * math.log(x) for x in p)
    variance = sum(x * math.log(x) ** 2 for x in p) - entropy**2
    assert found.logprob == pytest.approx(math.log(0.5 * 0.2 * 0.3))
    assert found.surplus == pytest.approx(found.logprob + 3 * entropy)
    assert found.variance == pytest.approx(3 * variance)
    squared = [x * x / sum(y * y for y in p) for x in p]  # temperature ½
    assert correctness.likelihood(Coin(), [0], [1], 0.5).logprob == pytest.approx(
        math.log(squared[1])
    )


def test_a_wrong_token_is_seen_where_the_law_leaves_nothing_to_chance():
    sure, wrong = (
        correctness.Likelihood(2, 0.0, 0.0, 0.0),
        correctness.Likelihood(2, -900.0, -900.0, 0.0),
    )
    assert correctness.law_test([sure], [sure]).within_noise
    assert not correctness.law_test([wrong], [sure]).within_noise


def test_scores_of_masked_ids_leave_the_tolerance_finite():
    class Masked:
        """The last of three ids cannot be."""

        def open(self):
            return None

        def close(self, slot):
            pass

        def score(self, queries):
            return torch.tensor([0.0, -5.0, -math.inf]).expand(queries[0].num_rows, 3)

    expected = correctness._FINE_ROUNDING_STEPS * torch.finfo(torch.float32).eps * 5
    assert correctness.tolerance(Masked(), [0]) == pytest.approx(expected)
    assert correctness.gap(Masked(), [0], [0], [1]) == 5.0
    assert correctness.gap(Masked(), [0], [0], [2]) is None


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


# Numbers by hand.


def test_statistics_by_hand():
    assert summary.quartiles([4.0]) == {"median": 4.0, "q1": 4.0, "q3": 4.0, "n": 1}
    assert summary.quartiles([4, 1, 3, 2]) == {"median": 2.5, "q1": 1.75, "q3": 3.25, "n": 4}
    found = summary.spread([1.0, 2.0, 6.0])
    assert (found.mean, found.median) == (3.0, 2.0)
    assert found.standard_error == pytest.approx(math.sqrt(7 / 3))
    assert summary.spread([5.0]).standard_error is None
    halves = summary.ratio([2, 4, 6], [1, 2, 3])
    assert (halves.median, halves.low95, halves.high95) == (2.0, 2.0, 2.0)
    wide = summary.ratio([1.0, 2.0, 9.0], [1.0, 1.0, 1.0])
    assert (wide.median, wide.low95, wide.high95) == (2.0, 1.0, 9.0)


def test_deviations_allow_for_few_values():
    # Student's t with 3 degrees at 5.841 is as rare as a normal deviate of 2.576 (1 % two-sided),
    # with 15 degrees at 2.947.
    for count, t in ((4, 5.841), (16, 2.947)):
        signs = [(-1) ** i * math.sqrt((count - 1) / count) for i in range(count)]
        shift = t / math.sqrt(count)
        assert summary.z_score([shift + sign for sign in signs]) == pytest.approx(2.576, abs=0.06)
    assert summary.z_score([0.3]) == 0.0
    assert summary.z_score([0.0, 0.0]) == 0.0


def runs_by_hand():
    def part(name, calls, drafts, drafted, kept, positions, seconds):
        return LevelCounters(
            name=name, calls=calls, num_drafts=drafts, num_draft_tokens=drafted,
            num_accepted_tokens=kept, num_accepted_tokens_per_pos=positions,
            acceptance_rate=0.0, seconds=seconds, forward_seconds=seconds / 2,
        )  # fmt: skip

    def run(prompt, tokens, seconds, calls=None, small=None):
        return RunRecord(
            prompt=prompt, num_tokens=tokens, seconds=seconds, decode_seconds=None,
            ms_per_token=1e3 * seconds / tokens, decode_ms_per_token=None,
            overhead_ms_per_token=None, target_calls=calls, mean_acceptance_length=None,
            same_as_plain=prompt == 0, logprob_per_token=None, token_ids=[],
            levels=[small] if small else [],
            target=part("big", calls, 0, 0, 0, [], 0.010) if calls else None,
        )  # fmt: skip

    ours = [
        run(0, 5, 0.1, 2, part("small", 4, 2, 4, 3, [2, 1], 0.004)),
        run(1, 7, 0.3, 2, part("small", 6, 2, 6, 4, [2, 1, 1], 0.006)),
    ]
    return ours, [run(0, 1, 0.04), run(1, 1, 0.03)]


def test_a_summary_by_hand():
    runs, plain = runs_by_hand()
    found = summary.summary(runs, plain, {"small": 1, "big": 10})
    assert found.tokens_per_second == pytest.approx(12 / 0.4)
    assert found.ms_per_token.mean == pytest.approx((20 + 300 / 7) / 2)
    assert found.decode_ms_per_token is None
    assert found.mean_acceptance_length == pytest.approx(10 / 4)
    assert found.speedup.median == pytest.approx((2.0 + 0.7) / 2)
    assert found.same_as_plain == 1
    assert found.acceptance_per_position == {"small": [1.0, 0.5, 0.25]}
    small, big = found.levels
    assert (small.name, big.name) == ("small", "big")
    assert small.calls_per_token == pytest.approx(1.0)
    assert small.ms_per_token == pytest.approx(1.0)
    assert small.forward_ms_per_token == pytest.approx(0.5)
    assert small.acceptance_rate == pytest.approx(0.7)
    assert big.acceptance_rate is None
    # Ten tokens cost the target 100 alone; here 4 calls of 10 and 10 calls of 1 are 50.
    assert found.standardized_walltime_improvement == pytest.approx(2.0)
    assert summary.summary(runs, plain).standardized_walltime_improvement is None


def test_what_a_call_of_each_level_costs(models):
    """Three layers in all: an exit after the first has a third of the weights, a table none."""
    levels = [
        {"method": "prompt_lookup", "num_speculative_tokens": 2},
        {"method": "early_exit", "exit_layer": 1, "num_speculative_tokens": 3},
        {"method": "draft_model", "model": models.drafts[0], "num_speculative_tokens": 4},
    ]
    target = models.target.model
    whole = memory.parameters(target)
    found = memory.level_parameters(HierarchyMethod("x", models, levels))
    # A token reads one row of a table of embeddings; here it is no head as well.
    read = memory.parameters(target, embedding=False)
    assert read < whole
    assert list(found.values()) == [0, round(read / 3), read, read]
    # Exits share the target's weights, a draft model has its own; float32 has four bytes.
    assert memory.weight_bytes(HierarchyMethod("x", models, levels)) == 2 * 4 * whole
    assert memory.weight_bytes(HierarchyMethod("x", models, levels[:2])) == 4 * whole
    assert memory.weight_bytes(FakeMethod("x", fixed)) is None
    assert memory.level_parameters(FakeMethod("x", fixed)) is None
    # The embedding (96 × 32) is a table apart: a token reads one row of it.
    assert roofline.weight_bytes_per_token(models) == 4 * (whole - 96 * 32)


def test_memory_sees_what_a_run_takes():
    if not memory._CLEAR.exists():
        assert memory.peak_rise(lambda: None) is None
        return
    size = 64 << 20
    assert memory.peak_rise(lambda: torch.ones(size // 4).sum()) >= 0.9 * size


# What is tuned, predicted, and run together.


def test_a_chain_that_the_profile_knows():
    levels = [{"method": "draft_model", "model": name} for name in ("s", "m")]
    names = ["s", "m", "target"]
    data = {
        "kind": "hierspec-profile", "schema_version": 1, "hardware": {},
        "target": {"model": "target"}, "memory": {}, "settings": {"max_speculative_tokens": 9},
        "temperatures": {"0.0": {
            "pairs": [], "costs": [], "context": {"tokens": 1, "long": 1, "slopes": []},
            "token_ms": 0.0,
        }},
        "models": [
            {"name": n, "level": level, "owner": n, "weights": None, "call_ms": 1.0}
            for n, level in zip(names, [*levels, None], strict=True)
        ],
    }  # fmt: skip
    profile = from_dict(data)

    def asked(*budgets, verify="block", top="block", **more):
        given = [
            {**level, "num_speculative_tokens": n} for level, n in zip(levels, budgets, strict=True)
        ]
        given[1:] = [{**level, "verify": verify, **more} for level in given[1:]]
        return chain_of(profile, {"levels": given, "verify": top})

    chain, rule = asked(2, 8)
    assert (chain.models, chain.budgets, rule) == ((0, 1, 2), (2, 8), "block")
    assert asked(2, 8, bonus=False)[0].dropped_bonus == (1,)
    assert asked(2, 8, verify="tokenwise") is None
    assert asked(2, 8, verify="tokenwise", top="tokenwise")[1] == "tokenwise"
    assert chain_of(profile, {"levels": []})[0].plain
    other = [{"method": "draft_model", "model": "x", "num_speculative_tokens": 2}]
    assert chain_of(profile, {"levels": other}) is None
    assert chain_of(profile, {"generate": {}}) is None


def test_a_batch_is_shared_out_among_its_runs(models):
    level = {"method": "draft_model", "model": models.drafts[1], "num_speculative_tokens": 3}
    method = HierarchyMethod("x", models, [level], verify="block")
    alone = [method.run(prompt, RunRequest(TOKENS)) for prompt in PROMPTS]
    together = method.run_batch(PROMPTS, RunRequest(TOKENS))
    assert [run.token_ids for run in together] == [run.token_ids for run in alone]
    drafted = sum(run.levels[0]["num_draft_tokens"] for run in alone)
    assert sum(run.levels[0]["num_draft_tokens"] for run in together) == pytest.approx(drafted)
    assert [run.seconds for run in together] == pytest.approx([together[0].seconds] * 3)
    assert together[0].levels[0]["name"] == alone[0].levels[0]["name"]


def test_batches_leave_out_who_has_none(models):
    level = {"method": "draft_model", "model": models.drafts[1], "num_speculative_tokens": 3}

    def ours(given, temperature):
        return [HierarchyMethod("ours", given, [level], verify="block")]

    data = bench(models, [entry("ours", ours), fake_entry("fake", fixed)], batch_size=3).run()
    found = methods_of(data)
    assert "--batch-size 1" in found["fake"].skipped
    assert found["ours"].summary.same_as_plain == 3
    assert [run.prompt for run in found["ours"].runs] == [0, 1, 2]
    # Sequences share calls and weights: neither prices nor the roofline are those of one alone.
    assert found["ours"].parameters
    assert found["ours"].summary.standardized_walltime_improvement is None
    below = data.roofline
    assert below.ms_per_token == pytest.approx(
        1000 / 3 * below.weight_bytes / below.bytes_per_second
    )
    with pytest.raises(Unavailable, match="--batch-size 1"):
        run_group(FakeMethod("x", fixed), PROMPTS, RunRequest(2))
    assert data.notes == [
        "tuned on batches of 1, measured on batches of 3: --tune-prompts 3 tunes on equal batches"
    ]


def test_batches_are_all_of_one_size(models):
    made = bench(models, [], batch_size=2)
    with pytest.raises(ValueError, match=r"3 prompts.*batches of 2.*--num-prompts 2 or 4"):
        made.run()
    assert made.data.cells == []  # nothing was tuned for it


def test_tuning_runs_on_batches_like_the_measured_ones(models):
    def ours(given, temperature):
        return grids.single("ours", given, "block")[:2]

    made = bench(models, [entry("ours", ours)], batch_size=3)
    made.tuning = [*TUNING * 3, *PROMPTS[:1]]
    data = made.run()
    found = methods_of(data)["ours"].tuning
    assert (found.prompts, found.batch_size) == (3, 3)
    assert data.notes == ["1 of 4 prompts to tune on are in no whole batch of 3"]


def test_methods_warm_up_on_what_is_not_measured(models):
    log = []
    made = bench(models, [fake_entry("fake", fixed, log=log)])
    data = made.run()
    measured = [(tuple(prompt), i) for i, prompt in enumerate(PROMPTS)]
    assert [entry[1:] for entry in log[:4]] == [(tuple(TUNING[0]), len(PROMPTS)), *measured]
    for i in range(len(PROMPTS)):  # every method has a turn of its own
        assert {record.runs[i].turn for record in methods_of(data).values()} == {0, 1}


@pytest.mark.parametrize("name", sorted(path.name for path in COMMITTED.glob("bench-*.json")))
def test_committed_results_are_read(name, monkeypatch):
    monkeypatch.setattr("hierspec.bench.report.page.pictures", lambda data: [])  # tables alone
    data = results.read(COMMITTED / name)
    assert data.cells
    page = html({"x": data})
    assert page.count("<tr") > sum(len(cell.methods) for cell in data.cells)
    assert page.count("tried on") >= len(data.cells)
    for width in (60, 140):
        text = shown(data, width)
        assert max(map(len, text.splitlines())) <= width
        assert all(method.name in text for method in data.cells[0].methods)


@pytest.mark.parametrize("width", [40, 60, 100])
def test_a_narrow_terminal_gets_whole_words(width):
    """Neither a configuration nor a number is broken into letters."""
    data = results.read(COMMITTED / "bench-eps-0.2.json")
    lines = shown(data, width).splitlines()
    assert max(map(len, lines)) <= width
    assert all(len(line.strip()) >= 3 for line in lines if line.strip())
    if width >= 60:
        assert "  prompt_lookup 15 > small 2 > trunk 9, block" in map(str.rstrip, lines)
        assert any("median ms/token 6.18 [5.18, 7.29]" in line for line in lines)


# Spec-Bench.

QUESTIONS = [
    {"question_id": 81, "category": "writing", "turns": ["Compose.", "Rewrite."]},
    {"question_id": 82, "category": "writing", "turns": ["Describe."]},
    {"question_id": 301, "category": "translation", "turns": ["Translate."]},
]


def test_spec_bench_questions_are_taken_from_each_category_in_turn(tmp_path):
    path = tmp_path / "questions.jsonl"
    path.write_text("\n".join(map(json.dumps, QUESTIONS)) + "\n")
    read = spec_bench.read(path)
    assert [(one.id, one.prompt) for one in read] == [
        (81, "Compose."), (82, "Describe."), (301, "Translate."),
    ]  # fmt: skip
    assert [one.id for one in round_robin(read, lambda question: question.category)] == [
        81,
        301,
        82,
    ]
    path.write_text(json.dumps({"prompt": "x"}))
    assert spec_bench.read(path) is None


def test_spec_bench_round_trip(models, tmp_path):
    """Answers as ``evaluation/speed.py`` of Spec-Bench adds them up."""
    made = bench(models, [fake_entry("fake", fixed, ms=2.0)])
    made.categories = ["writing", "translation", "writing"]
    data = made.run()
    asked = [
        spec_bench.SpecBenchQuestion(number, category, "")
        for number, category in zip((81, 301, 82), made.categories, strict=True)
    ]
    tokenizer = SimpleNamespace(decode=lambda ids: " ".join(map(str, ids)))
    files = spec_bench.write(data, tmp_path / "answers.jsonl", tokenizer, asked)
    assert [file.name for file in files] == [
        "answers-plain-temperature-0.jsonl", "answers-fake-temperature-0.jsonl",
    ]  # fmt: skip
    rows = [json.loads(line) for line in files[1].read_text().splitlines()]
    assert [(row["question_id"], row["category"]) for row in rows] == [
        (81, "writing"), (301, "translation"), (82, "writing"),
    ]  # fmt: skip
    choice = rows[0]["choices"][0]
    assert sum(choice["new_tokens"]) / sum(choice["wall_time"]) == pytest.approx(500.0)
    assert choice["turns"] == [" ".join(map(str, range(TOKENS)))]
    assert rows[0]["model_id"] == "fake"
    assert isinstance(rows[0]["tstamp"], float)
    plain = json.loads(files[0].read_text().splitlines()[0])["choices"][0]
    assert plain["accept_lengths"] == [1.0] * (TOKENS - 1)
    assert plain["decoding_steps"] == [TOKENS - 1]
    found = methods_of(data)["fake"].summary.by_category
    assert {name: part.n for name, part in found.items()} == {"writing": 2, "translation": 1}
