"""A service killed under load (signal 9) and started again: what clients see, how long it takes.

python benchmarks/serving_restart.py [--model MODEL] [--kills 3]
"""

from __future__ import annotations

import argparse
import asyncio
import collections
from typing import Any

import common
from serving_common import URL, completion, server


async def under_load(process: Any, streams: int) -> dict[str, int]:
    """Kill a service while it answers → how many requests ended how."""
    import httpx

    ended: collections.Counter[str] = collections.Counter()
    running = asyncio.Event()

    async def send_request(client: httpx.AsyncClient, i: int) -> None:
        body = completion(i, 400, stream=True)
        try:
            async with client.stream("POST", "/v1/completions", json=body) as answer:
                async for line in answer.aiter_lines():
                    running.set()
                    if line == "data: [DONE]":
                        ended["whole answer"] += 1
                        return
            ended["cut without an error"] += 1
        except httpx.TransportError as error:
            ended[type(error).__name__] += 1

    async with httpx.AsyncClient(base_url=URL, timeout=60) as client:
        asking = [asyncio.create_task(send_request(client, i)) for i in range(streams)]
        await running.wait()
        process.kill()
        await asyncio.gather(*asking)
    return dict(ended)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="zoo:smollm2")
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--name", default="serving-restart")
    arguments = parser.parse_args()
    options = ["--model", arguments.model, "--dtype", "bfloat16"]
    kills: list[dict[str, int]] = []
    ready: list[float] = []
    for _ in range(arguments.kills + 1):
        with server(*options, ready=ready) as process:
            if len(ready) <= arguments.kills:
                kills.append(asyncio.run(under_load(process, arguments.streams)))
    record = {"settings": vars(arguments), "clients": kills, "ready_again_seconds": ready[1:]}
    print(record)
    common.write(arguments.name, {**record, "environment": common.environment()})


if __name__ == "__main__":
    main()
