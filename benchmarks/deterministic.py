"""Bit-exact mode: greedy bfloat16 texts against plain decoding's, none excused; and its price.

Every hierarchy, alone and in a batch, with ``deterministic`` and without, each against plain
decoding of its own kind. The price: milliseconds a token of both kinds, taking turns, and of a
call for 1 to 17 rows. With ``--chats`` a released model takes the family's place, with what drafts
best for it, on chats in its template.

    python benchmarks/deterministic.py --prompts humaneval.jsonl
    python benchmarks/deterministic.py --chats FOLDER --num-prompts 24 --name deterministic-smollm2
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

import common

from hierspec import Hierarchy
from hierspec.core.context import Context
from hierspec.lm.base import Query

SMALL = {"method": "draft_model", "model": "zoo:small"}
HIERARCHIES: dict[str, list[dict[str, Any]]] = {
    "small": [{**SMALL, "num_speculative_tokens": 6}],
    "look-up": [{"method": "prompt_lookup", "num_speculative_tokens": 8}],
    "suffix": [{"method": "suffix", "num_speculative_tokens": 12}],
    "table > exit": [
        {"method": "ngram_table", "num_speculative_tokens": 3},
        {"method": "early_exit", "exit_layer": 2, "num_speculative_tokens": 7, "verify": "block"},
    ],
    "small > mid": [
        {**SMALL, "num_speculative_tokens": 3},
        {**SMALL, "model": "zoo:mid", "num_speculative_tokens": 9, "verify": "block"},
    ],
}
COPY = {"method": "quantized", "bits": 4, "num_speculative_tokens": 15}
OF_CHATS: dict[str, list[dict[str, Any]]] = {
    "suffix": [{"method": "suffix", "num_speculative_tokens": 8}],
    "sibling": [
        {"method": "draft_model", "model": "zoo:smollm2-sibling", "num_speculative_tokens": 3}
    ],
    "copy": [COPY],
    "suffix > copy": [
        {"method": "suffix", "num_speculative_tokens": 2},
        {**COPY, "verify": "block"},
    ],
}
KINDS = {"deterministic": True, "usual": False}
ROWS = (1, 2, 4, 8, 9, 16, 17)


def build(target: str, dtype: str, levels: list[dict[str, Any]], deterministic: bool) -> Hierarchy:
    return Hierarchy.from_config(
        {
            "target": {"model": target, "dtype": dtype},
            "levels": levels,
            "deterministic": deterministic,
        }
    )


def ms_of_calls(hierarchy: Hierarchy, length: int, repeats: int) -> dict[int, float]:
    """Return the median milliseconds of a call for n rows after ``length`` tokens."""
    model, out = hierarchy.root.model, {}
    for n in ROWS:
        slot, text = model.open(), list(range(10, 10 + length))
        model.score([Query(slot, Context(text), length)])
        seconds = []
        for i in range(repeats):
            pending = tuple(20 + (i + j) % 50 for j in range(n))
            began = time.perf_counter()
            model.score([Query(slot, Context(text, pending), length + 1)])
            seconds.append(time.perf_counter() - began)
        model.close(slot)
        out[n] = 1e3 * statistics.median(seconds)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--prompts", type=Path)
    source.add_argument("--chats", type=Path)
    parser.add_argument("--num-prompts", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--target", help="default: the family's, or the released one")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--repeats", type=int, default=25)
    parser.add_argument("--name", default="deterministic", help="of the result file")
    args = parser.parse_args()
    args.target = args.target or ("zoo:smollm2" if args.chats else "zoo:large?eps=0.2")
    plain = {kind: build(args.target, args.dtype, [], exact) for kind, exact in KINDS.items()}
    if args.chats:
        chats = common.chat_prompts(args.chats, args.num_prompts, 0, plain["usual"], args.tokens)
        prompts, _, identity = chats
    else:
        texts, identity = common.read_prompts(args.prompts)
        tokenizer = plain["usual"].tokenizer
        prompts = [tokenizer(text)["input_ids"][-300:] for text in texts[: args.num_prompts]]
    settings = {k: str(v) for k, v in vars(args).items() if k not in ("prompts", "chats")}
    report: dict[str, Any] = {
        "environment": common.environment(prompts=identity),
        "settings": settings,
        "hierarchies": {},
    }
    options = {"max_new_tokens": args.tokens, "ignore_eos": True, "seed": 0}
    expected, ms = {kind: [] for kind in KINDS}, {kind: [] for kind in KINDS}
    for prompt in prompts:
        for kind, hierarchy in plain.items():
            result = hierarchy.generate(prompt, **options)
            expected[kind].append(result.token_ids)
            ms[kind].append(1e3 * result.decode_seconds / (result.num_tokens - 1))
    report["plain"] = {
        "ms_per_token": {kind: common.spread(values) for kind, values in ms.items()},
        "price": common.ratio(ms["deterministic"], ms["usual"]),
    }
    calls = {k: ms_of_calls(h, 200, args.repeats) for k, h in plain.items()}
    report["ms_of_a_call"] = {
        kind: {str(n): v for n, v in row.items()} for kind, row in calls.items()
    }
    print("plain", report["plain"], report["ms_of_a_call"], flush=True)
    total = dict.fromkeys(KINDS, 0)
    runs = 0
    for name, levels in (OF_CHATS if args.chats else HIERARCHIES).items():
        hierarchies = {
            kind: build(args.target, args.dtype, levels, exact) for kind, exact in KINDS.items()
        }
        row: dict[str, Any] = {"levels": levels, "runs": 2 * len(prompts)}
        times = {kind: [] for kind in KINDS}
        equal = dict.fromkeys(KINDS, 0)
        for i, prompt in enumerate(prompts):
            for kind, hierarchy in hierarchies.items():
                result = hierarchy.generate(prompt, **options)
                equal[kind] += result.token_ids == expected[kind][i]
                times[kind].append(1e3 * result.decode_seconds / (result.num_tokens - 1))
        for kind, hierarchy in hierarchies.items():
            for start in range(0, len(prompts), 4):
                batch = hierarchy.generate_batch(prompts[start : start + 4], **options)
                pairs = zip(batch, expected[kind][start : start + 4], strict=True)
                equal[kind] += sum(result.token_ids == text for result, text in pairs)
        row["equal"] = equal
        row["ms_per_token"] = {kind: common.spread(values) for kind, values in times.items()}
        row["price"] = common.ratio(times["deterministic"], times["usual"])
        row["speedup_over_plain"] = {kind: common.ratio(ms[kind], times[kind]) for kind in KINDS}
        row["over_usual_plain"] = common.ratio(ms["usual"], times["deterministic"])
        report["hierarchies"][name] = row
        runs += row["runs"]
        total = {kind: total[kind] + equal[kind] for kind in KINDS}
        print(name, {k: v for k, v in row.items() if k != "levels"}, flush=True)
    report["runs"], report["equal"] = runs, total
    common.write(args.name, report)
    print(
        f"{total['deterministic']} of {runs} texts equal plain decoding; {total['usual']} without"
    )


if __name__ == "__main__":
    main()
