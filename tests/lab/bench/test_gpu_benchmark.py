"""The benchmark of a GPU, ``benchmarks/gpu.py``: its sizes, what it refuses, and a dry run."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
import torch

from hierspec_lab.bench.memory import count_parameters
from hierspec_lab.bench.methods.catalogue import catalogue

no_cuda = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs an accelerator: torch sees no CUDA device"
)
CUDA = pytest.param("cuda", marks=[pytest.mark.gpu, no_cuda])


@pytest.fixture(scope="module")
def script():
    path = Path(__file__).parents[3] / "benchmarks" / "gpu.py"
    spec = importlib.util.spec_from_file_location("benchmark_gpu", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("size", "options", "billions"),
    [
        ("100M", "widen=2&deepen=2", 0.116),
        ("0.5B", "widen=4&deepen=2", 0.459),
        ("1b", "widen=4&deepen=4", 0.912),
        ("3B", "widen=8&deepen=3", 2.731),
    ],
)
def test_sizes_become_targets(script, size, options, billions):
    name = script.target(size, 0.2)
    assert name == f"zoo:large?eps=0.2&{options}"
    assert script.parameters(*script.shape(size)) == count_parameters(name)
    assert count_parameters(name) / 1e9 == pytest.approx(billions, abs=5e-4)


def test_the_benchmark_says_why_it_cannot_run(script, capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert script.main(["--size", "1B"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "gpu.py: error: torch sees no CUDA device here; "
        "--device cpu --size tiny tries the benchmark itself"
    ]
    for wrong, says in (
        (["--size", "huge"], "say tiny"),
        (["--size", "0B"], "say tiny"),
        (["--size", "tiny", "--methods", "nosuch"], "no method called 'nosuch'"),
    ):
        assert script.main(["--device", "cpu", *wrong]) == 2
        assert says in capsys.readouterr().err.splitlines()[-1]


def test_every_method_of_the_benchmark_is_one(script):
    known = catalogue()
    assert all(known[name].lossless for name in script.METHODS)


@pytest.mark.parametrize("device", ["cpu", CUDA])
def test_a_dry_run_measures_and_writes(script, device, tmp_path, capsys):
    file = tmp_path / "gpu.json"
    methods = ["prompt-lookup", "transformers"]
    sizes = ["--num-prompts", "1", "--tune-prompts", "1", "--tokens", "4", "--temperature", "0"]
    where = ["--device", device, "--dtype", "float32", "--size", "tiny", "-o", str(file)]
    assert script.main([*where, *sizes, "--methods", *methods]) == 0
    assert "transformers" in capsys.readouterr().out
    data = json.loads(file.read_text())
    assert data["finished"]
    assert (data["settings"]["target"], data["settings"]["device"]) == ("zoo:trunk", device)
    (cell,) = data["cells"]
    found = {record["name"]: record for record in cell["methods"]}
    assert set(found) == {"plain", *methods}
    assert all(record["skipped"] is None for record in found.values())
    assert all(run["same_as_plain"] for run in found["prompt-lookup"]["runs"])
