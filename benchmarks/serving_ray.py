"""The service and batches on Ray while their processes are killed: what becomes of every request.

A replica of ``hierspec serve --replicas 2`` is killed under load, and so is the gateway; then
``hierspec batch`` is killed at three random moments, in one process and with ``--ray``, and run
again. With ``--autoscale`` instead: a service of one replica or two under more load than suits one.

python benchmarks/serving_ray.py [--requests 80] [--lines 100]
python benchmarks/serving_ray.py --autoscale --name serving-ray-autoscale
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from importlib import metadata
from pathlib import Path
from typing import Any

import common
from serving_common import URL, completion, server

MODEL = ["--hierarchy", "autoregressive", "--threads", "1"]


def processes(root: int, title: str = "") -> list[Any]:
    """List the descendants of one of our processes whose titles begin with ``title``."""
    import psutil

    matching = []
    for process in psutil.Process(root).children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if process.cmdline() and process.cmdline()[0].startswith(title):
                matching.append(process)
    return matching


async def ask(client: Any, number: int, tokens: int) -> str:
    """Send a request, every second one as a stream → what it was answered with."""
    import httpx

    body = completion(number, tokens, stream=number % 2 == 1)
    try:
        answer = await client.post("/v1/completions", json=body)
        if answer.status_code != 200:
            return f"error {answer.status_code}: {answer.json()['error']['message']}"
        if number % 2 == 0:
            is_complete = answer.json()["usage"]["completion_tokens"] == tokens
            return "whole answer" if is_complete else "unclean: short"
        if answer.text.endswith("data: [DONE]\n\n"):
            return "whole answer"
        last = answer.text.rstrip().rpartition("data: ")[2]
        return f"error event: {json.loads(last)['error']['message']}"
    except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
        return f"unclean: {type(error).__name__}"


async def under_load(arguments: argparse.Namespace, pid: int, title: str) -> dict[str, Any]:
    """Kill a process when a third of the requests have been answered."""
    import httpx

    places, answers = asyncio.Semaphore(arguments.streams), []
    victim = processes(pid, title)[0]

    async with httpx.AsyncClient(base_url=URL, timeout=120) as client:

        async def send(number: int) -> None:
            async with places:
                answers.append(await ask(client, number, arguments.tokens))
                if len(answers) == arguments.requests // 3:
                    victim.kill()

        began = time.monotonic()
        await asyncio.gather(*(send(number) for number in range(arguments.requests)))
        seconds = time.monotonic() - began
        await asyncio.sleep(arguments.pause)  # until the next one may be killed
        later = [await ask(client, number, arguments.tokens) for number in range(10)]
    return {
        "killed": title,
        "requests": arguments.requests,
        "answers": dict(Counter(answers)),
        "seconds": seconds,
        "later": dict(Counter(later)),
    }


async def growth(arguments: argparse.Namespace, pid: int) -> dict[str, Any]:
    """Ask for as long as there is one replica, and then for all requests once more."""
    import httpx

    replica, answers, began = "ray::ServeReplica:hierspec:replica", [], time.monotonic()
    grown: float | None = None

    async with httpx.AsyncClient(base_url=URL, timeout=120) as client:

        async def stream(first: int) -> None:
            number = first
            while grown is None and time.monotonic() - began < arguments.seconds:
                answers.append(await ask(client, number, arguments.tokens))
                number += arguments.streams

        async def watch() -> None:
            nonlocal grown
            while grown is None and time.monotonic() - began < arguments.seconds:
                await asyncio.sleep(1)
                if len(processes(pid, replica)) > 1:
                    grown = time.monotonic() - began

        first_replicas = len(processes(pid, replica))
        await asyncio.gather(watch(), *(stream(number) for number in range(arguments.streams)))
        await asyncio.sleep(arguments.pause)  # it loads the model
        later = [ask(client, number, arguments.tokens) for number in range(arguments.streams)]
        final_answers = await asyncio.gather(*later)
    return {
        "replicas_at_first": first_replicas,
        "seconds_until_there_are_two": grown,
        "streams": arguments.streams,
        "answers": dict(Counter(answers)),
        "later": dict(Counter(final_answers)),
    }


def batch(arguments: argparse.Namespace, options: list[str], moments: random.Random) -> Any:
    """Kill the command at three random moments, run it to its end, and count lines."""
    import psutil

    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "in.jsonl"), Path(folder, "out.jsonl")
        with source.open("w") as stream:
            for number in range(arguments.lines):
                body = completion(number, arguments.tokens)
                line = {"custom_id": f"r{number}", "method": "POST", "url": "/v1/completions"}
                stream.write(json.dumps({**line, "body": body}) + "\n")
        command = [sys.executable, "-m", "hierspec", "batch", str(source), str(target)]
        command += ["--model", arguments.model, *MODEL, "--max-concurrency", "4", *options]
        paths = os.pathsep.join([str(common.ROOT / "src"), os.environ.get("PYTHONPATH", "")])
        pipes = {"stderr": subprocess.DEVNULL, "env": {**os.environ, "PYTHONPATH": paths}}
        kills, began = [], time.monotonic()
        for third in range(3):
            process = subprocess.Popen(command, **pipes)
            # A moment is a number of answers: most of the time models load and nothing is at stake.
            num_answers = (third + moments.random()) * arguments.lines / 3.5
            while _lines(target) < max(num_answers, 1) and process.poll() is None:
                time.sleep(moments.random() / 20)
            family = processes(process.pid)
            process.kill()
            process.wait()
            psutil.wait_procs(family, 60)
            kills.append(_lines(target))
        status = subprocess.run(command, **pipes).returncode
        names = [json.loads(line)["custom_id"] for line in target.read_text().splitlines()]
        good = [json.loads(line)["response"] for line in target.read_text().splitlines()]
    return {
        "options": options,
        "lines": arguments.lines,
        "answers_at_each_kill": kills,
        "status": status,
        "answers": len(names),
        "missing": arguments.lines - len(set(names)),
        "twice": len(names) - len(set(names)),
        "failed": sum(response is None or response["status_code"] != 200 for response in good),
        "seconds": time.monotonic() - began,
    }


def _lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="zoo:small")
    parser.add_argument("--requests", type=int, default=80)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--pause", type=float, default=15.0, help="seconds between kills")
    parser.add_argument("--lines", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--name", default="serving-ray")
    parser.add_argument("--autoscale", action="store_true")
    parser.add_argument("--seconds", type=float, default=180.0, help="--autoscale: at most")
    arguments = parser.parse_args()
    record: dict[str, Any] = {"settings": vars(arguments)}
    if arguments.autoscale:
        options = ["--autoscale", "1:2", "--set", "max_num_seqs=4"]
        with server("--model", arguments.model, *MODEL, *options) as process:
            time.sleep(arguments.pause)
            record["autoscale"] = asyncio.run(growth(arguments, process.pid))
        print(record["autoscale"], flush=True)
        record["environment"] = common.environment(ray=metadata.version("ray"))
        common.write(arguments.name, record)
        return
    runs = []
    with server("--model", arguments.model, *MODEL, "--replicas", "2") as process:
        time.sleep(arguments.pause)  # /health is answered before Ray has said that all is there
        for kind in ("replica", "replica", "gateway"):
            title = f"ray::ServeReplica:hierspec:{kind}"
            runs.append(asyncio.run(under_load(arguments, process.pid, title)))
            print(runs[-1], flush=True)
    batches, moments = [], random.Random(arguments.seed)
    for options in ([], ["--ray", "--replicas", "2"]):
        batches.append(batch(arguments, options, moments))
        print(batches[-1], flush=True)
    record |= {"serve": runs, "batch": batches}
    record["environment"] = common.environment(ray=metadata.version("ray"))
    common.write(arguments.name, record)


if __name__ == "__main__":
    main()
