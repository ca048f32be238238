"""What every benchmark shares: prompts, statistics, and a record of where it ran."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch loads its OpenMP runtime
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import json
import platform
import random
import statistics
import subprocess
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"


def environment(**more: Any) -> dict[str, Any]:
    """Commit, versions, hardware and load, without the machine's name or paths."""
    import torch

    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True
    ).stdout.strip()
    names = ("hierspec", "torch", "transformers", "numpy")
    return {
        "commit": commit,
        "versions": {"python": platform.python_version()}
        | {name: metadata.version(name) for name in names},
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "OMP_WAIT_POLICY": os.environ["OMP_WAIT_POLICY"],
        "load_average": [round(x, 2) for x in os.getloadavg()],
        **more,
    }


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    text = info.read_text() if info.exists() else ""
    fields = dict(
        (part.strip() for part in line.split(":", 1)) for line in text.splitlines() if ":" in line
    )
    flags = fields.get("flags", "").split()
    wide = [flag for flag in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if flag in flags]
    name = fields.get("model name", platform.processor() or platform.machine())
    return f"{name} family {fields.get('cpu family', '?')} ({', '.join(wide)})"


def read_prompts(path: Path) -> tuple[list[str], dict[str, Any]]:
    """The prompts of a file and what identifies it."""
    from hierspec.prompts import read_prompt_file

    file = read_prompt_file(path)
    return list(file.prompts), {"file": file.name, "sha256": file.sha256}


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median and quartiles."""
    ordered = sorted(values)
    if len(ordered) < 2:
        return {"median": ordered[0], "q1": ordered[0], "q3": ordered[0], "n": len(ordered)}
    q1, median, q3 = statistics.quantiles(ordered, n=4, method="inclusive")
    return {"median": median, "q1": q1, "q3": q3, "n": len(ordered)}


def ratio(numerators: Sequence[float], denominators: Sequence[float]) -> dict[str, float]:
    """Paired ratios: median, quartiles and a 95 % bootstrap interval of the median."""
    ratios = [a / b for a, b in zip(numerators, denominators, strict=True)]
    rng = random.Random(0)
    medians = sorted(statistics.median(rng.choices(ratios, k=len(ratios))) for _ in range(2000))
    return {**spread(ratios), "low95": medians[50], "high95": medians[1949]}


def chain_of(profile: Any, budgets: dict[str, int]) -> Any:
    """A chain of a profile's models by name; the target is left out of ``budgets``."""
    from hierspec.planner.chain import Chain

    names = [model["name"] for model in profile.models]
    levels = sorted(names.index(name) for name in budgets)
    return Chain((*levels, len(names) - 1), tuple(budgets[names[i]] for i in levels))


def decode(
    hierarchy: Any, prompt: str, tokens: int, temperature: float, seed: int
) -> dict[str, Any]:
    """One generation: ms a token after the first, and how it went."""
    generation = hierarchy.start(
        [prompt], max_new_tokens=tokens, seed=seed, ignore_eos=True, temperature=temperature
    )
    for _ in generation:
        pass
    result = generation.results()[0]
    return {
        "ms": 1e3 * result.decode_seconds / (result.num_tokens - 1),
        "tokens_per_call": result.mean_acceptance_length,
        "prompt": result.num_prompt_tokens,
        "control": result.control,
    }


def write(name: str, data: dict[str, Any]) -> Path:
    """Into ``benchmarks/results/NAME.json``."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(data, indent=1) + "\n")
    print(f"wrote {path.relative_to(ROOT)}")
    return path
