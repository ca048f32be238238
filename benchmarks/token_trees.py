"""One draft against token trees on the wall clock, and trees against a slot for each draft.

Methods take turns on every prompt, at temperature 0 and 1. A difference of 5 % would matter; 24
prompts show one of about 8 % where ratios spread as they do here (quartiles 15 % apart), so the
intervals say what is decided.

    python benchmarks/token_trees.py --chats FOLDER --name token-trees-smollm2
    python benchmarks/token_trees.py --prompts humaneval.jsonl --target zoo:large --draft zoo:small
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import common

from hierspec import Hierarchy


def build(target: str, draft: str, length: int, num_drafts: int, trees: bool = True) -> Hierarchy:
    """Build ``num_drafts`` drafts of a length below the target; 0: plain decoding."""
    method = "eagle3" if "eagle3" in draft else "draft_model"
    level = {"method": method, "model": draft, "num_speculative_tokens": length}
    config: dict[str, Any] = {"target": {"model": target}, "levels": []}
    if num_drafts:
        config |= {"levels": [level], "verify": "block"}
    if num_drafts > 1:
        level["num_drafts"] = num_drafts
        config["verify"] = "traversal"
    hierarchy = Hierarchy.from_config(config)
    if not trees:
        hierarchy.root.model.trunk.backend.trees = False
    return hierarchy


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    prompts = parser.add_mutually_exclusive_group(required=True)
    prompts.add_argument("--chats", type=Path)
    prompts.add_argument("--prompts", type=Path)
    parser.add_argument("--num-prompts", type=int, default=24)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--target", default="zoo:smollm2")
    parser.add_argument("--draft", default="zoo:smollm2-eagle3")
    parser.add_argument("--length", type=int, default=4)
    parser.add_argument("--drafts", type=int, nargs="+", default=[1, 4, 8])
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 1.0])
    parser.add_argument("--name", default="token-trees")
    args = parser.parse_args()
    methods = {"plain": build(args.target, args.draft, args.length, 0)}
    for k in args.drafts:
        methods[f"{k} drafts"] = build(args.target, args.draft, args.length, k)
    max_drafts = max(args.drafts)
    methods[f"{max_drafts} drafts, a slot each"] = build(
        args.target, args.draft, args.length, max_drafts, False
    )
    if args.chats:
        chats = common.chat_prompts(args.chats, args.num_prompts, 0, methods["plain"], 64)
        texts, identity = chats[0], chats[2]
    else:
        file_prompts, identity = common.read_prompts(args.prompts)
        tokenizer = methods["plain"].tokenizer
        texts = [tokenizer(text)["input_ids"][-300:] for text in file_prompts[: args.num_prompts]]
    report: dict[str, Any] = {
        "environment": common.environment(prompts=identity),
        "settings": {
            key: value for key, value in vars(args).items() if key not in ("chats", "prompts")
        },
        "temperatures": {},
    }
    for hierarchy in methods.values():
        common.decode(hierarchy, texts[0], 8, 0.0, 0)  # warm
    for temperature in args.temperatures:
        runs: dict[str, list[dict[str, Any]]] = {name: [] for name in methods}
        for number, text in enumerate(texts):
            for name, hierarchy in methods.items():
                run = common.decode(hierarchy, text, args.tokens, temperature, number)
                runs[name].append({k: run[k] for k in ("ms", "tokens_per_call", "prompt")})
        first = f"{args.drafts[0]} drafts"
        rows = {}
        for name, own in runs.items():
            ms = [run["ms"] for run in own]
            rows[name] = {
                "tokens_per_call": common.spread([run["tokens_per_call"] for run in own]),
                "ms_per_token": common.spread(ms),
                "over_plain": common.ratio([run["ms"] for run in runs["plain"]], ms),
                "over_one_draft": common.ratio([run["ms"] for run in runs[first]], ms),
                "runs": own,
            }
            summary = {key: value for key, value in rows[name].items() if key != "runs"}
            print(f"T {temperature:g} {name}: {summary}", flush=True)
        report["temperatures"][f"{temperature:g}"] = rows
        common.write(args.name, report)


if __name__ == "__main__":
    main()
