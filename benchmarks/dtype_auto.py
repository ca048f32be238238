"""What a check of some rows costs in bfloat16 and in float32, in what runs the model here.

Both data types in memory at once, in turns, one order after the other; the text behind the rows is
wound back after every call.

    python benchmarks/dtype_auto.py
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import common
import torch

from hierspec.core.context import Context
from hierspec.lm.base import Query
from hierspec.lm.load import load
from hierspec.lm.trunk.trunk import Trunk
from hierspec.zoo import registry

DTYPES = ("bfloat16", "float32")


def seconds(view: Any, slot: Any, tokens: list[int], rows: int) -> float:
    """Time one call that scores the last ``rows`` of ``tokens``, all before them cached."""
    context = Context(tokens)
    view.cache_owner.rewind(slot, len(tokens) - rows)
    began = time.perf_counter()
    view.score([Query(slot, context, len(tokens) - rows + 1)])
    return time.perf_counter() - began


def measure(target: str, rows: list[int], context: int, repeats: int) -> dict[str, Any]:
    """Return milliseconds a call by data type and rows."""
    source = registry.resolve(target) if registry.can_resolve(target) else target
    views = {name: Trunk(load(source, getattr(torch, name))).view() for name in DTYPES}
    generator = torch.Generator().manual_seed(0)
    vocab = min(view.vocab_size for view in views.values())
    tokens = torch.randint(vocab, (context + max(rows),), generator=generator).tolist()
    slots = {name: view.open() for name, view in views.items()}
    times: dict[str, dict[int, list[float]]] = {name: {n: [] for n in rows} for name in DTYPES}
    for turn in range(repeats + 1):  # the first turn warms up
        for n in rows:
            for name in DTYPES[:: 1 if turn % 2 else -1]:
                spent = seconds(views[name], slots[name], tokens[: context + n], n)
                if turn:
                    times[name][n].append(1e3 * spent)
    return {
        name: {str(n): common.spread(values) for n, values in by_rows.items()}
        for name, by_rows in times.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", default="zoo:smollm2")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 4, 8, 16])
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--name", default="dtype-auto")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    print("expected: about two minutes, half of it loading", flush=True)
    milliseconds = measure(args.target, sorted(args.rows), args.context, args.repeats)
    fewest = str(min(args.rows))
    for name, by_rows in milliseconds.items():
        base = by_rows[fewest]["median"]
        parts = [
            f"{n} rows {t['median']:.1f} ms ({t['median'] / base:.1f}×)" for n, t in by_rows.items()
        ]
        print(f"{name}: {', '.join(parts)}")
    common.write(
        args.name,
        {
            "environment": common.environment(),
            "settings": {key: value for key, value in vars(args).items() if key != "name"},
            "milliseconds": milliseconds,
        },
    )


if __name__ == "__main__":
    main()
