"""Tokens a second of our service and of others', on the same weights, at 1, 4 and 16 streams.

Each server is started, warmed, measured and ended, and all take turns so. Requests are completions,
greedy, streamed to nobody; tokens are counted by the model's tokenizer, in what came back. Others'
servers are commands, in environments of their own, with ``{port}``, ``{model}`` (a folder) and
``{file}`` (given by ``--file``, a GGUF file) filled in:

    python benchmarks/serving_peers.py --peer "transformers serve=PEERS/bin/transformers serve \\
        {model} --dtype bfloat16 --host 127.0.0.1 --port {port}"
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import common
from serving_common import end, wait, words

PORT = 8140
OURS = "hierspec"


@contextlib.contextmanager
def started(name: str, line: str, given: dict[str, str], log: Path) -> Iterator[str]:
    """A server, once it answers → its URL.

    Raises:
        RuntimeError: it ended, or did not answer in five minutes.
    """
    command = [word.format(**given) for word in shlex.split(line)]
    url = f"http://127.0.0.1:{given['port']}"
    with log.open("ab") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out)
        try:
            wait(process, url=url, paths=("/health", "/v1/models"))
            yield url
        except RuntimeError as error:
            raise RuntimeError(f"{name}: {error}: see {log}") from None
        finally:
            end(process)


async def wave(
    url: str, model: str, streams: int, tokens: int, seed: int, tokenizer: Any
) -> dict[str, Any]:
    """So many requests at once, until the last has ended."""
    import httpx

    limits = httpx.Limits(max_connections=64)
    async with httpx.AsyncClient(base_url=url, timeout=600, limits=limits) as client:
        bodies = [
            {
                "model": model,
                "prompt": f"{words(1000 * seed + i, 24)}.",
                "max_tokens": tokens,
                "temperature": 0,
            }
            for i in range(streams)
        ]
        began = time.perf_counter()
        answers = await asyncio.gather(
            *(client.post("/v1/completions", json=body) for body in bodies)
        )
        seconds = time.perf_counter() - began
    for answer in answers:
        if answer.status_code != 200:
            raise RuntimeError(f"status {answer.status_code}: {answer.text[:300]}")
    texts = [answer.json()["choices"][0]["text"] for answer in answers]
    written = sum(len(tokenizer.encode(text, add_special_tokens=False)) for text in texts)
    return {"tokens": written, "seconds": seconds, "tokens_per_second": written / seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="zoo:smollm2")
    parser.add_argument("--file", type=Path, help="a GGUF file, for peers that read one")
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=COMMAND")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--log", type=Path, default=Path("peers.log"))
    parser.add_argument("--name", default="serving-peers")
    args = parser.parse_args()
    from hierspec.config.checkpoints import load_tokenizer
    from hierspec.zoo import registry

    source = registry.resolve(args.model)
    tokenizer = load_tokenizer(source)
    given = {"port": str(PORT), "model": str(source.tokenizer_path), "file": str(args.file)}
    ours = f"{sys.executable} -m hierspec serve --model {args.model} --dtype bfloat16 "
    servers = {OURS: f"{ours} --port {{port}} --set log_level=warning"}
    servers |= dict(peer.split("=", 1) for peer in args.peer)
    runs: dict[str, dict[str, list[dict[str, Any]]]] = {name: {} for name in servers}
    failed: dict[str, str] = {}
    for turn in range(args.repeats):
        for name, line in servers.items():
            if name in failed:
                continue
            model = args.model if name == OURS else given["model"]
            try:
                with started(name, line, given, args.log) as url:
                    for streams in args.streams:
                        for seed in (2 * turn, 2 * turn + 1):  # the first warms up
                            found = asyncio.run(
                                wave(url, model, streams, args.tokens, seed, tokenizer)
                            )
                        runs[name].setdefault(str(streams), []).append(found)
                        print(f"{name}, {streams}: {found['tokens_per_second']:.1f}", flush=True)
            except (RuntimeError, OSError) as error:
                failed[name] = str(error)
                print(f"{name}: {error}", flush=True)
    rows = []
    for streams in map(str, args.streams):
        mine = [run["tokens_per_second"] for run in runs[OURS][streams]]
        for name, by_streams in runs.items():
            own = [run["tokens_per_second"] for run in by_streams.get(streams, [])]
            if len(own) == len(mine):
                row = {"streams": int(streams), "server": name, "rate": common.spread(own)}
                row |= {"ours_over_it": common.ratio(mine, own), "runs": by_streams[streams]}
                rows.append(row)
                print(streams, name, row["rate"]["median"], row["ours_over_it"]["median"])
    settings = {key: value for key, value in vars(args).items() if key not in ("file", "log")}
    settings["peer"] = list(servers)
    common.write(
        args.name,
        {
            "settings": settings,
            "rows": rows,
            "failed": failed,
            "environment": common.environment(),
        },
    )


if __name__ == "__main__":
    main()
