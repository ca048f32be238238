"""What a command takes: seconds until its first token is there, and memory at its peak.

Whole commands in processes of their own, imports, loading and packing included, with files that
the system has in memory; ``import torch`` stands beside them as the floor. Memory is compared with
the weights as they are stored, and is what the system counts as resident, libraries and files
that are mapped included.
Models that are not named keep the figures that the result file has.

    python benchmarks/memory.py [--folder FOLDER]

``llama-1.2b`` has random weights, which are written to ``FOLDER`` once (2.5 GB); a GGUF file of it
takes llama-cpp-python (3.8 GB more).
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import common
from pack import rounded
from random_models import checkpoint

from hierspec.zoo import registry
from hierspec.zoo.gguf.files import smollm2_file

MODELS: dict[str, tuple[str, str]] = {
    "SmolLM2, its own bits": ("zoo:smollm2", "auto"),
    "SmolLM2, bfloat16": ("zoo:smollm2", "bfloat16"),
    "1.24 B, bfloat16": ("llama-1.2b", "bfloat16"),
    "1.24 B, a Q8_0 file": ("llama-1.2b", "Q8_0"),
}
DRAFTS: dict[str, list[dict[str, Any]]] = {
    "plain": [],
    "a copy in 8 bits drafts": [
        {"method": "quantized", "bits": 8, "num_speculative_tokens": 4},
    ],
}


def run(command: Sequence[str]) -> tuple[float, int]:
    """Run a command of Python to its end; return its seconds, and its memory's peak in bytes."""
    # As installed: modules are compiled once, and not at every start.
    env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, *command], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=env
    )
    _, status, used = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - began
    assert process.stderr is not None
    if status:
        raise SystemExit(process.stderr.read().decode())
    return seconds, used.ru_maxrss * 1024


def gguf_file(model: str, kind: str, folder: Path) -> Path:
    """Return a random model's GGUF file; another process writes it, for the memory that takes."""
    code = (
        "import sys; from pathlib import Path; from ground import gguf_files, open_source; "
        "gguf_files(open_source(sys.argv[1]), [sys.argv[2]], Path(sys.argv[3]))"
    )
    here = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    command = [sys.executable, "-c", code, model, kind, str(folder)]
    subprocess.run(command, check=True, env=here)
    return folder / f"{model}-{kind}.gguf"


def num_bytes(model: str, dtype: str) -> int:
    """Return the bytes of a model's weights, as they are stored or in a 16-bit type."""
    if dtype == "auto":
        return (Path(model) if model.endswith(".gguf") else smollm2_file()).stat().st_size
    source = registry.open_weights(model)
    return 2 * sum(source.tensor(name).numel() for name in source.names())


def generate(target: dict[str, str], levels: list[dict[str, Any]], tokens: int) -> list[str]:
    hierarchy = json.dumps({"target": target, "levels": levels, "verify": "block"})
    command = ["-m", "hierspec", "generate", "def quicksort(items):", "--hierarchy", hierarchy]
    if target["model"].endswith(".gguf"):
        command += ["--tokenizer", "zoo:smollm2"]  # a random model's file has none
    return [*command, "--ignore-eos", "--max-new-tokens", str(tokens), "--json"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--tokens", type=int, default=32, help="written where memory is measured")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="for random models; default: a temporary one")
    args = parser.parse_args()
    file = common.RESULTS / "memory.json"
    before = json.loads(file.read_text()) if file.exists() else {}
    with tempfile.TemporaryDirectory() as scratch:
        folder = args.folder or Path(scratch)
        commands, targets = {"import torch": ["-c", "import torch"]}, dict[str, dict[str, str]]()
        for name in args.models:
            model, dtype = MODELS[name]
            if dtype == "Q8_0":
                target = {"model": str(gguf_file(model, dtype, folder)), "dtype": "auto"}
            else:
                target = {"model": checkpoint(model, folder), "dtype": dtype}
            targets[name] = target
            commands[f"{name}: the first token"] = generate(target, [], 1)
            run(commands[f"{name}: the first token"])  # reads files, and compiles
            for way, levels in DRAFTS.items():
                if levels and dtype == "Q8_0":
                    continue  # no copy in 8 bits is cheaper
                commands[f"{name}, {way}"] = generate(target, levels, args.tokens)
        found: dict[str, list[tuple[float, int]]] = {name: [] for name in commands}
        for _ in range(args.runs):
            for name, command in commands.items():
                found[name].append(run(command))
        # A child begins with its parent's peak, so that only what is above is its own.
        own_peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        weights = {name: num_bytes(**target) for name, target in targets.items()}
    rows: dict[str, dict[str, Any]] = {}
    for name, runs in found.items():
        seconds, peaks = zip(*runs, strict=True)
        rows[name] = {"seconds": common.spread(seconds)}
        line = f"{name}: {rows[name]['seconds']['median']:.2f} s"
        if max(peaks) <= own_peak:
            print(line)
            continue
        rows[name]["peak_bytes"] = max(peaks)
        line += f", {max(peaks) / 2**20:.0f} MiB"
        model = next((model for model in weights if name.startswith(model)), None)
        if model is not None:
            rows[name]["peak_over_weights"] = max(peaks) / weights[model]
            line += f", {rows[name]['peak_over_weights']:.2f} times the weights"
        print(line)
    common.write(
        "memory",
        {
            "environment": common.environment(),
            "settings": {"tokens": args.tokens, "runs": args.runs},
            "commands": before.get("commands", {}) | rounded(rows),
        },
    )


if __name__ == "__main__":
    main()
