"""The prepared run on a GPU: its stages on the CPU, what it does when they fail, its verdicts."""

from __future__ import annotations

import argparse
import json
import re
import shlex
import sys
from pathlib import Path

import pytest
import torch

sys.path.append(str(Path(__file__).parents[3] / "benchmarks"))
import gpu_family
import gpu_once

from hierspec.cli import run as run_command
from hierspec_lab.bench.memory import count_parameters
from hierspec_lab.bench.methods.catalogue import catalogue


def runs(folder: Path, stage: str) -> list[dict]:
    data = json.loads((folder / f"gpu-{stage}.json").read_text())
    assert (data["kind"], data["schema_version"], data["stage"]) == ("hierspec-gpu", 1, stage)
    assert data["environment"]["commit"] == "abc"
    assert data["finished"]
    return data["runs"]


def test_a_dry_run_measures_everything(tmp_path, capsys):
    """In this process; the stage ``tests`` would run these tests."""
    for stage in ("env", "micro", "family", "summary"):
        options = argparse.Namespace(
            stage=stage, device="cpu", size="tiny", output=tmp_path, commit="abc", seconds=200.0
        )
        assert gpu_once.run_stage(options) == 0
    found = {stage: runs(tmp_path, stage) for stage in ("env", "micro", "family", "summary")}
    assert not [run for some in found.values() for run in some if "error" in run]
    assert {run["rows"] for run in found["micro"] if run["what"] == "rows"} == {1, 4, 8, 16, 32}
    assert len([run for run in found["micro"] if run["what"] == "draft"]) == 3
    measured = [run for run in found["family"] if run["what"] == "run"]
    methods = {
        "plain", "planned", "one draft", "three levels", "early exits", "transformers",
        "transformers, assisted", "transformers, static",
    }  # fmt: skip
    for temperature in (0.0, 1.0):
        for prompt in (0, 1):
            where = (temperature, prompt)
            some = [run for run in measured if (run["temperature"], run["prompt"]) == where]
            assert {run["method"] for run in some} == methods
    open_ones = {run["what"] for run in found["summary"] if run["holds"] is None}
    assert open_ones == {
        "GPU tests that fail",
        "graphs that could not be recorded in them",
        "planned over transformers compiled, temperature 0",
        "planned over transformers compiled, temperature 1",
    }
    printed = capsys.readouterr().out
    assert all(run["what"] in printed for run in found["summary"])


FAKE = """
import json, os, pathlib, sys, time
stage = sys.argv[sys.argv.index("--stage") + 1]
if stage == "env":
    os.abort()
if stage == "tests":
    time.sleep(60)
pathlib.Path(sys.argv[sys.argv.index("-o") + 1], stage).touch()
print("the verdicts of", stage)
"""


