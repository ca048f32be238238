"""One run on a GPU that decides: does every path work, and how far from the memory's speed is it?

Stages run one after the other, each in a process of its own with a time limit, so that one that
crashes or hangs takes no other along. Each writes ``gpu-STAGE.json`` after every measurement; the
last, ``summary``, reads these and says what they decide. Under 590 s in all.

    python benchmarks/gpu_once.py -o build/gpu
    python benchmarks/gpu_once.py -o build/gpu --only env micro
    python benchmarks/gpu_once.py -o build/gpu --device cpu --size tiny      # a dry run

=======  ====================================================================================
env      versions, attention back-ends, and how fast 4 GB are read: the floor
tests    the tests marked ``gpu``
micro    calls of 1 to 32 rows and drafts of eight on Llama's shapes of 1 and 8 B with random
         weights, beside transformers with a static cache
family   ``zoo:large`` of 4 B, plain, planned, one draft, three levels, early exits, and
         transformers' ways, on eight prompts
=======  ====================================================================================
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from gpu_family import COMPILED, family
from gpu_micro import CONTEXTS, micro
from gpu_stage import SECONDS, TINY, Stage, milliseconds

ROOT = Path(__file__).resolve().parent.parent
TOTAL_SECONDS, LEAST_SECONDS = 570, 5


# --- env


def env(stage: Stage) -> None:
    import torch
    import transformers

    versions: dict[str, Any] = {
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    for name in ("triton", "pydantic", "torchao"):
        with contextlib.suppress(ImportError):
            versions[name] = __import__(name).__version__
    stage.add(what="versions", **versions)
    if stage.cuda:
        cuda = torch.backends.cuda
        stage.attempt(
            "device",
            lambda: {
                "name": torch.cuda.get_device_name(),
                "free_bytes": torch.cuda.mem_get_info()[0],
                "cuda": torch.version.cuda,
                "cudnn": torch.backends.cudnn.version(),
                "attention": {
                    "flash": cuda.flash_sdp_enabled(),
                    "efficient": cuda.mem_efficient_sdp_enabled(),
                    "cudnn": cuda.cudnn_sdp_enabled(),
                    "math": cuda.math_sdp_enabled(),
                },
            },
        )
    size = 1 << (18 if stage.tiny else 31)  # 4 GB: far above any cache

    def read() -> dict[str, Any]:
        numbers = torch.ones(size, dtype=torch.bfloat16, device=stage.options.device)
        ms = milliseconds(stage, numbers.sum, 10, 3)
        return {"bytes": numbers.nbytes, "ms": ms, "bytes_per_second": 1e3 * numbers.nbytes / ms}

    stage.attempt("reading", read)


# --- tests


def tests(stage: Stage) -> None:
    """Run the tests marked ``gpu``, of the files that have any."""
    marked = sorted(
        path
        for path in (ROOT / "tests").rglob("test_*.py")
        if "mark.gpu" in path.read_text(encoding="utf-8")
    )
    command = [sys.executable, "-m", "pytest", "-v", "-m", "gpu", "-o", "addopts="]
    command += ["-p", "no:cacheprovider", "-rfE", "--tb=short", "--durations=10"]
    began = time.monotonic()
    process = subprocess.Popen(
        [*command, *map(str, marked)],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    counts = dict.fromkeys(("PASSED", "FAILED", "ERROR", "SKIPPED"), 0)
    record: dict[str, Any] = {"what": "pytest", "status": None, "without_graphs": 0, "failures": []}
    stage.runs.append(record)
    assert process.stdout is not None
    for line in process.stdout:
        print(line, end="", flush=True)
        record["without_graphs"] += "running without a CUDA graph" in line
        if ended := re.match(r"(\S+::.+?) (PASSED|FAILED|ERROR|SKIPPED)\b", line):
            counts[ended[2]] += 1
            if ended[2] in ("FAILED", "ERROR"):
                record["failures"].append(ended[1])
            record |= {"seconds": time.monotonic() - began}
            record |= {word.lower(): number for word, number in counts.items()}
            stage.write()
    record["status"] = process.wait()


# --- summary


def summary(stage: Stage) -> None:
    """Read the stages' files and print a verdict for each question, ``None`` where open."""
    found = {
        name: read_runs(stage.options.output, name) for name in ("env", "tests", "micro", "family")
    }
    print(f"\n{'':<62}{'found':>9}{'wanted':>12}")
    for verdict in verdicts(found):
        question, value, limit, at_least = verdict
        stage.add(what=question, value=value, limit=limit, at_least=at_least, holds=verdict.holds)
        shown = "-" if value is None else f"{value:.3g}"
        wanted = f"{'≥' if at_least else '≤'} {limit:.3g}"
        answer = {None: "open", True: "holds", False: "FAILS"}[verdict.holds]
        print(f"{question:<62}{shown:>9}{wanted:>12}  {answer}")


