"""SWIFT and AdaDecode as published, and what stood in for them before: tokens per target call.

The earlier forms are whole layers left out at even distances on a cache of their own, and exits
that share the target's head and draft whatever they are not sure of. Counts only, nothing is timed;
an interrupted run goes on with the same command.

    python benchmarks/exits.py --prompts gsm8k.jsonl --prompts humaneval.jsonl
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
from pathlib import Path
from typing import Any

import common

from hierspec.utils.prompts import apply_chat

WINDOW = {"kind": "confidence", "floor": 0.8}
EVEN = {"method": "layer_skip", "skip": 0.45, "num_speculative_tokens": 25, "window": WINDOW}
OWN_CACHE = "swift before: even layers, own cache, 4 tokens"
BEFORE = {"method": "adaptive_exit", "num_speculative_tokens": 4}
# name → a preset, the levels in its place, or the form that needs a cache of its own
METHODS: dict[str, Any] = {
    "swift": "swift",
    "swift, no search: even layers": [EVEN],
    "swift, random search": [{**EVEN, "search": {"kind": "random", "shared": True}}],
    OWN_CACHE: None,
    "adadecode": "adadecode",
    "adadecode, the target's head": {"head": None},
    "adadecode before: the target's head, the last exit drafts": {
        "head": None,
        "unsure": "exit",
        "num_speculative_tokens": 4,
        "exit_shares": (1 / 8, 1 / 4, 1 / 2),
    },
}


def hierarchy_of(name: str, target: dict[str, Any]) -> Any:
    """Return a method's hierarchy."""
    from hierspec import Hierarchy, preset
    from hierspec.config.schema import TargetConfig
    from hierspec.presets.systems import layers_at_shares

    method = METHODS[name]
    if method is None:
        return with_own_cache(target)
    if isinstance(method, list):
        document = {"target": target, "levels": method, "verify": "tokenwise"}
        return Hierarchy.from_config(document)
    preset_name = method if isinstance(method, str) else "adadecode"
    config = preset(preset_name, TargetConfig(**target))
    if isinstance(method, dict):
        changes = dict(method)
        shares = changes.pop("exit_shares", None)
        if shares:
            from hierspec.config.target import model_config

            depth = model_config(target["model"]).num_hidden_layers
            changes["exit_layers"] = layers_at_shares(depth, shares)
        level: Any = config.levels[0]
        config = dataclasses.replace(config, levels=(dataclasses.replace(level, **changes),))
    return Hierarchy.from_config(config)


def with_own_cache(target: dict[str, Any]) -> Any:
    """Leave out whole layers in a model with a cache of its own, which reads the prompts."""
    from hierspec import Hierarchy
    from hierspec.config.build import Built
    from hierspec.config.nodes import build_nodes
    from hierspec.config.numbered import NumberedConfig
    from hierspec.lm.trunk.trunk import Trunk
    from hierspec_lab.methods.layer_skip.skipping import SkippingBackend, evenly_spaced_layers

    plain = Hierarchy.from_config({"target": target, "levels": [], "verify": "tokenwise"})
    backend = plain.root.model.trunk.backend
    model = Trunk(SkippingBackend(backend, evenly_spaced_layers(0.45, backend.num_layers))).view()

    def model_and_name(level: NumberedConfig | None, _: str) -> tuple[Any, str]:
        return (model, "even layers") if level else (plain.root.model, plain.root.name)

    level = NumberedConfig(num_speculative_tokens=4)
    root = build_nodes([level], model_and_name, plain.root.rule)
    return Hierarchy(Built(root, plain.tokenizer, plain.config))