def test_a_stage_that_dies_or_hangs_takes_no_other_along(tmp_path, monkeypatch, capsys):
    (tmp_path / "fake.py").write_text(FAKE)
    monkeypatch.setattr(gpu_once, "__file__", str(tmp_path / "fake.py"))
    monkeypatch.setattr(gpu_once, "LEAST_SECONDS", 0.0)
    monkeypatch.setitem(gpu_once.SECONDS, "tests", 0.5)
    out = tmp_path / "out"
    assert gpu_once.main(["-o", str(out), "--device", "cpu", "--size", "tiny"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("env: ended with -6")
    assert lines[1].startswith("tests: ended with out of time")
    assert [line.partition(",")[0] for line in lines[2:5]] == [
        "micro: done", "family: done", "summary: done",
    ]  # fmt: skip
    assert "the verdicts of summary" in lines
    assert {path.name for path in out.iterdir()} == {"gpu.log", "micro", "family", "summary"}
    assert gpu_once.main(["-o", str(out), "--device", "cpu", "--only", "micro"]) == 0


def test_it_fits_its_time():
    assert sum(gpu_once.SECONDS.values()) <= gpu_once.TOTAL_SECONDS < 590


def test_without_a_gpu_it_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu_once.main(["-o", str(tmp_path)]) == 2
    assert "torch sees no CUDA device here" in capsys.readouterr().err


def test_verdicts():
    def row(rows: int, ms: float) -> dict:
        where = {"what": "rows", "model": "8B", "context": 300, "read_bytes": 15e9}
        return where | {"rows": rows, "ms": ms}

    def run(method: str, temperature: float, *ms: float) -> list[dict]:
        return [
            {"what": "run", "method": method, "temperature": temperature, "prompt": i,
             "ms_per_token": one}
            for i, one in enumerate(ms)
        ]  # fmt: skip

    peer = {"what": "transformers", "model": "8B", "context": 300, "read_bytes": 15e9}
    found = {
        "env": [{"what": "reading", "bytes_per_second": 3e12}],
        "tests": [{"what": "pytest", "passed": 50, "failed": 1, "error": 0, "without_graphs": 0}],
        "micro": [
            row(1, 6.0), row(16, 7.2), {"what": "rows", "error": "out of memory"},
            peer | {"compiled": False, "ms": 20.0}, peer | {"compiled": True, "ms": 6.6},
        ],
        "family": [
            *run("plain", 0.0, 3.0, 3.0, 3.0), *run("planned", 0.0, 1.0, 1.2, 3.0),
            *run(gpu_once.COMPILED, 0.0, 2.4), *run("one draft", 1.0, 2.0, 2.0),
            *run("three levels", 1.0, 1.0, 1.0),
        ],
    }  # fmt: skip
    assert {one.question: (one.value, one.holds) for one in gpu_once.verdicts(found)} == {
        "GPU tests that fail": (1, False),
        "graphs that could not be recorded in them": (0, True),
        "8B, one row: share of the read bandwidth": (pytest.approx(15 / 18), True),
        "8B: 16 rows over one row": (pytest.approx(1.2), False),
        "8B, one row: transformers' fastest static step over ours": (pytest.approx(1.1), True),
        "planned over own plain, temperature 0": (pytest.approx(2.5), True),
        "planned over own plain, temperature 1": (None, None),
        "planned over transformers compiled, temperature 0": (pytest.approx(2.4), True),
        "planned over transformers compiled, temperature 1": (None, None),
        "three levels over the best single draft, somewhere": (pytest.approx(2.0), True),
    }
    nothing = {stage: [] for stage in found}
    assert {one.holds for one in gpu_once.verdicts(nothing)} == {None}


@pytest.mark.parametrize(
    ("size", "options", "billions"),
    [
        ("100M", "widen=2&deepen=2", 0.116),
        ("0.5B", "widen=4&deepen=2", 0.459),
        ("1b", "widen=4&deepen=4", 0.912),
        ("3B", "widen=8&deepen=3", 2.731),
    ],
)
def test_sizes_become_targets(size, options, billions):
    name = gpu_family.target(size, 0.2)
    assert name == f"zoo:large?eps=0.2&{options}"
    assert count_parameters(name) / 1e9 == pytest.approx(billions, abs=5e-4)


def test_sizes_that_are_none():
    for wrong in ("huge", "0B"):
        with pytest.raises(ValueError, match="say tiny"):
            gpu_family.shape(wrong)


def test_the_bench_on_the_page_exists_and_needs_a_gpu(tmp_path, monkeypatch, capsys):
    page = (Path(__file__).parents[3] / "docs" / "gpu.md").read_text()
    found = re.search(r"^hierspec (bench .*?gpu\.json)$", page, re.DOTALL | re.MULTILINE)
    assert found is not None
    arguments = shlex.split(found[1].replace("\\\n", " "))
    known = catalogue()
    methods = arguments[arguments.index("--methods") + 1].split(",")
    assert all(known[name].lossless for name in methods)
    monkeypatch.chdir(tmp_path)
    Path("humaneval.jsonl").write_text('{"prompt": "def f():"}\n' * 20)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert run_command(arguments) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "error" in line]
    assert "'cuda'" in line
    assert "cpu" in line
