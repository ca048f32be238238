"""Memory, threads and open files over ten thousand short requests, a tenth of which leave early.

python benchmarks/serving_leaks.py [--requests 10000]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import statistics
from typing import Any

import common
from serving_common import URL, completion, resident, server


async def send_requests(client: Any, first: int, count: int, streams: int) -> int:
    """Send requests, so many at once; every tenth leaves after its first chunk → the failed."""
    import httpx

    places, failed = asyncio.Semaphore(streams), 0

    async def send_request(i: int) -> None:
        nonlocal failed
        async with places:
            if i % 10 == 0:
                with contextlib.suppress(httpx.TransportError):
                    body = completion(i, 200, stream=True)
                    async with client.stream("POST", "/v1/completions", json=body) as answer:
                        async for _ in answer.aiter_lines():
                            return
            answer = await client.post("/v1/completions", json=completion(i, 4 + i % 5))
            failed += answer.status_code != 200

    await asyncio.gather(*(send_request(first + i) for i in range(count)))
    return failed


async def run(arguments: argparse.Namespace, pid: int) -> dict[str, Any]:
    import httpx

    samples, failed = [], 0
    limits = httpx.Limits(max_connections=arguments.streams)
    async with httpx.AsyncClient(base_url=URL, timeout=300, limits=limits) as client:
        for step in range(arguments.steps + 1):
            count = arguments.requests // arguments.steps
            failed += await send_requests(client, step * count, count, arguments.streams)
            await asyncio.sleep(1.0)
            samples.append(resident(pid))
            print(step, samples[-1], flush=True)
    warm, last = samples[0], samples[-1]
    # How much is cached for texts that share a prefix varies with the latest requests, so that a
    # single sample says little: the later samples are compared with the earlier ones.
    half = len(samples[1:]) // 2
    early, late = (
        statistics.median(sample["bytes"] for sample in part)
        for part in (samples[1 : 1 + half], samples[1 + half :])
    )
    return {
        "seen": samples,
        "failed": failed,
        "growth": last["bytes"] / warm["bytes"] - 1.0,
        "growth_of_the_later_half": late / early - 1.0,
        "more_threads": last["threads"] - warm["threads"],
        "more_files": last["files"] - warm["files"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="zoo:mid")
    parser.add_argument("--draft", default="zoo:small")
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--name", default="serving-leaks")
    arguments = parser.parse_args()
    options = ["--model", arguments.model, "--draft", arguments.draft]
    # Kept texts fill their share during warm-up, and no more than that later.
    options += ["--hierarchy", "speculative", "--set", "max_cache_tokens=8192"]
    with server(*options) as process:
        result = asyncio.run(run(arguments, process.pid))
    record = {"settings": vars(arguments), **result, "environment": common.environment()}
    common.write(arguments.name, record)


if __name__ == "__main__":
    main()
