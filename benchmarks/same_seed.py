"""The service at a seed: every text alone, and again among 1, 8 and 32 streams of other requests.

Requests differ in prompt, length, temperature and truncation, and every third of the mixed ones
comes without a seed, to be in the way. What is counted are answers that equal those given alone,
byte for byte. Nothing is timed.

    python benchmarks/same_seed.py --prompts humaneval.jsonl
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import common
import httpx

from hierspec.server.app import create_app
from hierspec.server.batch.writer import in_process_client
from hierspec.server.loading import obstacles
from hierspec.server.settings import ServeSettings

SMALL = {"method": "draft_model", "model": "zoo:small", "num_speculative_tokens": 5}
MID = {"method": "draft_model", "model": "zoo:mid", "num_speculative_tokens": 8}
FOUR_BITS = {"method": "quantized", "bits": 4, "num_speculative_tokens": 5}
SUFFIX = {"method": "suffix", "num_speculative_tokens": 6}
CASES: dict[str, tuple[str, list[dict[str, Any]]]] = {
    "zoo:trunk, small": ("zoo:trunk", [SMALL]),
    "zoo:trunk, small below mid": (
        "zoo:trunk",
        [{**SMALL, "num_speculative_tokens": 3}, {**MID, "verify": "block"}],
    ),
    "zoo:trunk, suffix below 4 bits": ("zoo:trunk", [SUFFIX, FOUR_BITS]),
    "zoo:smollm2, suffix below 4 bits": ("zoo:smollm2", [SUFFIX, FOUR_BITS]),
}
STREAMS = (1, 8, 32)


def bodies(prompts: Sequence[str], count: int, tokens: int, seed: int) -> list[dict[str, Any]]:
    """Return requests that differ in everything on which the path through the service depends."""
    rng = random.Random(seed)
    out: list[dict[str, Any]] = []
    for i in range(count):
        text = "".join(rng.choice(prompts) for _ in range(rng.choice([1, 1, 2, 4])))
        out.append(
            {
                "prompt": text[-rng.choice([16, 100, 400, 1600]) :],
                "seed": seed + i,
                "max_tokens": rng.randint(tokens // 4, tokens),
                "temperature": rng.choice([0.0, 0.6, 1.0, 1.0, 1.3]),
                **rng.choice([{}, {}, {"top_p": 0.9}, {"top_k": 40}, {"frequency_penalty": 0.4}]),
            }
        )
    return out


async def answers(
    client: httpx.AsyncClient, requests: Sequence[dict[str, Any]], streams: int
) -> list[tuple[str, str]]:
    """Return text and finish reason of every request, so many at once, in a shuffled order."""
    order, turns = list(range(len(requests))), asyncio.Semaphore(streams)
    random.Random(streams).shuffle(order)
    found: list[tuple[str, str]] = [("", "")] * len(requests)

    async def ask(i: int) -> None:
        async with turns:
            answer = await client.post("/v1/completions", json=requests[i])
        assert answer.status_code == 200, answer.text
        (choice,) = answer.json()["choices"]
        found[i] = (choice["text"], choice["finish_reason"])

    await asyncio.gather(*map(ask, order))
    return found


async def compare(
    settings: ServeSettings, requests: Sequence[dict[str, Any]]
) -> tuple[dict[str, int], list[str]]:
    """Return how many texts equal those alone, by number of streams; and what says they may not."""
    app = create_app(settings)
    others = [
        {key: value for key, value in request.items() if key != "seed"} for request in requests[::3]
    ]
    async with in_process_client(app) as client:
        alone = [(await answers(client, [request], 1))[0] for request in requests]
        equal: dict[str, int] = {}
        for streams in STREAMS:
            mixed = await answers(client, [*requests, *(others if streams > 1 else ())], streams)
            pairs = zip(alone, mixed[: len(requests)], strict=True)
            equal[str(streams)] = sum(one == other for one, other in pairs)
        return equal, obstacles(app.state.service.hierarchies)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--usual", action="store_true", help="also in torch's operations")
    parser.add_argument("--case", action="append", choices=list(CASES), help="default: all")
    parser.add_argument("--name", default="same-seed", help="of the result file")
    args = parser.parse_args()
    prompts, identity = common.read_prompts(args.prompts)
    requests = bodies(prompts, args.count, args.tokens, seed=1)
    path = common.RESULTS / f"{args.name}.json"
    found = json.loads(path.read_text()) if path.exists() else {}
    config = {"count": args.count, "tokens": args.tokens, "dtype": "bfloat16", "prompts": identity}
    cases = found.get("cases", {}) if found.get("config") == config else {}
    for name in args.case or CASES:
        target, levels = CASES[name]
        began = time.monotonic()
        record: dict[str, Any] = {}
        for mode, backend in {"kernels": "auto", "usual": "lean"}.items():
            if mode == "usual" and not args.usual:
                continue
            model = {"model": target, "dtype": "bfloat16", "backend": backend}
            hierarchy = json.dumps({"target": model, "levels": levels})
            settings = ServeSettings(hierarchy=hierarchy, request_timeout=0.0, max_queue=4096)
            equal, reasons = asyncio.run(compare(settings, requests))
            record[mode] = {"equal": equal, "obstacles": reasons}
        cases[name] = record
        print(f"{name}: {record} ({time.monotonic() - began:.0f} s)", flush=True)
        data = {"config": config, "environment": common.environment(), "cases": cases}
        common.write(args.name, data)


if __name__ == "__main__":
    main()
