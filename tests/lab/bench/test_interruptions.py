"""Ctrl-C at any moment of ``hierspec bench``: no result is lost or half written, and a line says
how to go on, or how the files that were asked for are made."""

from __future__ import annotations

import importlib
import json
import os
import re
import shlex
from pathlib import Path

import pytest
from bench_cases import results as made_up

from hierspec import cli
from hierspec_lab.bench import results
from hierspec_lab.bench.run import Bench

PLAIN = ["bench", "--target", "zoo:small", "--methods", "plain"]
GOES_ON = "interrupted: the same command continues where it stopped"
NOTHING = "interrupted: nothing was measured"
BLANK = b'<svg xmlns="http://www.w3.org/2000/svg"/>'
WRITES = 8  # of the results file: begun, two methods configured, two rounds, measured, judged, done


@pytest.fixture(autouse=True)
def _blank_pictures(monkeypatch):
    """Whether a picture's file is whole is of interest here, not what it shows."""
    monkeypatch.setattr("hierspec_lab.bench.report.pictures.rendered", lambda figure, kind: BLANK)


@pytest.fixture(scope="module")
def command(saved_models):
    """A small bench of two methods at one temperature, one of them tuned."""
    target, draft = saved_models
    return [
        "bench", "--target", target, "--draft", draft, "--methods", "speculative",
        "--temperature", "0", "--num-prompts", "2", "--tune-prompts", "1", "--tune-tokens", "2",
        "--max-new-tokens", "4",
    ]  # fmt: skip


@pytest.fixture(scope="module")
def whole(command, tmp_path_factory):
    """What a run that nobody interrupts writes."""
    path = tmp_path_factory.mktemp("whole") / "r.json"
    assert cli.run([*command, "-o", str(path)]) == 0
    return results.read(path)


def interrupt(patch, name, call=1, after=False, when=lambda *args: True):
    """Ctrl-C in a function, given as ``module:attribute``, before or after it does its work.

    Args:
        call: the number of the call, from 1, among those for which ``when`` holds.
    """
    module, _, attribute = name.partition(":")
    *owners, last = attribute.split(".")
    owner = importlib.import_module(module)
    for part in owners:
        owner = getattr(owner, part)
    real, calls = getattr(owner, last), []

    def stops(*args, **more):
        calls.extend([args] if when(*args) else [])
        stop = len(calls) == call and when(*args)
        if stop and not after:
            raise KeyboardInterrupt
        found = real(*args, **more)
        if stop:
            raise KeyboardInterrupt
        return found

    patch.setattr(owner, last, stops)


def told(capsys):
    """The last line on standard error."""
    return capsys.readouterr().err.splitlines()[-1]


def again(line, path):
    """The arguments of the command that a line says makes the files."""
    found = re.fullmatch(
        rf"interrupted: the results are in {re.escape(str(path))}; hierspec (.*) shows them", line
    )
    assert found, line
    return shlex.split(found[1])


def runs_of(data):
    return {m.name: m.runs for cell in data.cells for m in cell.methods}


def timed(run):
    return run.prompt, run.turn, run.seconds, run.token_ids


# While it measures.

