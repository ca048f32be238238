"""Throughput of eight ragged sequences together against one at a time, on ``zoo:large``.

What suits one sequence does not suit eight: their checks are eight times as wide, and wide checks
are no longer free. So each batch size gets the best of the same budgets, tuned on other prompts,
and both are shown for every method. Batch sizes take turns on the same prompts.

    python benchmarks/batch.py --prompts humaneval.jsonl
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import common
import torch

from hierspec.config.schema import TargetConfig
from hierspec_lab.bench.methods.ours import BenchModels


def draft(model: str, budget: int, **extra: Any) -> dict[str, Any]:
    return {"method": "draft_model", "model": model, "num_speculative_tokens": budget, **extra}


GRIDS: dict[str, list[list[dict[str, Any]]]] = {
    "plain": [[]],
    "single draft": [
        *([draft("zoo:small", n)] for n in (1, 2, 3, 4)),
        *([draft("zoo:trunk", n)] for n in (2, 4, 8, 12)),
    ],
    "three levels": [
        [draft("zoo:small", low), draft("zoo:trunk", high, verify="block")]
        for low, high in ((1, 2), (2, 3), (2, 5), (3, 8), (3, 11), (4, 15))
    ],
}


def seconds_per_token(
    models: BenchModels,
    levels: list[dict[str, Any]],
    prompts: list[str],
    size: int,
    tokens: int,
    temperature: float,
) -> float:
    """Return wall time, reading the prompts included, over all tokens written."""
    hierarchy = models.hierarchy(levels, verify="block")
    began, num_tokens = time.perf_counter(), 0
    for first in range(0, len(prompts), size):
        results = hierarchy.generate_batch(
            prompts[first : first + size],
            max_new_tokens=tokens,
            temperature=temperature,
            seed=first,
            ignore_eos=True,
        )
        num_tokens += sum(result.num_tokens for result in results)
    return (time.perf_counter() - began) / num_tokens


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--target", default="zoo:large?eps=0.2")
    parser.add_argument("--groups", type=int, default=3, help="of as many prompts as a batch holds")
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    texts, identity = common.read_prompts(args.prompts)
    size = args.batch_size
    groups = [texts[i * size : (i + 1) * size] for i in range(args.groups + 1)]
    tuning, measured = groups[-1], groups[:-1]
    models = BenchModels(TargetConfig(model=args.target, dtype="bfloat16"))
    report: dict[str, Any] = {
        "environment": common.environment(prompts=identity),
        "target": args.target,
        "note": "zoo:large is a synthetic cost with a real distribution",
        "tokens": args.tokens,
        "batch_size": size,
        "temperatures": {},
    }
    for temperature in (0.0, 1.0):
        cell = report["temperatures"][str(temperature)] = {}
        for name, grid in GRIDS.items():
            best = {}
            for batch in (1, size):
                subset = tuning[: max(2, batch)]
                times = []
                for levels in grid:
                    seconds_per_token(models, levels, subset[:1], 1, 4, temperature)  # warm
                    times.append(
                        seconds_per_token(
                            models, levels, subset, batch, args.tokens // 2, temperature
                        )
                    )
                best[batch] = grid[times.index(min(times))]
            spent: dict[int, list[float]] = {1: [], size: []}
            for number, group in enumerate(measured):
                for batch in (1, size) if number % 2 else (size, 1):
                    spent[batch].append(
                        seconds_per_token(
                            models, best[batch], group, batch, args.tokens, temperature
                        )
                    )
            gain = common.ratio(spent[1], spent[size])
            cell[name] = {
                "throughput_gain": gain,
                "tokens_per_second": {
                    str(b): 1 / common.spread(v)["median"] for b, v in spent.items()
                },
                "levels": {str(b): levels for b, levels in best.items()},
            }
            rates = cell[name]["tokens_per_second"]
            print(
                f"temperature {temperature:g}, {name}: {rates['1']:.0f} → {rates[str(size)]:.0f} "
                f"tokens/s, {gain['median']:.2f}×",
                flush=True,
            )
    common.write("batch", report)


if __name__ == "__main__":
    main()
