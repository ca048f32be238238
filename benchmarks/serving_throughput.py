"""Tokens a second of a started service at 1, 4, 16 and 64 streams, beside plain decoding.

Both run on the same process and take turns at going first: the service as it is, and requests with
``speculative: false``. No prompt comes twice, since the second time it would be in a cache. A short
request is sent every half second under a load of long prompts, for its time to first token.

    python benchmarks/serving_throughput.py [--model MODEL] [--hierarchy H] [--streams 1 4 16 64]
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import time
from typing import Any

import common
from serving_common import URL, completion, quantiles, server, words


async def wave(client: Any, streams: int, tokens: int, seed: int, **options: Any) -> dict[str, Any]:
    """Send ``streams`` requests at once and wait for all answers."""
    began = time.perf_counter()
    requests = [
        client.post("/v1/completions", json=completion(1000 * seed + i, tokens, **options))
        for i in range(streams)
    ]
    answers = [answer.json() for answer in await asyncio.gather(*requests)]
    seconds = time.perf_counter() - began
    num_tokens = sum(answer["usage"]["completion_tokens"] for answer in answers)
    plans: dict[str, int] = {}
    for answer in answers:
        for name, rounds in answer["speculative"]["plans"].items():
            plans[name] = plans.get(name, 0) + rounds
    return {"tokens_per_second": num_tokens / seconds, "plans": plans, "tokens": num_tokens}


async def throughput(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    import httpx

    rows = []
    limits, seeds = httpx.Limits(max_connections=256), itertools.count()
    async with httpx.AsyncClient(base_url=URL, timeout=900, limits=limits) as client:
        for streams in arguments.streams:
            waves: dict[str, list[dict[str, Any]]] = {"service": [], "plain": []}
            for turn in range(arguments.repeats + 1):
                kinds = [("service", {}), ("plain", {"speculative": False})]
                for kind, options in kinds[:: 1 if turn % 2 else -1]:
                    seed = next(seeds)
                    result = await wave(client, streams, arguments.tokens, seed, **options)
                    if turn:  # the first wave warms up, and lets the load control look around
                        waves[kind].append(result)
            speeds = {k: [result["tokens_per_second"] for result in v] for k, v in waves.items()}
            row = {
                "streams": streams,
                **{kind: common.spread(values) for kind, values in speeds.items()},
                "over_plain": common.ratio(speeds["service"], speeds["plain"]),
                "plans": waves["service"][-1]["plans"],
            }
            print(row, flush=True)
            rows.append(row)
    return rows


async def short_among_long(arguments: argparse.Namespace) -> dict[str, Any]:
    """Time the first token of short prompts while long ones are read and written."""
    import httpx

    first: list[float] = []
    finished = asyncio.Event()
    limits = httpx.Limits(max_connections=64)

    async with httpx.AsyncClient(base_url=URL, timeout=900, limits=limits) as client:

        async def long(i: int) -> None:
            body = {"prompt": words(i, arguments.long), "max_tokens": 32, "ignore_eos": True}
            await client.post("/v1/completions", json=body)

        async def short() -> None:
            i = 0
            while not finished.is_set():
                i += 1
                began = time.perf_counter()
                body = completion(-i, 4, stream=True)
                async with client.stream("POST", "/v1/completions", json=body) as answer:
                    async for line in answer.aiter_lines():
                        if line:
                            first.append(time.perf_counter() - began)
                            break
                await asyncio.sleep(0.5)

        asking = asyncio.create_task(short())
        await asyncio.gather(*(long(i) for i in range(arguments.long_requests)))
        finished.set()
        await asking
    return {"long_words": arguments.long, "seconds": quantiles(first), "requests": len(first)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=None)
    parser.add_argument("--hierarchy", default=None)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 4, 16, 64])
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--long", type=int, default=1200, help="words of a long prompt")
    parser.add_argument("--long-requests", type=int, default=8)
    parser.add_argument("--name", default="serving-throughput")
    arguments = parser.parse_args()
    options = ["--dtype", arguments.dtype, "--set", "max_num_seqs=64"]
    for key in ("model", "hierarchy"):
        if getattr(arguments, key):
            options += [f"--{key}", getattr(arguments, key)]
    with server(*options):
        rows = asyncio.run(throughput(arguments))
        short = asyncio.run(short_among_long(arguments))
    settings = vars(arguments)
    record = {"settings": settings, "rows": rows, "short_among_long": short}
    common.write(arguments.name, {**record, "environment": common.environment()})


if __name__ == "__main__":
    main()
