"""Reproducible sampling: texts under ``match`` against plain decoding's at the same seed.

Every hierarchy, alone and in a batch, must write plain decoding's text token for token; what that
costs in kept drafts is measured beside it: the closed form of the races (`tests/race_law.py`)
against 1 − TV and against its bound (1 − TV)/(1 + TV), and tokens a call of the target. The file is
written after every hierarchy, and the same command goes on.

    python benchmarks/match.py --prompts humaneval.jsonl
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import common
import numpy as np
import torch

from hierspec import Hierarchy, HierarchyConfig
from hierspec.config.build import build
from hierspec.config.checkpoints import Loaded
from hierspec.core.context import Context
from hierspec.core.rng import PhiloxRng
from hierspec.lm.base import Query
from hierspec.verifiers.formulas import overlap

sys.path.append(str(common.ROOT / "tests"))
from race_law import agreement, least_agreement

SMALL = {"method": "draft_model", "model": "zoo:small"}
MID = {"method": "draft_model", "model": "zoo:mid"}
TABLE = {"method": "ngram_table", "num_speculative_tokens": 3}
SUFFIX = {"method": "suffix", "num_speculative_tokens": 8}
HIERARCHIES: dict[str, list[dict[str, Any]]] = {
    "small": [{**SMALL, "num_speculative_tokens": 5}],
    "mid, entropy": [{**MID, "num_speculative_tokens": 8, "window": "entropy"}],
    "table > small": [TABLE, {**SMALL, "num_speculative_tokens": 6, "verify": "match"}],
    "small > mid, block": [
        {**SMALL, "num_speculative_tokens": 3},
        {**MID, "num_speculative_tokens": 8, "verify": "block"},
    ],
    "exits, leading": [
        {"method": "early_exit", "exit_layer": 1, "num_speculative_tokens": 2},
        {
            "method": "early_exit",
            "exit_layer": 2,
            "num_speculative_tokens": 5,
            "verify": "leading",
        },
    ],
    "suffix": [SUFFIX],
    "prompt look-up": [{"method": "prompt_lookup", "num_speculative_tokens": 6}],
    "mid, then suffix": [
        {"method": "concatenate", "parts": [{**MID, "num_speculative_tokens": 3}, SUFFIX]}
    ],
}
LOADED = Loaded()
PAIRS = {
    "table": TABLE,
    "small": {**SMALL, "num_speculative_tokens": 1},
    "mid": {**MID, "num_speculative_tokens": 1},
}


def write(
    hierarchy: Hierarchy, prompts: list[list[int]], first: int, seed: int, options: dict[str, Any]
) -> list[tuple[list[int], float]]:
    """Write texts → them, and tokens a call; sequence i has the noise of (seed, first + i)."""
    generation = hierarchy.start(prompts, seed=seed, **options)
    for i, request in enumerate(generation.requests):
        request.rng = PhiloxRng(seed, first + i)
    for _ in generation:
        pass
    return [(list(r.token_ids), r.mean_acceptance_length) for r in generation.results()]


def build_hierarchy(target: str, levels: list[dict[str, Any]], verify: str) -> Hierarchy:
    """Build one of the hierarchies; all share the weights that are loaded."""
    model = {"model": target, "dtype": "float32"}
    config = {"target": model, "levels": levels, "verify": verify}
    return Hierarchy(build(HierarchyConfig.from_dict(config), LOADED))


def distributions(model: Any, text: list[int], start: int, temperature: float) -> torch.Tensor:
    """Return the model's distributions after ``text[:start]`` and each longer prefix, float64."""
    slot = model.open()
    scores = model.score([Query(slot, Context(text), start)])
    model.close(slot)
    return (scores.double() / temperature).softmax(-1)


