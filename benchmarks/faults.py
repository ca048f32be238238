"""Faults in every call of the engine, of batches and of the cluster: what becomes of requests.

python benchmarks/faults.py [--seed 0] [--pairs 300] [--limit N] [--json] [--name faults]

A run of requests is watched, and each function of the package that its threads called is made to
fail: with an exception, with MemoryError, with SystemExit, with an exception after it has done its
work, or by being slow; and then pairs of faults at random. After each run every request must have
exactly one end, texts of the others must be unchanged, no more requests may have failed than there
were faults, the next request must be served, and nothing may be left behind (tests/fault_cases.py,
which has the requests and these rules). tests/engine/test_faults.py tries fewer.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import contextlib
import json
import logging
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import common

sys.path.insert(0, str(common.ROOT / "tests"))
sys.path.insert(0, str(common.ROOT / "tests" / "server"))
import torch
from fakes.servers import Echo
from fault_cases import Bench, broken_rules
from fault_injection import KINDS, Fault, Injector, Watch

from hierspec.server.batch.output import AnswersFile
from hierspec.server.batch.writer import BatchRun, in_process_client, run
from hierspec.server.cluster.calls import HttpRequest, forward
from hierspec.server.cluster.deployments import Replica
from hierspec_lab.bench.environment import environment

_NUM_LINES = 6
Attempt = Callable[[Injector, Sequence[Fault]], list[str]]


def in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def engine(folder: Path) -> tuple[Injector, Attempt]:
    """Return the injector of a service's engine, and a run of its requests under faults."""
    bench = Bench(folder)
    injector = bench.injector(slow=0.05)

    def attempt(injector: Injector, faults: Sequence[Fault]) -> list[str]:
        outcome = bench.run(injector, faults)
        return broken_rules(bench.undisturbed, outcome, injector.happened)

    return injector, attempt


def batch(folder: Path) -> tuple[Injector, Attempt]:
    """The same of a batch file, which is run again where a run has failed."""
    source, target = folder / "in.jsonl", folder / "out.jsonl"
    lines = [
        {
            "custom_id": f"r{i}",
            "method": "POST",
            "url": "/v1/completions",
            "body": {"model": "m", "prompt": f"p{i}"},
        }
        for i in range(_NUM_LINES)
    ]
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))

    async def answer_all() -> None:
        async with in_process_client(Echo()) as client:
            with AnswersFile(target) as output:
                await run(client, BatchRun(source, output, lambda _: None), 3)

    def attempt(injector: Injector | None, faults: Sequence[Fault]) -> list[str]:
        target.unlink(missing_ok=True)
        planned = injector.faults(*faults) if injector else contextlib.nullcontext()
        with contextlib.suppress(BaseException), planned:
            asyncio.run(answer_all())
        asyncio.run(answer_all())
        answers = [json.loads(line) for line in target.read_text().splitlines()]
        found: list[str] = []
        if sorted(answer["custom_id"] for answer in answers) != [
            f"r{i}" for i in range(_NUM_LINES)
        ]:
            found.append(f"{len(answers)} answers to {_NUM_LINES} lines")
        failed = [answer for answer in answers if answer["error"] is not None]
        texts = [a["response"]["body"]["text"] for a in answers if a["error"] is None]
        names = [a["custom_id"].replace("r", "p") for a in answers if a["error"] is None]
        if texts != names:
            found.append("an answer is another line's")
        if len(failed) > len(faults):
            found.append(f"{len(failed)} lines failed")
        return found

    watch = Watch(in_main_thread, ["hierspec.server.batch"])
    with watch.watching():
        assert not attempt(None, ())
    return Injector(list(watch.counts), in_main_thread), attempt


class LostError(Exception):
    """A replica has died."""


