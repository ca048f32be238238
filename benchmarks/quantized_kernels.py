"""What a step of a target and of its quantized copies costs, by rows: oneDNN, FBGEMM, kernels.

All take turns on every number of rows, all layers and the head, along a text of a given length that
the target has written at temperature 1. ``kernels, own weights`` is what runs by default.
Run it alone on the machine.

    python benchmarks/quantized_kernels.py
    python benchmarks/quantized_kernels.py --target zoo:smollm2-sibling --name kernels-sibling
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import common
import torch

from hierspec.lm.backend import Span
from hierspec.lm.lean import quantized
from hierspec.lm.load import load
from hierspec.lm.native import library
from hierspec.zoo import registry

_FIRST = 100  # a token


def write_text(backend: Any, length: int) -> torch.Tensor:
    """Let the target write a text: scores on random tokens are flatter than those on a text."""
    generator, ids = torch.Generator().manual_seed(0), [_FIRST]
    cache = backend.new_cache(length)
    while len(ids) < length:
        spans = [Span(cache, len(ids) - 1, 1)]
        h = backend.layers(
            backend.embed(torch.tensor(ids[-1:]), spans), 0, backend.num_layers, spans
        )
        probs = torch.softmax(backend.head(h)[0], 0)
        ids.append(int(torch.multinomial(probs, 1, generator=generator)))
    return torch.tensor(ids)


def step(backend: Any, cache: Any, text: torch.Tensor, start: int, rows: int) -> float:
    """Return the milliseconds of a call for ``rows`` tokens from position ``start`` on."""
    ids, spans = text[start : start + rows], [Span(cache, start, rows)]
    began = time.perf_counter()
    h = backend.layers(backend.embed(ids, spans), 0, backend.num_layers, spans)
    backend.head(h)
    return (time.perf_counter() - began) * 1e3


def load_backends(target: str, dtype: str) -> dict[str, Any]:
    """Load the target and the copies that this machine supports."""
    path = registry.resolve(target) if registry.can_resolve(target) else target
    backend: Any = load(path, dtype=getattr(torch, dtype), backend="lean")
    backends = {"target": backend}
    if quantized.fbgemm_works():
        backends["fbgemm"] = quantized.fbgemm_copy(backend)
    if library.load() is not None:
        backends["kernels, own weights"] = load(
            path, dtype=getattr(torch, dtype), backend="deterministic"
        )
        native = backends["kernels, own weights"]
        for bits in (8, 6, 5, 4):
            backends[f"kernels, {bits} bits"] = quantized.quantize(native, bits)
    return backends


@torch.inference_mode()
def measure(backends: dict[str, Any], rows: list[int], context: int, repeats: int) -> Any:
    """Return milliseconds a call by rows and backend."""
    text = write_text(backends["target"], context + max(rows))
    cache = backends["target"].new_cache(len(text))
    step(backends["target"], cache, text, 0, context)
    times = {n: {name: [] for name in backends} for n in rows}
    for turn in range(repeats + 1):  # the first turn warms up
        for n in rows:
            for name, backend in list(backends.items())[:: 1 if turn % 2 else -1]:
                spent = step(backend, cache, text, context, n)
                if turn:
                    times[n][name].append(spent)
    return {
        str(n): {name: common.spread(values) for name, values in by_road.items()}
        for n, by_road in times.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", default="zoo:smollm2")
    parser.add_argument("--dtype", default="bfloat16", help="of the target: bfloat16 or float32")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 2, 4, 8, 12, 16])
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--name", default="kernels", help="of the result file")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    print("expected: about a minute", flush=True)
    backends = load_backends(args.target, args.dtype)
    milliseconds = measure(backends, sorted(args.rows), args.context, args.repeats)
    for n, by_road in milliseconds.items():
        print(
            f"{n} rows: " + ", ".join(f"{name} {t['median']:.2f} ms" for name, t in by_road.items())
        )
    common.write(
        args.name,
        {
            "environment": common.environment(),
            "settings": vars(args),
            "roads": {name: backend.fast_path for name, backend in backends.items()},
            "milliseconds": milliseconds,
        },
    )


if __name__ == "__main__":
    main()