def read_runs(folder: Path, stage: str) -> list[dict[str, Any]]:
    path = folder / f"gpu-{stage}.json"
    return json.loads(path.read_text())["runs"] if path.exists() else []


class Verdict(NamedTuple):
    """What was found (``None``: nothing) beside what is wanted, at least or at most."""

    question: str
    value: float | None
    limit: float
    at_least: bool = True

    @property
    def holds(self) -> bool | None:
        if self.value is None:
            return None
        return self.value >= self.limit if self.at_least else self.value <= self.limit


def verdicts(found: dict[str, list[dict[str, Any]]]) -> list[Verdict]:
    return [
        *of_tests(found["tests"]),
        *of_micro(found["env"], found["micro"]),
        *of_family(found["family"]),
    ]


def of_tests(runs: list[dict[str, Any]]) -> list[Verdict]:
    ran = next((run for run in runs if run.get("passed")), None)
    bad, unrecorded = (ran["failed"] + ran["error"], ran["without_graphs"]) if ran else (None, None)
    return [
        Verdict("GPU tests that fail", bad, 0, at_least=False),
        Verdict("graphs that could not be recorded in them", unrecorded, 0, at_least=False),
    ]


def of_micro(env: list[dict[str, Any]], runs: list[dict[str, Any]]) -> list[Verdict]:
    """Judge calls at the shorter text: one row, sixteen, and transformers' step."""
    speed = next((run["bytes_per_second"] for run in env if "bytes_per_second" in run), None)
    ours: dict[str, dict[int, float]] = {}
    peers: dict[str, list[float]] = {}
    weights: dict[str, int] = {}
    for run in runs:
        if "ms" not in run or run["context"] != CONTEXTS[0]:
            continue
        weights[run["model"]] = run["read_bytes"]
        if run["what"] == "rows":
            ours.setdefault(run["model"], {})[run["rows"]] = run["ms"]
        elif run["what"] == "transformers":
            peers.setdefault(run["model"], []).append(run["ms"])
    out: list[Verdict] = []
    for model, by_rows in ours.items():
        one = by_rows.get(1, math.inf)
        share = 1e3 * weights[model] / one / speed if speed and 1 in by_rows else None
        many = by_rows[16] / one if by_rows.keys() >= {1, 16} else None
        ahead = min(peers[model]) / one if model in peers and 1 in by_rows else None
        out += [
            Verdict(f"{model}, one row: share of the read bandwidth", share, 0.7),
            Verdict(f"{model}: 16 rows over one row", many, 1.15, at_least=False),
            Verdict(f"{model}, one row: transformers' fastest static step over ours", ahead, 1.0),
        ]
    return out


