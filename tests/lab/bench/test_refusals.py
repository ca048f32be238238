"""``hierspec bench`` refuses in a line, before anything is measured: files, options, drafts."""

from __future__ import annotations

import gzip
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from bench_cases import content
from bench_cases import results as made_up

from hierspec import cli
from hierspec_lab.bench import results
from hierspec_lab.bench.results import locked
from hierspec_lab.bench.run import Bench

PLAIN = ["bench", "--target", "zoo:small", "--methods", "plain"]
COMMITTED = sorted((Path(__file__).parents[3] / "benchmarks" / "results").glob("bench-*.json.gz"))


@pytest.fixture
def unmeasured(monkeypatch):
    """Nothing may be loaded or measured."""

    def never(*args, **more):
        raise AssertionError("measured")

    monkeypatch.setattr("hierspec_lab.bench.methods.ours.BenchModels", never)


@pytest.fixture
def written(tmp_path):
    path = tmp_path / "r.json"
    results.write(path, made_up())
    return path


def refusal(argv, capsys):
    """The line that a command line is refused with."""
    assert cli.run(argv) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("hierspec: error: ")
    assert err.count("\n") == 1
    assert "bug" not in err
    return err


# One bench at a time.


def test_a_second_bench_on_a_file_is_refused(unmeasured, tmp_path, capsys):
    path = tmp_path / "r.json"
    path.write_text("of the first")
    with locked(path):
        for more in ([], ["--overwrite"]):
            err = refusal([*PLAIN, "-o", str(path), *more], capsys)
            assert f"another bench is writing {path}" in err
        link = tmp_path / "link.json"
        link.symlink_to(path)
        assert "another bench" in refusal([*PLAIN, "-o", str(link)], capsys)
    assert path.read_text() == "of the first"
    assert sorted(tmp_path.iterdir()) == [link, path]
    assert "not valid JSON" in refusal([*PLAIN, "-o", str(path)], capsys)  # it is free again


def test_the_lock_is_held_while_measuring(monkeypatch, tmp_path, capsys):
    path = tmp_path / "r.json"

    def measure(self):
        with pytest.raises(ValueError, match="another bench"), locked(path):
            pass

    monkeypatch.setattr(Bench, "run", measure)
    assert cli.run([*PLAIN, "-o", str(path)]) == 0
    with locked(path):
        pass


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="there is no kill -9 here")
def test_a_killed_bench_leaves_no_lock(tmp_path):
    path = tmp_path / "r.json"
    held = "import filelock, sys, time; lock = filelock.FileLock(sys.argv[1]); lock.acquire(); "
    held += "print('held', flush=True); time.sleep(60)"
    argv = [sys.executable, "-c", held, str(tmp_path / ".r.json.lock")]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        with pytest.raises(ValueError, match="another bench"), locked(path):
            pass
        process.kill()
    assert (tmp_path / ".r.json.lock").exists()
    with locked(path):
        pass


# Damaged files.


def at(data, *keys):
    for key in keys:
        data = data[key]
    return data


RUN = ("cells", 0, "methods", 1, "runs", 0)
SUMMARY = ("cells", 0, "methods", 1, "summary")


@pytest.mark.parametrize(
    ("keys", "value", "says"),
    [
        (("cells",), "none", "cells must be a list, not 'none'"),
        (("cells",), [], "cells is empty"),
        (("cells",), ..., "'cells' is missing"),
        (("cells", 0), 3, "cells[0] must be an object"),
        (("cells", 0, "methods"), [], "cells[0].methods has no method 'plain'"),
        (("cells", 0, "methods", 1, "runs"), [], "cells[0].methods[1].runs is empty"),
        (("cells", 0, "methods", 1, "title"), None, "cells[0].methods[1].title must be a string"),
        (("cells", 0, "methods", 1, "configuration", "levels", 0, "method"), 5, "levels[0].method"),
        ((*RUN, "seconds"), "fast", "runs[0].seconds must be a number above 0, not 'fast'"),
        ((*RUN, "seconds"), 0.0, "runs[0].seconds must be a number above 0"),
        ((*RUN, "ms_per_token"), float("nan"), "runs[0].ms_per_token"),
        ((*RUN, "decode_seconds"), float("inf"), "runs[0].decode_seconds must be a finite number"),
        ((*RUN, "prompt"), 99, "has a prompt beyond the 5"),
        ((*RUN, "token_ids"), None, "runs[0].token_ids must be a list"),
        ((*RUN, "token_ids"), ..., "runs[0]: 'token_ids' is missing"),
        ((*SUMMARY, "ms_per_token"), 3.0, "summary.ms_per_token must be an object"),
        (
            (*SUMMARY, "speedup", "median"),
            "2×",
            "summary.speedup.median must be a finite number",
        ),
        ((*SUMMARY, "levels", 0, "name"), ..., "summary.levels[0]: 'name' is missing"),
        (("settings", "num_prompts"), "5", "settings.num_prompts"),
        (("settings", "seed"), ..., "settings: 'seed' is missing"),
        ((*RUN, "target"), {"calls": 1}, "target: 'name' is missing"),
        (("environment",), [], "environment must be an object"),
        (("notes",), [1], "notes[0] must be a string"),
        (("floor", "bytes_per_second"), 0, "floor.bytes_per_second"),
    ],
)
def test_damaged_files_are_refused_with_the_place(keys, value, says, written, capsys):
    data = content()
    *above, last = keys
    if value is ...:
        del at(data, *above)[last]
    else:
        at(data, *above)[last] = value
    written.write_text(json.dumps(data))
    err = refusal(["bench", "--from", str(written)], capsys)
    assert f"{written} is damaged: " in err
    assert says in err


