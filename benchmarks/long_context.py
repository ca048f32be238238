"""Drafting on a part of the cache in long texts: what a token costs as the text grows.

Documents are joined to texts of each length, with a request to sum up at the end; methods take
turns on every text, and only decoding is timed. A difference of 5 % would matter; 24 texts show one
of about 4 % where ratios spread as they do here (quartiles 8 % apart).

    python benchmarks/long_context.py --documents spec_bench.jsonl
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import common

from hierspec import Hierarchy
from hierspec.utils.prompts import apply_chat

_LOOK_UP = {"method": "suffix", "num_speculative_tokens": 4}


def hierarchies(target: str, budget: int) -> dict[str, Hierarchy]:
    """Build plain decoding, the partial cache alone and over a look-up, and other drafters."""
    retrieval = {"method": "retrieval", "budget": budget, "num_speculative_tokens": 6}
    above = {"verify": "block"}
    chains: dict[str, list[dict[str, Any]]] = {
        "plain": [],
        "retrieval": [retrieval],
        "suffix > retrieval": [_LOOK_UP, {**retrieval, **above}],
        "suffix": [{**_LOOK_UP, "num_speculative_tokens": 8}],
        "suffix > quantized": [
            _LOOK_UP,
            {"method": "quantized", "bits": 4, "num_speculative_tokens": 8, **above},
        ],
    }
    return {
        name: Hierarchy.from_config(
            {"target": {"model": target}, "levels": levels, "verify": "block"}
        )
        for name, levels in chains.items()
    }


def texts(path: Path, tokenizer: Any, length: int, count: int) -> list[list[int]]:
    """Return token ids of chats of about that length, each beginning with another document."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    documents = [row["turns"][0] for row in rows if row["category"] in ("summarization", "rag")]
    chats: list[list[int]] = []
    for number in range(count):
        ids: list[int] = []
        for i in range(len(documents)):
            ids += tokenizer(documents[(7 * number + i) % len(documents)] + "\n\n")["input_ids"]
            if len(ids) > length:
                break
        text = tokenizer.decode(ids[: length - 60])
        chats.append(apply_chat(tokenizer, f"{text}\n\nSum up what was said above."))
    return chats


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=Path, required=True, help="spec_bench.jsonl")
    parser.add_argument("--target", default="zoo:smollm2")
    parser.add_argument("--lengths", type=int, nargs="+", default=[4000])
    parser.add_argument("--budget", type=int, default=512)
    parser.add_argument("--num-texts", type=int, default=24)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--name", default="long-context")
    args = parser.parse_args()
    methods = hierarchies(args.target, args.budget)
    tokenizer = methods["plain"].tokenizer
    report: dict[str, Any] = {
        "environment": common.environment(prompts={"file": args.documents.name}),
        "settings": {key: value for key, value in vars(args).items() if key != "documents"},
        "lengths": {},
    }
    for length in args.lengths:
        runs: dict[str, list[dict[str, Any]]] = {name: [] for name in methods}
        for number, text in enumerate(texts(args.documents, tokenizer, length, args.num_texts)):
            for name, hierarchy in methods.items():
                run = common.decode(hierarchy, text, args.tokens, args.temperature, number)
                runs[name].append({k: run[k] for k in ("ms", "tokens_per_call", "prompt")})
        rows = {}
        for name, own in runs.items():
            ms = [run["ms"] for run in own]
            rows[name] = {
                "tokens_per_call": common.spread([run["tokens_per_call"] for run in own]),
                "ms_per_token": common.spread(ms),
                "over_plain": common.ratio([run["ms"] for run in runs["plain"]], ms),
                "runs": own,
            }
            ratio = rows[name]["over_plain"]
            print(
                f"{length} tokens, {name}: {rows[name]['ms_per_token']['median']:.1f} ms, "
                f"{rows[name]['tokens_per_call']['median']:.2f} a call, {ratio['median']:.3f}× "
                f"[{ratio['low95']:.3f}, {ratio['high95']:.3f}]",
                flush=True,
            )
        report["lengths"][str(length)] = rows
        common.write(args.name, report)


if __name__ == "__main__":
    main()