def cluster(folder: Path) -> tuple[Injector, Attempt]:
    """The same of requests that a gateway forwards to a replica, without Ray."""

    async def ask(replica: Replica, i: int) -> str:
        body = json.dumps({"model": "m", "prompt": f"p{i}"}).encode()
        try:
            request = HttpRequest({"type": "http"}, body, f"p{i}")
            reply = await forward(request, replica.answer, (LostError,), (), pause=0.001)
            return json.loads(reply.body)["text"]
        except BaseException as error:  # the gateway's framework answers it with a 500
            return repr(error)

    async def ask_all(injector: Injector | None, faults: Sequence[Fault]) -> list[str]:
        replica, app = object.__new__(Replica), Echo()
        async with app.router.lifespan_context(app):
            replica.app, replica.started = app, asyncio.ensure_future(asyncio.sleep(0))
            with injector.faults(*faults) if injector else contextlib.nullcontext():
                texts = await asyncio.gather(*(ask(replica, i) for i in range(_NUM_LINES)))
            texts.append(await ask(replica, _NUM_LINES))
        return texts

    def attempt(injector: Injector | None, faults: Sequence[Fault]) -> list[str]:
        texts = asyncio.run(ask_all(injector, faults))
        found = [f"p{_NUM_LINES} was not served"] if texts[-1] != f"p{_NUM_LINES}" else []
        wrong = [text for i, text in enumerate(texts) if text != f"p{i}"]
        if len(wrong) > len(faults) or any(text.startswith("p") for text in wrong):
            found.append(f"failed or wrong: {wrong}")
        return found

    watch = Watch(in_main_thread, ["hierspec.server.cluster"])
    with watch.watching():
        assert not attempt(None, ())
    return Injector(list(watch.counts), in_main_thread), attempt


def plan(calls: dict[str, int], pairs: int, rng: random.Random) -> list[list[Fault]]:
    """Return the faults of each run: singly at each call, in every way, and in pairs."""
    faults: list[list[Fault]] = []
    for function, count in calls.items():
        faults.append([Fault(function, 1, "error")])
        # In models and rules a slow call is a slow forward, as of a few of them.
        deep = function.startswith(("core.", "lm.", "sampling.", "verifiers.", "utils."))
        kinds = [kind for kind in KINDS[1:] if kind != "slow" or not deep or rng.random() < 0.1]
        faults += [[Fault(function, rng.randint(1, count), kind)] for kind in kinds]
    called = list(calls)

    def anywhere() -> Fault:
        function = rng.choice(called)
        return Fault(function, rng.randint(1, calls[function]), rng.choice(KINDS))

    return faults + [[anywhere(), anywhere()] for _ in range(pairs)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pairs", type=int, default=300, help="Runs with two faults.")
    parser.add_argument("--limit", type=int, help="At most so many runs, drawn at random.")
    parser.add_argument("--json", action="store_true", help="Print the report as well.")
    parser.add_argument("--name", default="faults", help="Of the result file.")
    args = parser.parse_args()
    logging.disable(logging.CRITICAL)
    threading.excepthook = lambda _: None  # of threads that are made to fail
    torch.set_num_threads(1)
    began, rng = time.monotonic(), random.Random(args.seed)
    injected = collections.defaultdict[str, collections.Counter[str]](collections.Counter)
    by_kind, by_place = collections.Counter[str](), collections.Counter[str]()
    runs, pairs, broken = 0, 0, dict[str, list[str]]()
    for make, share in ((engine, 0.8), (batch, 0.1), (cluster, 0.1)):
        with tempfile.TemporaryDirectory() as folder:
            injector, attempt = make(Path(folder))
            assert not attempt(injector, ())
            calls = {name: injector.calls[name] for name in injector.functions}
            calls = {name: count for name, count in calls.items() if count}
            planned = plan(calls, round(args.pairs * share), rng)
            if args.limit:
                planned = rng.sample(planned, min(len(planned), round(args.limit * share)))
            for faults in planned:
                found = attempt(injector, faults)
                runs += 1
                pairs += len(injector.happened) > 1
                for fault in injector.happened:
                    injected[fault.function][fault.kind] += 1
                    by_kind[fault.kind] += 1
                    by_place[make.__name__] += 1
                if found:
                    broken[", ".join(map(str, faults))] = found
                    print(f"{faults}: {found}", flush=True)
                if runs % 200 == 0:
                    print(f"{runs} runs, {sum(by_kind.values())} faults", flush=True)
            injector.remove()
    report: dict[str, Any] = {
        "environment": environment(),
        "seed": args.seed,
        "runs": runs,
        "runs_with_two_faults": pairs,
        "faults": sum(by_kind.values()),
        "functions": len(injected),
        "by_kind": dict(by_kind),
        "by_place": dict(by_place),
        "broken": broken,
        "by_function": {
            name: ", ".join(f"{kind} {kinds[kind]}" for kind in KINDS if kinds[kind])
            for name, kinds in sorted(injected.items())
        },
        "seconds": round(time.monotonic() - began, 1),
    }
    common.write(args.name, report)
    if args.json:
        print(json.dumps(report))
    print(f"{report['faults']} faults in {len(injected)} functions; {len(broken)} runs went wrong")
    sys.exit(bool(broken))


if __name__ == "__main__":
    main()