def acceptance(target: str, texts: list[list[int]], start: int, temperature: float) -> Any:
    """Return what rules keep of one drafted token, by drafter: means over positions of texts."""
    out: dict[str, Any] = {}
    for name, level in PAIRS.items():
        root = build_hierarchy(target, [level], "match").root
        assert root.below is not None
        rows: list[tuple[float, float, float]] = []
        for text in texts:
            p = distributions(root.model, text, start, temperature)
            q = distributions(root.below.model, text, start, temperature)  # type: ignore[union-attr]
            for a, b in zip(p, q, strict=True):
                kept = float(agreement(a, b).sum())
                rows.append((float(overlap(a, b)), kept, least_agreement(a, b)))
        tokenwise, match, bound = np.mean(rows, 0)
        out[name] = {
            "places": len(rows),
            "tokenwise": float(tokenwise),
            "match": float(match),
            "bound": float(bound),
        }
        print(f"{name}: 1 - TV {tokenwise:.3f}, match {match:.3f}, bound {bound:.3f}", flush=True)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--num-prompts", type=int, default=8, help="also the size of a batch")
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--places", type=int, default=12, help="of each text, for acceptance")
    parser.add_argument("--target", default="zoo:trunk")
    parser.add_argument("--temperature", type=float, default=1.0)
    args = parser.parse_args()
    texts, identity = common.read_prompts(args.prompts)
    options = {
        "max_new_tokens": args.tokens,
        "temperature": args.temperature,
        "ignore_eos": True,
    }
    path = common.RESULTS / "match.json"
    report: dict[str, Any] = {
        "environment": common.environment(prompts=identity),
        "settings": {key: str(value) for key, value in vars(args).items() if key != "prompts"},
        "hierarchies": {},
    }
    if (
        path.exists()
        and (previous := json.loads(path.read_text()))["settings"] == report["settings"]
    ):
        report["hierarchies"] = previous["hierarchies"]
    plain = build_hierarchy(args.target, [], "match")
    prompts = [plain.tokenizer(t)["input_ids"][-200:] for t in texts[: args.num_prompts]]
    seeds, numbers = range(args.seeds), range(len(prompts))
    # Plain decoding, always alone: with the noise of a lone prompt, and of its place in the batch.
    expected = {
        (seed, i, number): write(plain, [prompts[i]], number, seed, options)[0][0]
        for seed in seeds
        for i in numbers
        for number in {0, i}
    }
    for name, levels in HIERARCHIES.items():
        if name in report["hierarchies"]:
            continue
        hierarchy = build_hierarchy(args.target, levels, "match")
        calls, different = [], []
        for seed in seeds:
            for i in numbers:
                text, length = write(hierarchy, [prompts[i]], 0, seed, options)[0]
                calls.append(length)
                different += [] if text == expected[seed, i, 0] else [[seed, i, 1]]
            for i, (text, _) in enumerate(write(hierarchy, prompts, 0, seed, options)):
                different += [] if text == expected[seed, i, i] else [[seed, i, len(prompts)]]
        other_lengths = {}
        for rule in ("tokenwise", "block"):
            other_hierarchy = build_hierarchy(args.target, levels, rule)
            lengths = [write(other_hierarchy, [prompt], 0, 0, options)[0][1] for prompt in prompts]
            other_lengths[rule] = float(np.mean(lengths))
        count = 2 * len(seeds) * len(prompts)
        report["hierarchies"][name] = {
            "levels": levels,
            "runs": count,
            "equal": count - len(different),
            "different": different,
            "tokens_per_call": {"match": float(np.mean(calls)), **other_lengths},
        }
        rows = report["hierarchies"].values()
        report["runs"], report["equal"] = (sum(row[k] for row in rows) for k in ("runs", "equal"))
        common.write("match", report)
        summary = {k: v for k, v in report["hierarchies"][name].items() if k != "levels"}
        print(name, summary, flush=True)
    extended = [[*prompts[i], *expected[0, i, 0]][: len(prompts[i]) + args.places] for i in numbers]
    with torch.inference_mode():
        report["acceptance"] = acceptance(args.target, extended, 20, args.temperature)
    common.write("match", report)
    print(f"{report['equal']} of {report['runs']} texts equal plain sampling at their seed")


if __name__ == "__main__":
    main()
