"""Greedy output against plain greedy decoding, token for token.

Every preset, alone and in a ragged batch of eight: float32 for the shipped family, float64 for
seven tiny random architectures. The reference is transformers' own ``generate``.

    python benchmarks/equality.py --prompts humaneval.jsonl
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import common
import torch

from hierspec import Hierarchy, TargetConfig, preset
from hierspec.lm.weights import hf_model
from hierspec.presets.registry import PRESETS
from hierspec.utils.testing import FAMILIES, save_tiny
from hierspec.zoo import registry


def reference(model: Any, prompt: list[int], tokens: int) -> list[int]:
    """Greedy continuation by transformers."""
    ids = torch.tensor([prompt])
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    with torch.inference_mode():
        out = model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=tokens,
            do_sample=False,
        )
    return out[0, len(prompt) :].tolist()


def compare(
    hierarchy: Hierarchy, prompts: list[list[int]], expected: list[list[int]], tokens: int
) -> dict[str, Any]:
    """How many outputs equal the reference: one at a time, and in ragged batches of eight."""
    options = {"max_new_tokens": tokens, "ignore_eos": True, "seed": 0}
    alone = [list(hierarchy.generate(prompt, **options).token_ids) for prompt in prompts]
    batched: list[list[int]] = []
    for at in range(0, len(prompts), 8):
        results = hierarchy.generate_batch(prompts[at : at + 8], **options)
        batched += [list(result.token_ids) for result in results]
    return {
        "prompts": len(prompts),
        "equal_alone": sum(a == b for a, b in zip(alone, expected, strict=True)),
        "equal_batch8": sum(a == b for a, b in zip(batched, expected, strict=True)),
        "first_difference": [
            next((i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y), None)
            for a, b in zip(alone, expected, strict=True)
            if a != b
        ],
    }


def shipped(prompts: list[str], tokens: int, target: str) -> dict[str, Any]:
    model = hf_model(registry.resolve(target), torch.float32).eval()
    rows: dict[str, Any] = {}
    ids: list[list[int]] = []
    expected: list[list[int]] = []
    for name in PRESETS:
        config = preset(name, TargetConfig(model=target, dtype="float32"))
        hierarchy = Hierarchy.from_config(config)
        if not ids:
            ids = [hierarchy.tokenizer(prompt)["input_ids"] for prompt in prompts]
            expected = [reference(model, prompt, tokens) for prompt in ids]
        began = time.perf_counter()
        rows[name] = compare(hierarchy, ids, expected, tokens)
        rows[name]["seconds"] = round(time.perf_counter() - began, 1)
        print(f"{target} {name}: {rows[name]}", flush=True)
    return rows


def tiny(tokens: int) -> dict[str, Any]:
    rows: dict[str, Any] = {}
    generator = torch.Generator().manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        for family in FAMILIES:
            target = save_tiny(family, Path(folder) / f"{family}-target", seed=1, layers=4)
            drafts = [
                save_tiny(family, Path(folder) / f"{family}-{seed}", seed=seed, layers=2)
                for seed in (2, 3)
            ]
            from transformers import AutoModelForCausalLM

            model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float64).eval()
            prompts = [
                torch.randint(3, 90, (n,), generator=generator).tolist() for n in range(3, 11)
            ]
            expected = [reference(model, prompt, tokens) for prompt in prompts]
            for name in PRESETS:
                chosen = TargetConfig(model=str(target), dtype="float64")
                hierarchy = Hierarchy.from_config(preset(name, chosen, [str(d) for d in drafts]))
                rows[f"{family} {name}"] = compare(hierarchy, prompts, expected, tokens)
            print(family, "done", flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--num-prompts", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--targets", nargs="+", default=["zoo:large?eps=0.2"])
    args = parser.parse_args()
    prompts, identity = common.read_prompts(args.prompts)
    report: dict[str, Any] = {
        "environment": common.environment(prompts=identity),
        "tokens": args.tokens,
        "float64 tiny": tiny(min(args.tokens, 24)),
    }
    for target in args.targets:
        report[f"float32 {target}"] = shipped(prompts[: args.num_prompts], args.tokens, target)
    cells = [row for part in report.values() if isinstance(part, dict) for row in part.values()
             if isinstance(row, dict) and "prompts" in row]  # fmt: skip
    report["outputs"] = 2 * sum(row["prompts"] for row in cells)
    report["equal"] = sum(row["equal_alone"] + row["equal_batch8"] for row in cells)
    common.write("equality", report)
    print(f"{report['equal']} of {report['outputs']} outputs equal plain greedy decoding")


if __name__ == "__main__":
    main()
