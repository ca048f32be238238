"""``hierspec bench``: the whole command, its file, and mistakes in a line."""

import contextlib
import io
import json

import profiling_cases
import pytest

from hierspec import TargetConfig, cli
from hierspec_lab.bench import results
from hierspec_lab.bench.methods import grids
from hierspec_lab.bench.methods.ours import BenchModels
from hierspec_lab.bench.records import BenchSettings
from hierspec_lab.cli.bench import _target_notes

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


@pytest.fixture(scope="module")
def command(saved_models):
    """A small bench on two tiny models that have a tokenizer."""
    target, draft = saved_models
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
        patch.setattr("hierspec_lab.bench.methods.planned.settings", lambda *_: small)
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
    ],
)
def test_other_files_are_refused_with_the_reason(change, says, tmp_path, capsys):
    path = tmp_path / "r.json"
    data = results.make(BenchSettings(target="x"), {}).to_dict()
    path.write_text(json.dumps({**data, **change}))
    for argv in (["--from", str(path)], ["--target", "zoo:small", "-o", str(path)]):
        assert cli.run(["bench", *argv]) == 2
        err = capsys.readouterr().err
        assert says in err
        assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [("", "0.1, α(trunk, large) = 0.96"), ("?eps=0.05", "0.05, α(trunk, large) = 0.98"),
     ("?eps=0.2", "0.2, α(trunk, large) = 0.92"), ("?eps=0.3&widen=4", "0.3")],
)  # fmt: skip
def test_the_synthetic_target_says_what_it_is(options, said):
    """By what was measured of the shipped family; the page of results tells it as well."""
    (note,) = _target_notes(f"zoo:large{options}")
    assert note == f"zoo:large is a synthetic cost with a real distribution (eps {said})"


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--num-prompts", "16"], "lower --num-prompts"),
        (["--num-prompts", "6", "--batch-size", "4"], "--num-prompts 4 or 8"),
        (["--num-prompts", "3", "--batch-size", "4"], "--num-prompts 4,"),
        (["--prompts", "nowhere.jsonl"], "nowhere.jsonl"),
        (["--temperature", "-1"], "--temperature"),
        (["--from", "nowhere.json"], "nowhere.json"),
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
