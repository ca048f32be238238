"""What decides when a draft ends, counted: fixed lengths, the entropy window, SpecDec++'s head.

Tokens a target call against tokens that the draft model computes for it, on one pair of models and
prompts of several files, in one batch. Nothing is timed: with c the price of a draft model's token
in target calls, tokens per unit of cost are E / (1 + c·D), shown for a few c.

    python benchmarks/draft_lengths.py PROMPTS.jsonl ... [--head zoo:mid-acceptance]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import common

import hierspec
from hierspec.core.windows import EntropyWindow, FixedWindow, Window
from hierspec.methods.draft_model import DraftModelConfig
from hierspec_lab.acceptance.window import AcceptanceWindow
from hierspec_lab.families.code import MID_ACCEPTANCE_NAME

LENGTHS = (2, 4, 8)
ENTROPIES = (1.0, 2.0)
THRESHOLDS = (0.5, 0.7, 0.85)
PRICES = (0.02, 0.05, 0.1, 0.2)
MAX_LENGTH = 20  # tokens of a draft that a window ends


def read_prompts(paths: list[Path], count: int) -> tuple[list[str], list[dict[str, str]]]:
    """Return ``count`` prompts of each file, evenly spaced, and what identifies the files."""
    prompts, sources = [], []
    for path in paths:
        texts, identity = common.read_prompts(path)
        prompts += [texts[i * len(texts) // count] for i in range(count)]
        sources.append({**identity, "rows": str(count)})
    return prompts, sources


def count_tokens(
    window: Window, limit: int, args: argparse.Namespace, prompts: list[str], temperature: float
) -> dict[str, Any]:
    """Run one method on all prompts and count its tokens."""
    levels = (DraftModelConfig(model=args.draft, num_speculative_tokens=limit, window=window),)
    target = hierspec.TargetConfig(model=args.target, dtype="float32")
    hierarchy = hierspec.Hierarchy.from_config(
        hierspec.HierarchyConfig(target=target, levels=levels, verify="tokenwise")
    )
    ids = [hierarchy.tokenizer(text)["input_ids"][-args.context :] for text in prompts]
    below: Any = hierarchy.root.below
    backend, computed = below.model.trunk.backend, -sum(map(len, ids))
    run = backend.run

    def counted(lo: int, hi: int, spans: Any, *args: Any, **options: Any) -> Any:
        nonlocal computed
        computed += sum(span.n for span in spans) if lo < hi else 0
        return run(lo, hi, spans, *args, **options)

    backend.run = counted
    results = hierarchy.generate_batch(
        ids, max_new_tokens=args.tokens, temperature=temperature, seed=0, ignore_eos=True
    )
    calls = sum(result.target_calls for result in results)
    level = results[0].levels[0]
    emitted = sum(result.num_tokens - 1 for result in results)  # the first comes with the prompt
    tokens, drafted = emitted / calls, computed / calls
    return {
        "temperature": temperature,
        "tokens_per_call": round(tokens, 3),
        "computed_per_call": round(drafted, 3),
        "drafted_per_call": round(level["num_draft_tokens"] / calls, 3),
        "acceptance_rate": round(level["acceptance_rate"], 4),
        "tokens_per_cost": {str(c): round(tokens / (1 + c * drafted), 3) for c in PRICES},
        "target_calls": calls,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("prompts", type=Path, nargs="+")
    parser.add_argument("--target", default="zoo:trunk")
    parser.add_argument("--draft", default="zoo:mid")
    parser.add_argument("--head", default=MID_ACCEPTANCE_NAME)
    parser.add_argument("--count", type=int, default=12, help="prompts of each file")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--context", type=int, default=256, help="last tokens of a prompt")
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 1.0])
    parser.add_argument("--name", default="draft-lengths")
    args = parser.parse_args()
    prompts, sources = read_prompts(args.prompts, args.count)
    methods: list[tuple[str, Window, int]] = [
        *((f"fixed {n}", FixedWindow(), n) for n in LENGTHS),
        ("entropy, running", EntropyWindow(), MAX_LENGTH),
        *((f"entropy {t:g}", EntropyWindow(t), MAX_LENGTH) for t in ENTROPIES),
        *((f"specdec++ {t:g}", AcceptanceWindow(t, args.head), MAX_LENGTH) for t in THRESHOLDS),
    ]
    runs = []
    for temperature in args.temperatures:
        for name, window, limit in methods:
            runs.append({"method": name, **count_tokens(window, limit, args, prompts, temperature)})
            print(json.dumps(runs[-1]), flush=True)
    settings = {k: v for k, v in vars(args).items() if k != "prompts"} | {"most": MAX_LENGTH}
    report = {"settings": settings, "prompts": sources, "runs": runs}
    common.write(args.name, {**report, "environment": common.environment()})


if __name__ == "__main__":
    main()