def of_family(runs: list[dict[str, Any]]) -> list[Verdict]:
    """Judge by medians over prompts of the ratio of two methods' times."""
    times: dict[tuple[str, float], dict[int, float]] = {}
    for run in (run for run in runs if run["what"] == "run"):
        of_method = times.setdefault((run["method"], run["temperature"]), {})
        of_method[run["prompt"]] = run["ms_per_token"]

    def over(slow: str, fast: str, temperature: float) -> float | None:
        one, other = times.get((slow, temperature), {}), times.get((fast, temperature), {})
        ratios = [one[prompt] / other[prompt] for prompt in one.keys() & other.keys()]
        return statistics.median(ratios) if ratios else None

    out: list[Verdict] = []
    for t in (0.0, 1.0):
        own, compiled = over("plain", "planned", t), over(COMPILED, "planned", t)
        out.append(Verdict(f"planned over own plain, temperature {t:g}", own, 2.0))
        out.append(Verdict(f"planned over transformers compiled, temperature {t:g}", compiled, 1.0))
    three = [over("one draft", "three levels", t) for t in (0.0, 1.0)]
    best = max((value for value in three if value is not None), default=None)
    out.append(Verdict("three levels over the best single draft, somewhere", best, 1.1))
    return out


# --- all of them

STAGES: dict[str, Callable[[Stage], None]] = {
    "env": env, "tests": tests, "micro": micro, "family": family, "summary": summary,
}  # fmt: skip


def run_stage(options: argparse.Namespace) -> int:
    """Run one stage in this process."""
    import warnings

    warnings.filterwarnings("ignore", message="`past_key_values` is deprecated")
    stage = Stage(options.stage, options, time.monotonic() + options.seconds - 5)
    STAGES[options.stage](stage)
    stage.finished = True
    stage.write()
    return 0


def run_all(options: argparse.Namespace, argv: Sequence[str]) -> int:
    """Run the stages, each in a process of its own; return 1 where one did not end well."""
    options.output.mkdir(parents=True, exist_ok=True)
    end, bad = time.monotonic() + options.total, 0
    log_path = options.output / "gpu.log"
    with log_path.open("w") as log:
        for name in STAGES:
            if options.only and name not in options.only:
                continue
            limit = min(SECONDS[name], end - time.monotonic())
            if limit < LEAST_SECONDS:
                print(f"{name}: no time left", flush=True)
                bad += 1
                continue
            command = [sys.executable, __file__, *argv, "--stage", name, "--seconds", str(limit)]
            began = time.monotonic()
            log.write(f"== {name}\n")
            log.flush()
            process = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )
            try:
                status: int | str = process.wait(limit)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                status = "out of time"
            bad += status != 0
            words = "done" if status == 0 else f"ended with {status}"
            print(f"{name}: {words}, {time.monotonic() - began:.0f} s", flush=True)
    text = log_path.read_text(errors="replace")
    print(text.rpartition("== summary\n")[2][-8000:] if "== summary\n" in text else text[-2000:])
    return min(bad, 1)


def main(argv: Sequence[str] | None = None) -> int:
    """Return 0; 1 where a stage did not end well; 2 where there is no such device."""
    argv = sys.argv[1:] if argv is None else list(argv)
    parser = argparse.ArgumentParser(description="One run on a GPU that decides.")
    add = parser.add_argument
    add("-o", "--output", type=Path, required=True, help="folder of the files")
    add("--only", nargs="+", choices=STAGES, default=[], help="these stages alone")
    add("--device", default="cuda")
    add("--size", default="4B", help=f"of the family's target; {TINY}: everything small, a dry run")
    add("--commit", default="", help="to note where this is no checkout")
    add("--total", type=float, default=TOTAL_SECONDS, help="seconds for all stages")
    add("--stage", choices=STAGES, help=argparse.SUPPRESS)
    add("--seconds", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.stage:
        from hierspec.utils import threads

        threads.prepare()  # before torch is loaded
        return run_stage(options)
    import torch

    if options.device.startswith("cuda") and not torch.cuda.is_available():
        text = "torch sees no CUDA device here; --device cpu --size tiny is a dry run"
        print(f"gpu_once.py: error: {text}", file=sys.stderr)
        return 2
    return run_all(options, argv)


if __name__ == "__main__":
    sys.exit(main())