MOMENTS = {
    "tuning": ("hierspec_lab.bench.turns:run_group", 5),
    "tuned": ("hierspec_lab.bench.run:tune", 1),
    "measuring": ("hierspec_lab.bench.run:_run_record", 4),
    "measured": ("hierspec_lab.bench.run:MethodCell.judge", 1),
    "checking": ("hierspec_lab.bench.summary:summary", 2),
    "compared": ("hierspec_lab.bench.run:MethodCell._compare_with_transformers", 1),
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_an_interrupted_measurement_goes_on(moment, command, whole, monkeypatch, tmp_path, capsys):
    path = tmp_path / "r.json"
    where, call = MOMENTS[moment]
    with monkeypatch.context() as patch:
        interrupt(patch, where, call, after=moment in ("tuned", "compared"))
        assert cli.run([*command, "-o", str(path)]) == 130
    assert told(capsys) == GOES_ON
    assert list(tmp_path.iterdir()) == [path]  # no lock, nothing half written
    left = results.read(path)
    assert left.finished is False
    kept = {"tuning": 0, "tuned": 0, "measuring": 1}.get(moment, 2)
    assert {name: len(runs) for name, runs in runs_of(left).items()} == {
        "plain": kept, "speculative": kept,
    }  # fmt: skip
    assert cli.run([*command, "-o", str(path)]) == 0
    data = results.read(path)
    assert data.finished is True
    if kept:
        before, now = ({m.name: m.tuning for m in d.cells[0].methods} for d in (left, data))
        assert before["speculative"].trials
        assert now == before
    for name, runs in runs_of(data).items():
        assert [timed(run) for run in runs[:kept]] == [*map(timed, runs_of(left)[name])]
        assert [run.prompt for run in runs] == [0, 1]
    assert [set(m.summary.to_dict()) for m in data.cells[0].methods] == [
        set(m.summary.to_dict()) for m in whole.cells[0].methods
    ]
    assert json.loads(path.read_text()) == data.to_dict()


def test_before_anything_is_measured(command, monkeypatch, tmp_path, capsys):
    """While models are loaded: an earlier run's file is left as it is, and told of."""
    path = tmp_path / "r.json"
    argv = [*command, "-o", str(path)]
    interrupt(monkeypatch, "hierspec_lab.bench.prompt_ids:encode")
    assert cli.run(argv) == 130
    assert told(capsys) == NOTHING
    assert not path.exists()
    monkeypatch.undo()
    interrupt(monkeypatch, "hierspec_lab.bench.run:_run_record", 4)
    assert cli.run(argv) == 130
    before = path.read_bytes()
    for more, says in (([], GOES_ON), (["--overwrite"], NOTHING)):
        interrupt(monkeypatch, "hierspec_lab.bench.prompt_ids:encode")
        capsys.readouterr()
        assert cli.run([*argv, *more]) == 130
        assert told(capsys) == says
        assert path.read_bytes() == before


# While the results file is written.


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("write", range(1, WRITES + 1))
def test_an_interrupted_write_loses_nothing(write, after, command, monkeypatch, tmp_path, capsys):
    """Around each renaming of a new file over the old one."""
    path, page = tmp_path / "r.json", tmp_path / "a page.html"
    argv = [*command, "-o", str(path), "--report", str(page)]
    seen = []

    def ours(old, new):
        return Path(new) == path.resolve()

    with monkeypatch.context() as patch:
        real = os.replace

        def noted(old, new):
            if ours(old, new):
                seen.append(json.loads(Path(old).read_text()))
            real(old, new)

        patch.setattr(os, "replace", noted)
        interrupt(patch, "os:replace", write, after, when=ours)
        assert cli.run(argv) == 130
    assert len(seen) == write - (not after)
    assert list(tmp_path.iterdir()) == ([path] if seen else [])
    if seen:
        assert results.read(path).to_dict() == seen[-1]
    line = told(capsys)
    if write == WRITES and after:  # the same command would be refused
        assert seen[-1]["finished"] is True
        argv = again(line, path)
    else:
        assert line == (NOTHING if write == 1 else GOES_ON)
    assert cli.run(argv) == 0
    assert results.read(path).finished is True
    assert page.read_text().endswith("</html>\n")


def test_overwriting_goes_on_without_it(monkeypatch, tmp_path, capsys):
    path, profile = tmp_path / "r.json", tmp_path / "r.profile.json"
    for more, stays, says in (
        ([], True, GOES_ON),
        (["--overwrite"], False, GOES_ON.replace("command", "command without --overwrite")),
    ):
        profile.write_text("{}")
        with monkeypatch.context() as patch:
            interrupt(patch, "hierspec_lab.bench.run:Bench.run")
            assert cli.run([*PLAIN, "-o", str(path), *more]) == 130
        assert told(capsys) == says
        assert profile.exists() == stays  # planned methods are measured anew as well
        assert results.read(path).finished is False


# When all is measured.

SHOWN = {  # where, after it does its work?, and what is there by then
    "last write": ("hierspec_lab.bench.run:Bench.run", True, []),
    "written": ("hierspec.cli.rendering:say", True, []),
    "table": ("hierspec_lab.bench.report.table:rendered", False, []),
    "plots": ("hierspec_lab.bench.report.pictures:draw", False, []),
    "page": ("hierspec_lab.bench.report.page:write", False, ["plots"]),
    "answers": ("hierspec_lab.bench.spec_bench:write", False, ["plots", "page"]),
    "all": ("hierspec_lab.bench.spec_bench:write", True, ["plots", "page", "answers"]),
}


@pytest.mark.parametrize("moment", SHOWN)
def test_an_interrupted_showing_says_how_to_make_the_files(
    moment, command, whole, monkeypatch, tmp_path, capsys
):
    pytest.importorskip("matplotlib", reason="the extra `plot` is not installed")
    path = tmp_path / "r.json"
    results.write(
        path, whole.model_copy(update={"finished": False})
    )  # no more than the last line is missing
    shown = ["--report", str(tmp_path / "page.html"), "--plots", str(tmp_path / "plots")]
    shown += ["--spec-bench", str(tmp_path / "answers.jsonl")]
    shown += ["--json"] if moment == "plots" else []
    where, after, made = SHOWN[moment]

    def there():
        names = {file.name.partition(".")[0].partition("-")[0] for file in tmp_path.iterdir()}
        return names - {"r"}

    def when(*args):  # lines of progress come before it
        return moment != "written" or args[1].startswith("written to")

    with monkeypatch.context() as patch:
        interrupt(patch, where, after=after, when=when)
        assert cli.run([*command, "-o", str(path), *shown]) == 130
    data = results.read(path)
    assert data == whole.model_copy(update={"roofline": data.roofline})
    assert there() == set(made)
    before = path.read_bytes()
    argv = again(told(capsys), path)
    assert argv == ["bench", "--from", str(path), *shown]
    assert cli.run(argv) == 0
    assert there() == {"plots", "page", "answers"}
    assert path.read_bytes() == before
    if moment == "plots":
        assert json.loads(capsys.readouterr().out) == data.to_dict()


@pytest.mark.parametrize("name", ["r.json", "r.json.gz"])
def test_results_are_read_as_they_are_written(name, tmp_path):
    results.write(tmp_path / name, made_up())
    assert results.read(tmp_path / name) == made_up()


def test_an_interruption_of_a_table_from_a_file(monkeypatch, tmp_path, capsys):
    path, page = tmp_path / "its results.json", tmp_path / "a page.html"
    results.write(path, made_up())
    argv = ["bench", "--from", str(path), "--report", str(page)]
    shown = ("hierspec_lab.cli.bench_output:show", "hierspec_lab.bench.report.table:rendered")
    for where in (*shown, "hierspec_lab.cli.bench_output:say"):
        with monkeypatch.context() as patch:
            interrupt(patch, where, after=True)
            assert cli.run(argv) == 130
        assert again(told(capsys), path) == argv
    assert page.exists()


def test_without_a_file_a_line_says_what_keeps_it(monkeypatch, capsys):
    monkeypatch.setattr(Bench, "run", lambda self: None)
    for where, says in (
        ("hierspec_lab.bench.run:Bench.run", "interrupted: -o FILE keeps it"),
        ("hierspec_lab.cli.bench_output:show", "interrupted: the results are measured, but in no "
         "file; -o FILE keeps them"),
    ):  # fmt: skip
        with monkeypatch.context() as patch:
            interrupt(patch, where)
            assert cli.run(PLAIN) == 130
        assert told(capsys) == says


def test_before_a_model_is_loaded(monkeypatch, capsys):
    interrupt(monkeypatch, "hierspec_lab.bench.methods.catalogue:select")
    assert cli.run(PLAIN) == 130
    assert told(capsys) == NOTHING
