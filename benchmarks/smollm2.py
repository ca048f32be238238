"""The main figures: every method on SmolLM2-135M-Instruct, chats of eight domains, one run.

Prompts come evenly from the domains of a folder of prompt files (HumanEval, GSM8K, Spec-Bench's
six tasks, all turns), in the chat template, at temperatures 0 and 1. All methods take turns on each
prompt. Interrupted or out of time, the same command goes on where it was.

    python benchmarks/smollm2.py --prompts FOLDER --time-limit 50
    python benchmarks/smollm2.py --summary          # of what is there, nothing measured
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import common

from hierspec.profiling.candidates import default_names
from hierspec_lab.bench import summary
from hierspec_lab.bench.method_records import MethodRecord
from hierspec_lab.bench.records import BenchResults, TemperatureRecord
from hierspec_lab.bench.results import is_finished, read

TARGET = "zoo:smollm2"
METHODS = [
    "planned",
    "alone",
    "hierarchy",
    "transformers",
    "transformers-prompt-lookup",
    "llama.cpp-file",
    "llama.cpp-file-prompt-lookup",
]
_TUNED = {"planned", "online", "transformers", "llama.cpp", "llama.cpp-file"}  # as they are
_TRIALS = 12


def expected_minutes(args: argparse.Namespace) -> float:
    """Estimate the time if every token takes ``--ms`` and no text ends before its length."""
    drafters = len(args.drafts or default_names(args.target))
    count = 1 + sum(drafters if word == "alone" else 1 for word in args.methods)
    tuned = sum(drafters if word == "alone" else word not in _TUNED for word in args.methods)
    measured = count * (args.num_prompts * args.tokens + args.tune_tokens)
    tuning = tuned * _TRIALS * args.tune_prompts * args.tune_tokens
    profile = 6000  # tokens' worth of a profile
    return len(args.temperatures) * (measured + tuning + profile) * args.ms / 60_000


def command(args: argparse.Namespace) -> list[str]:
    """Return the arguments of ``hierspec bench``."""
    words = [sys.executable, "-m", "hierspec", "bench", "--target", args.target, "--chat"]
    words += ["--prompts", str(args.prompts), "--num-prompts", str(args.num_prompts)]
    words += ["--tune-prompts", str(args.tune_prompts), "--tune-tokens", str(args.tune_tokens)]
    words += ["--max-new-tokens", str(args.tokens), "--methods", ",".join(args.methods)]
    words += ["--threads", str(args.threads), "-o", str(args.output)]
    words += ["--until-eos"] * (not args.fixed_length) + ["--overwrite"] * args.overwrite
    for temperature in args.temperatures:
        words += ["--temperature", str(temperature)]
    for draft in args.drafts or ():
        words += ["--draft", draft]
    return words


def run(words: list[str], minutes: float | None) -> int:
    """Run the command; interrupt it, as a user would, when the time is up."""
    # A shell lets what it runs in the background ignore interrupts, and children inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    process = subprocess.Popen(words)
    try:
        return process.wait(None if minutes is None else 60 * minutes)
    except subprocess.TimeoutExpired:
        print(f"{minutes:g} minutes are over: the same command goes on", flush=True)
        process.send_signal(signal.SIGINT)
        return process.wait()


def aims(data: BenchResults) -> list[dict[str, Any]]:
    """Return what was aimed for, by temperature: ratios of paired times, above 1 is faster."""
    is_16bit = data.settings.target == "zoo:smollm2-16bit"
    return [
        {"temperature": cell.temperature, "aim": aim, "ratio": ratio, "wanted": goal}
        for cell in data.cells
        for aim, ratio, goal in _aims(cell, is_16bit)
    ]


def _aims(
    cell: TemperatureRecord, is_16bit: bool
) -> list[tuple[str, dict[str, Any] | None, float]]:
    by_name = {method.name: method for method in cell.measured}
    planned = by_name.get("planned")

    def best(prefix: str) -> MethodRecord | None:
        found = (method for name, method in by_name.items() if name.startswith(prefix))
        return min(found, key=_ms, default=None)

    goal = (1.8 if cell.greedy else 1.5) if is_16bit else 1.4
    rows = [
        ("planned over plain decoding", by_name.get("plain"), planned, goal),
        (
            "planned over the best of llama.cpp on the GGUF file",
            best("llama.cpp-file"),
            planned,
            2.5,
        ),
        ("planned over the best of transformers", best("transformers"), planned, 4.0),
        ("planned over the best drafter alone", best("alone-"), planned, 1.1),
        ("three levels over the best drafter alone", best("alone-"), by_name.get("hierarchy"), 1.1),
    ]
    return [(aim, _ratio(slow, fast), goal) for aim, slow, fast, goal in rows]


def _ms(method: MethodRecord) -> float:
    return method.final_summary.ms_per_token.median


def _ratio(slow: MethodRecord | None, fast: MethodRecord | None) -> dict[str, Any] | None:
    if slow is None or fast is None:
        return None
    ratio = summary.paired_speedup(slow.runs, fast.runs)
    return None if ratio is None else ratio.to_dict()


def lengths(data: BenchResults) -> dict[str, dict[str, float | None]]:
    """Return tokens a call of the target, by temperature and method."""
    return {
        f"{cell.temperature:g}": {
            m.name: m.final_summary.mean_acceptance_length for m in cell.measured
        }
        for cell in data.cells
    }


def report(path: Path, name: str) -> None:
    """Print the tables and the aims, and write the latter beside the results."""
    data = read(path)
    subprocess.run([sys.executable, "-m", "hierspec", "bench", "--from", str(path)], check=False)
    rows = aims(data)
    for row in rows:
        ratio = row["ratio"]
        text = "not measured"
        if ratio is not None:
            text = f"{ratio['median']:.2f}× [{ratio['low95']:.2f}, {ratio['high95']:.2f}]"
        print(f"T {row['temperature']:g}: {row['aim']}: {text}, aim {row['wanted']:g}×")
    common.write(
        name,
        {
            "environment": data.environment.to_dict(),
            "settings": data.settings.to_dict(),
            "finished": data.finished,
            "aims": rows,
            "tokens_per_target_call": lengths(data),
        },
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=Path, help="a folder of .jsonl files, or one of them")
    parser.add_argument("--target", default=TARGET)
    parser.add_argument("--num-prompts", type=int, default=60)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--tune-prompts", type=int, default=4)
    parser.add_argument("--tune-tokens", type=int, default=48)
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 1.0])
    parser.add_argument("--methods", nargs="+", default=METHODS, help="as of hierspec bench")
    parser.add_argument("--drafts", nargs="+", help="as --draft; default: all there are")
    parser.add_argument("--fixed-length", action="store_true", help="no end of text ends a text")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--time-limit", type=float, help="minutes; the same command goes on then")
    parser.add_argument("--ms", type=float, default=25.0, help="a token's, for the expected time")
    parser.add_argument("--output", type=Path, default=common.RESULTS / "smollm2.json")
    parser.add_argument("--overwrite", action="store_true")
    parser.add_argument("--summary", action="store_true", help="measure nothing")
    args = parser.parse_args()
    if not args.summary and (args.overwrite or not is_finished(args.output)):
        if args.prompts is None:
            parser.error("--prompts FOLDER is needed to measure")
        minutes = expected_minutes(args)
        print(f"expected: at most {minutes:.0f} minutes at {args.ms:g} ms a token", flush=True)
        if status := run(command(args), args.time_limit):
            sys.exit(status)
    report(args.output, f"{args.output.stem}-aims")


if __name__ == "__main__":
    main()
