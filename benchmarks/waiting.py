"""What it costs how OpenMP's threads wait: a target's forward, alone and beside a second one.

Each setting runs in processes of its own, since the variables are read once; settings take turns.
Then with the setting of the library's own start, in a second thread: while those that the first had
for its own forwards still wait, and after it has given them back.

    python benchmarks/waiting.py
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import common

from hierspec.utils import threads

TARGET, CONTEXT, ROWS = "zoo:large?eps=0.2", 300, (1, 12)
FIRST, KEPT, RELEASED = "first thread", "second thread", "second thread, released"
SECOND = (KEPT, RELEASED)
OWN = "spin 6000"  # what hierspec.utils.threads sets
SETTINGS = {
    "sleep": {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0"},
    "spin 1000": {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "1000"},
    "spin 6000": {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "6000"},
    "spin 300000 (the library's own)": {"GOMP_SPINCOUNT": "300000"},
}


def forwards(repeats: int, thread: str) -> dict[str, float]:
    """Return median milliseconds of a forward, by number of rows, in the given thread."""
    milliseconds = measure(repeats)
    if thread == FIRST:
        return milliseconds
    if thread == RELEASED:
        threads.end_threads()
    with ThreadPoolExecutor(1) as second:
        return second.submit(measure, repeats).result()


@functools.cache
def target() -> Any:
    from hierspec.config.schema import TargetConfig
    from hierspec_lab.bench.methods.ours import BenchModels

    return BenchModels(TargetConfig(model=TARGET, dtype="bfloat16")).plain.root.model


def measure(repeats: int) -> dict[str, float]:
    import torch

    from hierspec.core.context import Context
    from hierspec.lm.base import Query

    torch.set_num_threads(os.cpu_count() or 1)
    model = target()
    text = torch.randint(5, 4000, (CONTEXT,), generator=torch.Generator().manual_seed(0)).tolist()
    out = {}
    for rows in ROWS:
        slot = model.open()
        model.score([Query(slot, Context(text), CONTEXT)])
        times = []
        for i in range(repeats):
            pending = tuple(5 + (i + j) % 3000 for j in range(rows))  # never what is held already
            began = time.perf_counter()
            model.score([Query(slot, Context(text, pending), CONTEXT + 1)])
            times.append(1e3 * (time.perf_counter() - began))
        out[str(rows)] = common.spread(times)["median"]
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--name", default="waiting", help="of the result file")
    parser.add_argument("--repeats", type=int, default=25, help=argparse.SUPPRESS)
    parser.add_argument("--child", choices=[FIRST, *SECOND], help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print(json.dumps(forwards(args.repeats, args.child)))
        return
    kinds = {"alone": (1, FIRST), "two at once": (2, FIRST), **{name: (1, name) for name in SECOND}}
    all_runs: dict[str, Any] = {name: {kind: [] for kind in kinds} for name in SETTINGS}
    for _ in range(args.rounds):
        for name, variables in SETTINGS.items():
            for kind, (count, thread) in kinds.items():
                if kind == "two at once" and name.startswith("spin 300000"):
                    continue  # minutes a forward
                if kind in SECOND and name != OWN:
                    continue
                environment = {k: v for k, v in os.environ.items() if k != "OMP_WAIT_POLICY"}
                children = [
                    subprocess.Popen(
                        [
                            sys.executable,
                            __file__,
                            "--child",
                            thread,
                            "--repeats",
                            str(args.repeats),
                        ],
                        env={**environment, **variables},
                        stdout=subprocess.PIPE,
                        text=True,
                    )
                    for _ in range(count)
                ]
                for child in children:
                    all_runs[name][kind].append(json.loads(child.communicate(timeout=300)[0]))
            print(name, all_runs[name], flush=True)
    medians = {
        name: {
            kind: {rows: common.spread([run[rows] for run in runs])["median"] for rows in runs[0]}
            for kind, runs in kinds.items()
            if runs
        }
        for name, kinds in all_runs.items()
    }
    environment = {k: v for k, v in common.environment().items() if "_" not in k}
    common.write(
        args.name,
        {"environment": environment, "target": TARGET, "context": CONTEXT, "ms": medians},
    )


if __name__ == "__main__":
    main()
