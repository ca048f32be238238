"""What calls of fixed shape and their recordings are worth: three ways to check and to draft.

For each model a check of n tokens and a draft of n tokens: by an ordinary trunk, by one of fixed
shapes that records nothing, and by one that does; in turn, in milliseconds, the device waited for.

    python benchmarks/graphs.py                                        # → results/graphs.json
    python benchmarks/graphs.py --device cpu --models zoo:small --repeats 5     # shapes alone
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import common
import torch

from hierspec.core.context import Context
from hierspec.lm.backend import Backend
from hierspec.lm.base import Query, Slot
from hierspec.lm.lean.decoder import LeanBackend
from hierspec.lm.load import load
from hierspec.lm.trunk.cuda_graphs import CudaGraphTrunk
from hierspec.lm.trunk.trunk import Trunk
from hierspec.sampling.sampler import Sampler
from hierspec.zoo.registry import resolve

MODELS = ("zoo:small", "zoo:mid", "zoo:trunk", "zoo:large?eps=0.2", "zoo:large?widen=8&deepen=3")
CONTEXT, DRAFT, CHECK = 300, 8, (1, 4, 8)
READINGS = {"greedy": Sampler(4096, 0.0), "sampling": Sampler(4096, 1.0)}


def build_trunks(backend: LeanBackend) -> dict[str, Trunk]:
    trunks = {"ordinary": Trunk(backend), "fixed": CudaGraphTrunk(backend)}
    trunks["fixed"].graphs.device = torch.device("cpu")  # type: ignore[union-attr]  # never records
    if backend.device.type == "cuda":
        trunks["recorded"] = CudaGraphTrunk(backend)
    return trunks


class Way:
    """One trunk at work on one text that never repeats itself."""

    def __init__(self, trunk: Trunk) -> None:
        self.trunk, self.slot, self.fresh = trunk, Slot(), count()
        self.text = [5 + (7 * i) % 4000 for i in range(CONTEXT)]
        self.trunk.exit_model(0).score([self.query(())])

    def query(self, draft: tuple[int, ...]) -> Query:
        return Query(self.slot, Context(self.text, draft), CONTEXT)

    def new(self, n: int) -> tuple[int, ...]:
        return tuple(5 + next(self.fresh) % 4000 for _ in range(n))

    def check(self, n: int) -> None:
        self.trunk.exit_model(0).score([self.query(self.new(n))])

    def draft(self, sampler: Sampler) -> None:
        context = Context(self.text, self.new(1))
        query = Query(self.slot, context, len(context))
        if isinstance(self.trunk, CudaGraphTrunk):
            self.trunk.exit_model(0).draft([query], [DRAFT], [sampler], [[0.5] * DRAFT])
            return
        scores, next_scores = self.trunk.view().score_stepwise([query], [DRAFT])
        for _ in range(DRAFT - 1):
            scores = next_scores([0], sampler.pick(scores, [0.5])[0])
        sampler.pick(scores, [0.5])


def milliseconds(work: Callable[[], None], device: torch.device) -> float:
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    wait()
    began = time.perf_counter()
    work()
    wait()
    return 1e3 * (time.perf_counter() - began)


def measure(backend: LeanBackend, repeats: int) -> dict[str, Any]:
    """Return the spread of the milliseconds of every work, by way."""
    workers = {name: Way(trunk) for name, trunk in build_trunks(backend).items()}
    works: dict[str, Callable[[Way], None]] = {
        f"check of {n}": lambda way, n=n: way.check(n) for n in CHECK
    }
    for name, sampler in READINGS.items():
        works[f"draft of {DRAFT}, {name}"] = lambda way, sampler=sampler: way.draft(sampler)
    out: dict[str, Any] = {}
    for label, work in works.items():
        times: dict[str, list[float]] = {name: [] for name in workers}
        for turn in range(repeats + 4):  # recordings are made in the first ones
            for name, way in workers.items():
                ms = milliseconds(lambda work=work, way=way: work(way), backend.device)
                if turn >= 4:
                    times[name].append(ms)
        out[label] = {name: common.spread(values) for name, values in times.items()}
    return out


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument("--repeats", type=int, default=30)
    args = parser.parse_args(argv)
    if args.device.startswith("cuda") and not torch.cuda.is_available():
        print("graphs.py: error: torch sees no CUDA device here; try --device cpu", file=sys.stderr)
        return 2
    results = {}
    for name in args.models:
        backend: Backend = load(resolve(name), getattr(torch, args.dtype), args.device)
        assert isinstance(backend, LeanBackend)
        results[name] = measure(backend, args.repeats)
        for label, by_way in results[name].items():
            medians = "  ".join(f"{way} {spread['median']:.3f}" for way, spread in by_way.items())
            print(f"{name:<28} {label:<22} {medians} ms")
    data = {"environment": common.environment(), "device": args.device, "models": results}
    if args.device.startswith("cuda"):
        data["gpu"] = torch.cuda.get_device_name()
        common.write("graphs", data)
    return 0


if __name__ == "__main__":
    sys.exit(main())
