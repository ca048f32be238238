"""Tokens a second of our service and of others', on the same weights, at 1, 4 and 16 streams.

Each server is started, warmed, measured and ended, and all take turns so. Requests are completions,
greedy, streamed to nobody; tokens are counted by the model's tokenizer, in what came back. Others'
servers are commands, in environments of their own, with ``{port}``, ``{model}`` (a folder) and, of
the GGUF file behind ``--model`` where there is one, ``{file}`` and ``{bfloat16}``, a copy of it in
bfloat16, filled in:

    python benchmarks/serving_peers.py --peer "transformers serve=PEERS/bin/transformers serve \\
        {model} --dtype bfloat16 --host 127.0.0.1 --port {port}" --peer "llama.cpp=llama-server \\
        --model {bfloat16} --port {port} --threads 2 --parallel 16 --ctx-size 16384"
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import common
from serving_common import end, wait, words

PORT = 8140
OURS = "hierspec"


@contextlib.contextmanager
def started(name: str, line: str, variables: dict[str, str], log: Path) -> Iterator[str]:
    """Start a server → its URL, once it answers.

    Raises:
        RuntimeError: it ended, or did not answer in five minutes.
    """
    command = [word.format(**variables) for word in shlex.split(line)]
    url = f"http://127.0.0.1:{variables['port']}"
    with log.open("ab") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out)
        try:
            wait(process, url=url, paths=("/health", "/v1/models"))
            yield url
        except RuntimeError as error:
            raise RuntimeError(f"{name}: {error}: see {log}") from None
        finally:
            end(process)


def bfloat16_copy(source: Path, copy: Path) -> None:
    """Write a GGUF file's weights in bfloat16, vectors in float32, with all it says beside them."""
    import gguf

    bfloat16 = gguf.GGMLQuantizationType.BF16
    reader = gguf.GGUFReader(source)
    architecture = reader.get_field(gguf.Keys.General.ARCHITECTURE)
    writer = gguf.GGUFWriter(copy, architecture.contents())
    skipped = (gguf.Keys.General.ARCHITECTURE, gguf.Keys.General.FILE_TYPE)
    for field in reader.fields.values():
        if field.name in skipped or field.name.startswith("GGUF."):
            continue
        is_list = field.types[0] == gguf.GGUFValueType.ARRAY
        kind = field.types[-1] if is_list else None
        writer.add_key_value(field.name, field.contents(), field.types[0], sub_type=kind)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        kind = gguf.GGMLQuantizationType.F32 if values.ndim == 1 else bfloat16
        writer.add_tensor(tensor.name, gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


async def wave(
    url: str, model: str, streams: int, tokens: int, seed: int, tokenizer: Any
) -> dict[str, Any]:
    """Send ``streams`` requests at once and wait for all answers."""
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
    num_tokens = sum(len(tokenizer.encode(text, add_special_tokens=False)) for text in texts)
    return {"tokens": num_tokens, "seconds": seconds, "tokens_per_second": num_tokens / seconds}


def measure(
    args: argparse.Namespace, servers: dict[str, str], variables: dict[str, str], tokenizer: Any
) -> tuple[dict[str, dict[str, list[dict[str, Any]]]], dict[str, str]]:
    """Measure by server and number of streams; return also what did not start, with the reason."""
    runs: dict[str, dict[str, list[dict[str, Any]]]] = {name: {} for name in servers}
    failed: dict[str, str] = {}
    for turn in range(args.repeats):
        for name, line in servers.items():
            if name in failed:
                continue
            model = args.model if name == OURS else variables["model"]
            try:
                with started(name, line, variables, args.log) as url:
                    for streams in args.streams:
                        for seed in (2 * turn, 2 * turn + 1):  # the first warms up
                            result = asyncio.run(
                                wave(url, model, streams, args.tokens, seed, tokenizer)
                            )
                        runs[name].setdefault(str(streams), []).append(result)
                        print(f"{name}, {streams}: {result['tokens_per_second']:.1f}", flush=True)
            except (RuntimeError, OSError) as error:
                failed[name] = str(error)
                print(f"{name}: {error}", flush=True)
    return runs, failed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="zoo:smollm2")
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=COMMAND")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--log", type=Path, default=Path("peers.log"))
    parser.add_argument("--name", default="serving-peers")
    args = parser.parse_args()
    import torch

    from hierspec.config.checkpoints import load_tokenizer
    from hierspec.lm.weights import build_hf_model
    from hierspec.zoo import registry
    from hierspec.zoo.gguf.files import is_gguf, smollm2_file

    source = registry.resolve(args.model)
    tokenizer = load_tokenizer(source)
    variables = {"port": str(PORT)}
    ours = f"{sys.executable} -m hierspec serve --model {args.model} --dtype bfloat16 "
    servers = {OURS: f"{ours} --port {{port}} --set log_level=warning"}
    servers |= dict(peer.split("=", 1) for peer in args.peer)
    with tempfile.TemporaryDirectory() as folder:
        if any("{model}" in line for line in args.peer):
            variables["model"] = f"{folder}/model"
            build_hf_model(source, torch.bfloat16).save_pretrained(variables["model"])
            tokenizer.save_pretrained(variables["model"])
        if any("{file}" in line or "{bfloat16}" in line for line in args.peer):
            file = Path(args.model) if is_gguf(args.model) else smollm2_file()
            variables |= {"file": str(file), "bfloat16": f"{folder}/bfloat16.gguf"}
            bfloat16_copy(file, Path(variables["bfloat16"]))
        runs, failed = measure(args, servers, variables, tokenizer)
    rows = []
    for streams in map(str, args.streams):
        our_rates = [run["tokens_per_second"] for run in runs[OURS][streams]]
        for name, by_streams in runs.items():
            rates = [run["tokens_per_second"] for run in by_streams.get(streams, [])]
            if len(rates) == len(our_rates):
                row = {"streams": int(streams), "server": name, "rate": common.spread(rates)}
                row |= {"ours_over_it": common.ratio(our_rates, rates), "runs": by_streams[streams]}
                rows.append(row)
                print(streams, name, row["rate"]["median"], row["ours_over_it"]["median"])
    settings = {key: value for key, value in vars(args).items() if key != "log"}
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
