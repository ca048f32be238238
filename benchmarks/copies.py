"""Copies of a target in few bits: how often they agree with it, what a call costs, what that gives.

Agreement is counted at every position of answers that the target writes to held-out prompts, greedy
or drawn at temperature 1; the copy reads the target's keys and values of what stands before, as it
does when it drafts. A call of one row is timed beside checks of several rows of the target, in
turns. The speed-up is that of the best fixed number of drafts by formula, each kept with that
chance. Times are those of an idle machine: they are measured apart.

    python benchmarks/copies.py agreement --prompts spec_bench.jsonl
    python benchmarks/copies.py costs
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from statistics import median
from typing import Any

import common
import numpy as np
import torch

from hierspec import Hierarchy
from hierspec.lm.backend import Span
from hierspec.lm.load import load
from hierspec.methods.quantized import quantize
from hierspec.utils.prompts import apply_chat
from hierspec.zoo import registry

COPIES = {
    **{f"{bits} bits": (bits, True) for bits in (4, 5, 6)},
    **{f"{bits} bits, each weight by itself": (bits, False) for bits in (4, 5, 6)},
    "8 bits": (8, False),
}
ROWS = (1, 2, 3, 4, 5, 6, 7, 9, 11)
CONTEXT, ROUNDS = 128, 60


def answers(target: str, path: Path, count: int, tokens: int, temperature: float) -> list[Any]:
    """Return the answers' token ids with their prompts, and where they begin."""
    texts, _ = common.read_prompts(path)
    hierarchy = Hierarchy(target, drafts=[])
    ids = [apply_chat(hierarchy.tokenizer, text) for text in texts]
    chosen = [text for text in ids if len(text) <= 200]
    chosen = chosen[:: len(chosen) // count][:count]
    results = hierarchy.generate_batch(
        chosen, max_new_tokens=tokens, temperature=temperature, seed=0
    )
    return [
        (torch.tensor([*prompt, *result.token_ids]), len(prompt))
        for prompt, result in zip(chosen, results, strict=True)
    ]


@torch.inference_mode()
def agreement(target: Any, copies: dict[str, Any], texts: list[Any]) -> dict[str, Any]:
    """Return the share of equal argmaxes, 1 − TV, and the number of positions."""
    sums = {name: torch.zeros(2) for name in copies}
    total = 0
    for ids, begin in texts:
        spans = [Span(target.new_cache(len(ids)), 0, len(ids))]
        h = target.layers(target.embed(ids, spans), 0, target.num_layers, spans)
        own = target.head(h[begin - 1 : -1]).softmax(-1)
        total += len(own)
        for name, copied in copies.items():
            rows = []
            for at in range(begin - 1, len(ids) - 1):
                (cache, _, _, _) = spans[0]
                kept, span = cache[:, :, :, at].clone(), [Span(cache, at, 1)]
                h = copied.embed(ids[at : at + 1], span)
                rows.append(copied.layers(h, 0, copied.num_layers, span))
                cache[:, :, :, at] = kept
            laws = copied.head(torch.cat(rows)).softmax(-1)
            equal = (laws.argmax(1) == own.argmax(1)).float().sum()
            sums[name] += torch.stack((equal, torch.minimum(laws, own).sum()))
    return {
        "positions": total,
        "copies": {
            name: {"equal_argmax": float(equal) / total, "overlap": float(overlap) / total}
            for name, (equal, overlap) in sums.items()
        },
    }


@torch.inference_mode()
def costs(target: Any, copies: dict[str, Any]) -> dict[str, list[float]]:
    """Return ms of calls, taking turns: of each copy, and of the target on so many rows."""
    cache = target.new_cache(CONTEXT + max(ROWS))
    ids = torch.randint(target.vocab_size, (CONTEXT + max(ROWS),))

    def call(model: Any, start: int, rows: int) -> float:
        spans, began = [Span(cache, start, rows)], time.perf_counter()
        h = model.embed(ids[start : start + rows], spans)
        model.head(model.layers(h, 0, model.num_layers, spans))
        return 1e3 * (time.perf_counter() - began)

    call(target, 0, CONTEXT)
    found: dict[str, list[float]] = {}
    for number in range(ROUNDS + 3):
        for name, (model, rows) in {
            **{name: (copied, 1) for name, copied in copies.items()},
            **{f"{rows} rows": (target, rows) for rows in ROWS},
        }.items():
            ms = call(model, CONTEXT, rows)
            if number >= 3:
                found.setdefault(name, []).append(ms)
    return found


def speedup(chance: float, call: float, checks: dict[int, float]) -> tuple[float, int]:
    """Return the largest speed-up and its number of drafts, given costs in plain tokens."""
    found = []
    for rows, check in checks.items():
        tokens = sum(chance**i for i in range(rows))
        found.append((tokens / ((rows - 1) * call + check), rows - 1))
    return max(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["agreement", "costs"])
    parser.add_argument("--target", default="zoo:smollm2-16bit")
    parser.add_argument("--prompts", type=Path)
    parser.add_argument("--num-prompts", type=int, default=24)
    parser.add_argument("--tokens", type=int, default=40)
    parser.add_argument("--bits", type=int, nargs="+", default=[4, 5, 6, 8])
    parser.add_argument("--name", default="copies")
    args = parser.parse_args()
    target: Any = load(registry.resolve(args.target))
    copies, seconds = {}, {}
    for name, (bits, calibrate) in COPIES.items():
        if bits in args.bits and (args.what == "agreement" or "itself" not in name):
            began = time.perf_counter()
            copies[name] = quantize(target, bits, calibrate)
            seconds[name] = round(time.perf_counter() - began, 1)
            print(name, seconds[name], "s to make or read", flush=True)
    path = common.RESULTS / f"{args.name}.json"
    data = json.loads(path.read_text()) if path.exists() else {}
    data |= {"environment": common.environment(), "target": args.target}
    if args.what == "agreement":
        for temperature in (0.0, 1.0):
            texts = answers(args.target, args.prompts, args.num_prompts, args.tokens, temperature)
            found = agreement(target, copies, texts)
            print(temperature, json.dumps(found, indent=1), flush=True)
            known = data.setdefault("agreement", {}).setdefault(f"{temperature:g}", found)
            known["copies"] |= found["copies"]
        data["prompts"] = {"count": args.num_prompts, **common.read_prompts(args.prompts)[1]}
        data["tokens"] = args.tokens
    else:
        times = costs(target, copies)
        plain = median(times["1 rows"])
        data["ms"] = {
            name: np.quantile(ms, [0.25, 0.5, 0.75]).round(3).tolist() for name, ms in times.items()
        }
        checks = {rows: median(times[f"{rows} rows"]) / plain for rows in ROWS}
        data["by_formula"] = {
            temperature: {
                name: speedup(
                    one["equal_argmax" if temperature == "0" else "overlap"],
                    median(times[name.partition(",")[0]]) / plain,
                    checks,
                )
                for name, one in found["copies"].items()
            }
            for temperature, found in data.get("agreement", {}).items()
        }
        print(json.dumps({"ms": data["ms"], "by_formula": data["by_formula"]}, indent=1))
    common.write(args.name, data)


if __name__ == "__main__":
    main()