def choose_prompts(files: list[Path], count: int, tokenizer: Any, longest: int) -> list[list[int]]:
    """Return equally many prompts of each file, evenly spaced, of at most ``longest`` ids."""
    parts: list[list[list[int]]] = []
    for path in files:
        texts, _ = common.read_prompts(path)
        short = [ids for text in texts if len(ids := _ids(tokenizer, text)) <= longest]
        share = count // len(files)
        part = [short[i * len(short) // share] for i in range(share)]
        parts.append(part)
    return [ids for group in zip(*parts, strict=True) for ids in group]


def _ids(tokenizer: Any, text: str) -> list[int]:
    """Return a prompt's ids, in the chat template where there is one."""
    has_template = getattr(tokenizer, "chat_template", None)
    return apply_chat(tokenizer, text) if has_template else tokenizer(text).input_ids


def measure(hierarchy: Any, prompts: list[list[int]], args: Any, temperature: float) -> Any:
    """Measure tokens per target call of every prompt, and what became of the drafts."""
    results: list[Any] = []
    levels = {"num_draft_tokens": 0, "num_accepted_tokens": 0}
    for start in range(0, len(prompts), args.batch_size):
        batch = prompts[start : start + args.batch_size]
        batch_results = hierarchy.generate_batch(
            batch, max_new_tokens=args.tokens, temperature=temperature, seed=start, ignore_eos=True
        )
        results += batch_results
        for key in levels:
            levels[key] += batch_results[0].levels[0][key]
    calls = sum(result.target_calls for result in results)
    searches = getattr(hierarchy.root.below.model, "searches", None)
    lengths = [result.mean_acceptance_length for result in results]
    return {
        "mean_acceptance_length": statistics.fmean(lengths),
        "each": [round(value, 4) for value in lengths],
        **common.spread(lengths),
        "drafted_per_call": levels["num_draft_tokens"] / calls,
        "acceptance_rate": levels["num_accepted_tokens"] / max(levels["num_draft_tokens"], 1),
        "candidates": None if searches is None else len(searches.shared_search.scores),
        "matchness": None if searches is None else searches.shared_search.score,
        "token_ids": [list(result.token_ids) for result in results],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--prompts", type=Path, action="append", required=True)
    parser.add_argument("--num-prompts", type=int, default=24)
    parser.add_argument("--longest", type=int, default=256, help="prompts of at most so many ids")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--target", default="zoo:smollm2")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--temperature", type=float, action="append")
    parser.add_argument("--method", action="append", choices=METHODS)
    parser.add_argument("--name", default="exits", help="of the result file")
    parser.add_argument("--work", type=Path, required=True, help="keeps what is done already")
    args = parser.parse_args()
    target = {"model": args.target, "dtype": args.dtype}
    settings = {
        "target": target,
        "num_prompts": args.num_prompts,
        "longest_prompt": args.longest,
        "batch_size": args.batch_size,
        "new_tokens": args.tokens,
    }
    state = json.loads(args.work.read_text()) if args.work.exists() else {}
    if state.get("settings", settings) != settings:
        parser.error(f"{args.work} holds a run of other settings: give another --work")
    state.setdefault("settings", settings)
    runs: dict[str, Any] = state.setdefault("runs", {})
    for temperature in args.temperature or [0.0, 1.0]:
        for name in args.method or METHODS:
            key = f"{name}; temperature {temperature:g}"
            if key in runs:
                continue
            hierarchy = hierarchy_of(name, target)
            tokenizer = hierarchy.tokenizer
            prompts = choose_prompts(args.prompts, args.num_prompts, tokenizer, args.longest)
            runs[key] = measure(hierarchy, prompts, args, temperature)
            args.work.write_text(json.dumps(state))
            summary = {k: v for k, v in runs[key].items() if k not in ("each", "token_ids")}
            print(key, summary, flush=True)
            del hierarchy
    greedy = [run["token_ids"] for key, run in runs.items() if key.endswith("temperature 0")]
    equal = sum(all(texts[i] == greedy[0][i] for texts in greedy) for i in range(len(greedy[0])))
    common.write(
        args.name,
        {
            "environment": common.environment(),
            "settings": settings,
            "prompts": [common.read_prompts(path)[1] for path in args.prompts],
            "greedy_texts_equal_over_methods": f"{equal} of {len(greedy[0])}",
            "methods": {name: describe(name, target) for name in METHODS},
            "runs": {
                key: {k: v for k, v in run.items() if k != "token_ids"} for key, run in runs.items()
            },
        },
    )


def describe(name: str, target: dict[str, Any]) -> Any:
    """Return a method's levels as a hierarchy file has them."""
    if METHODS[name] is None:
        return "whole layers at even distances, a cache of their own"
    return hierarchy_of(name, target).config.to_dict()["levels"]


if __name__ == "__main__":
    main()
