"""Time outside models' forwards, of two checkouts that take turns.

A refactoring must not make the engine slower. Two processes, one a checkout, generate the same
texts in turns, one generation after the other; what is compared is decoding time less what its
forwards took, and decoding time as a whole, since checkouts may differ in what they count as part
of a forward. A difference of 5 % would matter; 24 paired generations show one of about 3 % where
ratios spread as they do here.

    git worktree add ../before e9a2e27
    python benchmarks/overhead.py --before ../before --prompts humaneval.jsonl
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

TARGET = {"model": "zoo:trunk", "dtype": "float32"}
_SMALL = {"method": "draft_model", "model": "zoo:small", "dtype": "float32"}
HIERARCHIES: dict[str, dict[str, Any]] = {
    "plain": {"levels": []},
    "one draft": {
        "levels": [{**_SMALL, "num_speculative_tokens": 4}],
        "verify": "tokenwise",
    },
    "three levels": {
        "levels": [
            {"method": "ngram_table", "num_speculative_tokens": 2},
            {"method": "early_exit", "exit_layer": 2, "num_speculative_tokens": 5},
        ],
        "verify": "block",
    },
    "windows": {
        "levels": [{**_SMALL, "num_speculative_tokens": 8, "window": {"kind": "entropy"}}],
        "verify": "block",
    },
    "look-up": {"levels": [{"method": "prompt_lookup", "num_speculative_tokens": 5}]},
}


def worker() -> None:
    """Answer lines of JSON on standard input, one generation each, with a line of JSON.

    It imports nothing but ``hierspec``'s public names, which both checkouts have.
    """
    import torch

    from hierspec import Hierarchy

    torch.set_num_threads(2)
    hierarchies: dict[str, Hierarchy] = {}
    for line in sys.stdin:
        request = json.loads(line)
        name = request["hierarchy"]
        if name not in hierarchies:
            hierarchies[name] = Hierarchy.from_config({"target": TARGET, **HIERARCHIES[name]})
        generation = hierarchies[name].start(
            request["prompts"],
            max_new_tokens=request["tokens"],
            temperature=request["temperature"],
            seed=request["seed"],
            ignore_eos=True,
        )
        for _ in generation:
            pass
        results = [result.to_dict() for result in generation.results()]
        levels = [*results[0]["levels"], results[0]["target"]]
        seconds = max(result["decode_seconds"] for result in results)
        forwards = sum(level["forward_seconds"] for level in levels)
        tokens = sum(len(result["token_ids"]) - 1 for result in results)
        answer = {
            "ms_outside": 1e3 * (seconds - forwards) / tokens,
            "ms": 1e3 * seconds / tokens,
            "token_ids": [result["token_ids"] for result in results],
        }
        print(json.dumps(answer), flush=True)


class Checkout:
    """A process that generates with the package of one checkout."""

    def __init__(self, root: Path) -> None:
        self.commit = subprocess.run(
            ["git", "-C", root, "rev-parse", "--short", "HEAD"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        environment = {**os.environ, "PYTHONPATH": str(root / "src")}
        self._process = subprocess.Popen(
            [sys.executable, "-P", __file__, "--worker"],  # none of the scripts here as modules
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def generate(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return one generation's milliseconds and token ids.

        Raises:
            RuntimeError: the process ended.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the process of {self.commit} ended: its error is above")
        return json.loads(line)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def measure(
    older: Checkout, newer: Checkout, prompts: list[str], size: int, args: argparse.Namespace
) -> list[dict[str, Any]]:
    """Time every hierarchy at every temperature, ``size`` sequences at once."""
    import common

    cells: list[dict[str, Any]] = []
    for name in args.hierarchies:
        for temperature in args.temperatures:
            runs: list[dict[str, Any]] = []
            for number in range(-1, args.generations):  # the first warms up
                chosen = [prompts[(number + i) % len(prompts)] for i in range(size)]
                request = {
                    "hierarchy": name,
                    "prompts": chosen,
                    "tokens": args.tokens,
                    "temperature": temperature,
                    "seed": number + 1,
                }
                pair = (older, newer) if number % 2 else (newer, older)
                answers = {checkout: checkout.generate(request) for checkout in pair}
                old, new = answers[older], answers[newer]
                runs.append(
                    {
                        "before_ms_outside": old["ms_outside"],
                        "after_ms_outside": new["ms_outside"],
                        "before_ms": old["ms"],
                        "after_ms": new["ms"],
                        "same_tokens": old["token_ids"] == new["token_ids"],
                    }
                )
            runs = runs[1:]
            outside, decoding = (
                common.ratio([r[f"after_{key}"] for r in runs], [r[f"before_{key}"] for r in runs])
                for key in ("ms_outside", "ms")
            )
            cell = {
                "hierarchy": name,
                "temperature": temperature,
                "batch_size": size,
                "before_ms_outside": common.spread([r["before_ms_outside"] for r in runs]),
                "after_ms_outside": common.spread([r["after_ms_outside"] for r in runs]),
                "outside_after_over_before": outside,
                "whole_after_over_before": decoding,
                "same_tokens": sum(r["same_tokens"] for r in runs),
                "runs": runs,
            }
            cells.append(cell)
            low, high = outside["low95"], outside["high95"]
            print(
                f"{name}, T {temperature:g}, {size} at once: outside forward passes "
                f"{cell['before_ms_outside']['median']:.3f} → "
                f"{cell['after_ms_outside']['median']:.3f} ms a token, "
                f"{outside['median']:.3f}× [{low:.3f}, {high:.3f}]; in all "
                f"{decoding['median']:.3f}×; same tokens {cell['same_tokens']} of {len(runs)}",
                flush=True,
            )
    return cells


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--before", type=Path, help="a checkout of the older commit")
    parser.add_argument("--prompts", type=Path)
    parser.add_argument("--generations", type=int, default=24)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 1.0])
    parser.add_argument("--hierarchies", nargs="+", choices=HIERARCHIES, default=[*HIERARCHIES])
    parser.add_argument("--name", default="overhead")
    args = parser.parse_args()
    if args.worker:
        worker()
        return
    if args.before is None or args.prompts is None:
        parser.error("--before and --prompts are needed")
    import common

    prompts, identity = common.read_prompts(args.prompts)
    older, newer = Checkout(args.before), Checkout(common.ROOT)
    report: dict[str, Any] = {
        "environment": common.environment(prompts=identity),
        "before": older.commit,
        "after": newer.commit,
        "note": "milliseconds a token of all sequences, after the first of each",
        "tokens": args.tokens,
        "target": TARGET,
        "hierarchies": HIERARCHIES,
        "cells": [],
    }
    for size in args.batch_sizes:
        report["cells"] += measure(older, newer, prompts, size, args)
    older.close()
    newer.close()
    common.write(args.name, report)


if __name__ == "__main__":
    main()
