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
    """Build one of the requests, by its number: greedy or seeded, of a length of its own."""
    sampled = {"temperature": 0.8, "top_p": 0.95, "seed": 1000 + number} if number % 2 else {}
    options = {"stream": True, "stream_options": {"include_usage": True}, **sampled}
    return {**completion(number, tokens // 2 + 5 * number % tokens), **options}


async def read_stream(client: Any, body: dict[str, Any]) -> dict[str, Any]:
    """Read a whole stream; what a stream must not contain is listed under ``wrong``."""
    stream: dict[str, Any] = {"text": "", "finish": None, "tokens": None, "chunks": 0, "wrong": []}
    is_finished = False
    async with client.stream("POST", "/v1/completions", json=body) as answer:
        if answer.status_code != 200:
            return {**stream, "wrong": [f"status {answer.status_code}"]}
        async for line in answer.aiter_lines():
            if not line:
                continue
            if is_finished or not line.startswith("data: "):
                stream["wrong"].append(line[:80])
            elif line == "data: [DONE]":
                is_finished = True
            else:
                _add(stream, json.loads(line.removeprefix("data: ")))
    if not is_finished:
        stream["wrong"].append("no [DONE]")
    if stream["tokens"] != body["max_tokens"] or stream["finish"] != "length":
        stream["wrong"].append(
            f"{stream['tokens']} of {body['max_tokens']} tokens, {stream['finish']}"
        )
    return stream


def _add(stream: dict[str, Any], chunk: dict[str, Any]) -> None:
    if stream.setdefault("id", chunk["id"]) != chunk["id"]:
        stream["wrong"].append(f"a chunk of {chunk['id']} in the stream of {stream['id']}")
    for choice in chunk["choices"]:
        if stream["finish"] is not None:
            stream["wrong"].append("text after the end")
        stream["text"] += choice["text"]
        stream["finish"] = choice["finish_reason"]
        stream["chunks"] += 1
    if chunk.get("usage"):
        stream["tokens"] = chunk["usage"]["completion_tokens"]


async def run(arguments: argparse.Namespace) -> dict[str, Any]:
    import httpx

    bodies = [request(number, arguments.tokens) for number in range(arguments.streams)]
    limits = httpx.Limits(max_connections=arguments.streams)
    async with httpx.AsyncClient(base_url=URL, timeout=900, limits=limits) as client:
        rounds, began = [], time.perf_counter()
        for _ in range(arguments.repeats):
            rounds.append(await asyncio.gather(*(read_stream(client, body) for body in bodies)))
        seconds = time.perf_counter() - began
        single = [await read_stream(client, body) for body in bodies]
    keys = ("text", "finish", "tokens")
    different = [
        number
        for streams in rounds
        for number, (a, b) in enumerate(zip(streams, single, strict=True))
        if any(a[key] != b[key] for key in keys)
    ]
    everything = [stream for streams in (*rounds, single) for stream in streams]
    ids = [stream.get("id") for stream in everything]
    return {
        "requests": len(bodies) * arguments.repeats,
        "equal_to_alone": len(bodies) * arguments.repeats - len(different),
        "different": different,
        "wrong": [stream["wrong"] for stream in everything if stream["wrong"]],
        "distinct_ids": len(set(ids)) == len(ids),
        "distinct_texts": len({stream["text"] for stream in single}),
        "tokens": sum(stream["tokens"] or 0 for streams in rounds for stream in streams),
        "chunks": sum(stream["chunks"] for streams in rounds for stream in streams),
        "seconds_together": seconds,
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
        result = asyncio.run(run(arguments))
    record = {"settings": vars(arguments), **result, "environment": common.environment()}
    common.write(arguments.name, record)
    print({key: value for key, value in result.items() if key != "different"})
    is_clean = result["equal_to_alone"] == result["requests"] and result["distinct_ids"]
    return 0 if is_clean and not result["wrong"] else 1


if __name__ == "__main__":
    raise SystemExit(main())
