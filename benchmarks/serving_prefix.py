"""Time to the first token of a chat's second turn, with and without session caches, and its tokens.

python benchmarks/serving_prefix.py [--model MODEL] [--tokens 1500]
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import common
from serving_common import URL, server, words


def first_token(client: Any, messages: list[dict[str, str]]) -> tuple[float, str, int]:
    """Return seconds to the first chunk, the whole text, and cached tokens of the prompt."""
    import json

    body = {
        "model": "default",
        "messages": messages,
        "max_tokens": 24,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    began, first, text, cached = time.perf_counter(), 0.0, "", 0
    with client.stream("POST", "/v1/chat/completions", json=body) as answer:
        answer.raise_for_status()
        for line in answer.iter_lines():
            if not line.startswith("data: {"):
                continue
            first = first or time.perf_counter() - began
            chunk = json.loads(line[6:])
            for choice in chunk["choices"]:
                text += choice["delta"].get("content", "")
            if chunk["usage"]:
                cached = chunk["usage"]["prompt_tokens_details"]["cached_tokens"]
    return first, text, cached


def talks(arguments: argparse.Namespace, caching: bool) -> list[tuple[float, str, int]]:
    import httpx

    options = ["--dtype", arguments.dtype, "--set", f"prefix_caching={str(caching).lower()}"]
    if arguments.model:
        options += ["--model", arguments.model]
    out = []
    with server(*options), httpx.Client(base_url=URL, timeout=900) as client:
        for i in range(arguments.repeats):
            messages = [{"role": "user", "content": words(i, arguments.tokens)}]
            _, text, _ = first_token(client, messages)
            messages += [
                {"role": "assistant", "content": text},
                {"role": "user", "content": "And then?"},
            ]
            out.append(first_token(client, messages))
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=None)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--tokens", type=int, default=1500)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--name", default="serving-prefix")
    arguments = parser.parse_args()
    warm, cold = talks(arguments, True), talks(arguments, False)
    record = {
        "settings": vars(arguments),
        "warm_seconds": common.spread([turn[0] for turn in warm]),
        "cold_seconds": common.spread([turn[0] for turn in cold]),
        "sooner": common.ratio([turn[0] for turn in cold], [turn[0] for turn in warm]),
        "cached_tokens": statistics.median(turn[2] for turn in warm),
        "same_text": [a[1] == b[1] for a, b in zip(warm, cold, strict=True)],
        "environment": common.environment(),
    }
    print(record["sooner"], record["same_text"])
    common.write(arguments.name, record)


if __name__ == "__main__":
    main()