def test_sound_files_are_read(written, capsys):
    assert cli.run(["bench", "--from", str(written)]) == 0
    older = content()  # written before every sample of the bandwidth was kept
    assert "samples" not in older["floor"]
    written.write_text(json.dumps(older))
    assert cli.run(["bench", "--from", str(written)]) == 0
    unfinished = content(finished=False)
    for method in unfinished["cells"][1]["methods"]:
        method |= {"summary": None, "configuration": None, "tuning": None, "runs": []}
    written.write_text(json.dumps(unfinished))
    assert cli.run(["bench", "--from", str(written)]) == 0
    assert "not finished: plain, planned" in capsys.readouterr().out


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.stem)
def test_a_file_that_is_read_and_written_again_stays_the_same(path, tmp_path):
    data, again = results.read(path), tmp_path / "again.json"
    assert data.finished
    results.write(again, data)
    # Committed files are packed (benchmarks/pack.py): the same content in other lines.
    assert json.loads(again.read_bytes()) == json.loads(gzip.decompress(path.read_bytes()))


def test_keys_of_a_later_version_stay(written):
    data = content()
    for place in (data, data["settings"], data["environment"], at(data, *RUN), at(data, *SUMMARY)):
        place["of tomorrow"] = [1, {"x": None}]
    written.write_text(json.dumps(data))
    assert results.read(written).to_dict() == data


# Options and outputs.


@pytest.mark.parametrize(
    ("more", "named"),
    [
        (["-o", "x.json"], "leave -o out"),
        (["--num-prompts", "2", "--seed", "0"], "leave --num-prompts and --seed out"),
        (["--overwrite"], "leave --overwrite out"),
        (["--methods", "plain", "--threads", "1"], "leave --methods and --threads out"),
        (["--prompts", "x.jsonl"], "leave --prompts out"),
    ],
)
def test_what_has_no_effect_on_a_file_is_refused(more, named, written, capsys):
    assert named in refusal(["bench", "--from", str(written), *more], capsys)


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--report", "{}/x.pdf"], "name that ends in .html"),
        (["--report", "{}/file/x.html"], "cannot write a page"),
        (["--report", "{}"], "it is a folder"),
        (["--plots", "{}/file/plots"], "cannot write pictures"),
        (["--plots", "{}/file"], "file"),
        (["-o", "{}/file/r.json"], "cannot write results"),
        (["-o", "{}"], "it is a folder"),
        (["-o", "{}/r.html", "--report", "{}/r.html"], "both name"),
        (["--spec-bench", "{}/file/a.jsonl"], "cannot write answers"),
        (["--seed", str(2**63)], "below 2**63"),
    ],
)
def test_outputs_are_tried_before_anything_is_measured(argv, says, unmeasured, tmp_path, capsys):
    pytest.importorskip("matplotlib", reason="the extra `plot` is not installed")
    (tmp_path / "file").write_text("")
    err = refusal([*PLAIN, *(word.format(tmp_path) for word in argv)], capsys)
    assert says in err
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="there is no /proc here")
@pytest.mark.parametrize(
    ("option", "name"), [("--report", "x.html"), ("--plots", "x"), ("-o", "x.json")]
)
def test_folders_in_which_nothing_can_be_made(option, name, unmeasured, capsys):
    pytest.importorskip("matplotlib", reason="the extra `plot` is not installed")
    assert f"/proc/{name}" in refusal([*PLAIN, option, f"/proc/{name}"], capsys)


@pytest.mark.parametrize("draft", ["zoo:nope", "./no-such-folder"])
def test_drafts_that_cannot_be_loaded_are_refused_at_once(draft, monkeypatch, written, capsys):
    monkeypatch.setattr(Bench, "run", lambda self: pytest.fail("measured"))
    before = written.read_bytes()
    argv = [*PLAIN, "--draft", "zoo:small", "--draft", draft, "-o", str(written), "--overwrite"]
    assert cli.run(argv) == 2
    err = capsys.readouterr().err
    assert f"error: --draft {draft}: " in err
    assert "Traceback" not in err
    assert written.read_bytes() == before
    assert [path.name for path in written.parent.iterdir()] == ["r.json"]


def test_a_target_that_cannot_be_loaded_is_not_blamed_on_a_draft(monkeypatch, capsys):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert cli.run([*PLAIN, "--device", "cuda", "--draft", "zoo:small"]) == 2
    assert "error: device 'cuda' is not available" in capsys.readouterr().err


def test_an_unknown_method_is_a_short_line(unmeasured, capsys):
    err = refusal(["bench", "--methods", "hierarchi"], capsys)
    assert "did you mean 'hierarchy'" in err
    assert "hierspec bench --list" in err
    assert len(err) < 200


def test_wrong_values_name_the_command_whose_help_helps(capsys):
    assert "(see hierspec bench --help)" in refusal(["bench", "--seed", "x"], capsys)
    assert "(see hierspec bench --help)" in refusal(["bench", "--seed", "-1"], capsys)


def test_results_are_as_wide_as_they_are_told(written, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "60")
    assert cli.run(["bench", "--from", str(written)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 60
    assert any("median ms/token" in line for line in lines)
