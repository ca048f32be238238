"""Many streams at once on a started service: none lost, none garbled, each as it would be alone.

Half of the requests are greedy, half are sampled with a seed; lengths, prompts and chunks differ.
All are streamed together, then each again alone on the same service, and everything that a client
sees of them must be the same: text, why it ended, how many tokens.

    python benchmarks/serving_streams.py [--streams 64]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from typing import Any

import common
from serving_common import URL, completion, server


def request(number: int, tokens: int) -> dict[str, Any]:
    """One of the requests, by its number: greedy or seeded, of a length of its own."""
    sampled = {"temperature": 0.8, "top_p": 0.95, "seed": 1000 + number} if number % 2 else {}
    more = {"stream": True, "stream_options": {"include_usage": True}, **sampled}
    return {**completion(number, tokens // 2 + 5 * number % tokens), **more}


async def read(client: Any, body: dict[str, Any]) -> dict[str, Any]:
    """All of one stream; what is not as a stream must be is said under ``wrong``."""
    seen: dict[str, Any] = {"text": "", "finish": None, "tokens": None, "chunks": 0, "wrong": []}
    done = False
    async with client.stream("POST", "/v1/completions", json=body) as answer:
        if answer.status_code != 200:
            return {**seen, "wrong": [f"status {answer.status_code}"]}
        async for line in answer.aiter_lines():
            if not line:
                continue
            if done or not line.startswith("data: "):
                seen["wrong"].append(line[:80])
            elif line == "data: [DONE]":
                done = True
            else:
                _add(seen, json.loads(line.removeprefix("data: ")))
    if not done:
        seen["wrong"].append("no [DONE]")
    if seen["tokens"] != body["max_tokens"] or seen["finish"] != "length":
        seen["wrong"].append(f"{seen['tokens']} of {body['max_tokens']} tokens, {seen['finish']}")
    return seen


def _add(seen: dict[str, Any], chunk: dict[str, Any]) -> None:
    if seen.setdefault("id", chunk["id"]) != chunk["id"]:
        seen["wrong"].append(f"a chunk of {chunk['id']} in the stream of {seen['id']}")
    for choice in chunk["choices"]:
        if seen["finish"] is not None:
            seen["wrong"].append("text after the end")
        seen["text"] += choice["text"]
        seen["finish"] = choice["finish_reason"]
        seen["chunks"] += 1
    if chunk.get("usage"):
        seen["tokens"] = chunk["usage"]["completion_tokens"]


async def run(arguments: argparse.Namespace) -> dict[str, Any]:
    import httpx

    bodies = [request(number, arguments.tokens) for number in range(arguments.streams)]
    limits = httpx.Limits(max_connections=arguments.streams)
    async with httpx.AsyncClient(base_url=URL, timeout=900, limits=limits) as client:
        rounds, began = [], time.perf_counter()
        for _ in range(arguments.repeats):
            rounds.append(await asyncio.gather(*(read(client, body) for body in bodies)))
        together = time.perf_counter() - began
        alone = [await read(client, body) for body in bodies]
    same = ("text", "finish", "tokens")
    different = [
        number
        for found in rounds
        for number, (a, b) in enumerate(zip(found, alone, strict=True))
        if any(a[key] != b[key] for key in same)
    ]
    everything = [one for found in (*rounds, alone) for one in found]
    ids = [one.get("id") for one in everything]
    return {
        "requests": len(bodies) * arguments.repeats,
        "equal_to_alone": len(bodies) * arguments.repeats - len(different),
        "different": different,
        "wrong": [one["wrong"] for one in everything if one["wrong"]],
        "distinct_ids": len(set(ids)) == len(ids),
        "distinct_texts": len({one["text"] for one in alone}),
        "tokens": sum(one["tokens"] or 0 for found in rounds for one in found),
        "chunks": sum(one["chunks"] for found in rounds for one in found),
        "seconds_together": together,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="zoo:mid")
    parser.add_argument("--draft", default="zoo:small")
    parser.add_argument("--hierarchy", default="speculative")
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--repeats", type=int, default=2, help="times that all are sent together")
    parser.add_argument("--name", default="serving-streams")
    arguments = parser.parse_args()
    options = ["--model", arguments.model, "--hierarchy", arguments.hierarchy]
    options += ["--draft", arguments.draft] if arguments.draft else []
    options += ["--dtype", "float32", "--set", f"max_num_seqs={arguments.streams}"]
    with server(*options):
        found = asyncio.run(run(arguments))
    record = {"settings": vars(arguments), **found, "environment": common.environment()}
    common.write(arguments.name, record)
    print({key: value for key, value in found.items() if key != "different"})
    whole = found["equal_to_alone"] == found["requests"] and found["distinct_ids"]
    return 0 if whole and not found["wrong"] else 1


if __name__ == "__main__":
    raise SystemExit(main())
