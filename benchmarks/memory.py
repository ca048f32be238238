"""Peak memory of a three-level run above what the imports take, against weights and caches.

Loading and packing count. Runs in a process of its own, which is what ``--measure`` is.

    python benchmarks/memory.py
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import common


def rss(field: str) -> int:
    """Read ``VmRSS`` or ``VmHWM`` (the peak) of this process, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"no {field} in /proc/self/status")


def state_bytes(state: Any) -> int:
    """Return the bytes allocated for a sequence's keys, values and hidden states at the exits."""
    return sum(t.numel() * t.element_size() for t in (state.cache, *state.outputs))


def measure(target: str, dtype: str, tokens: int) -> dict[str, float]:
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM  # noqa: F401

    from hierspec import Hierarchy, HierarchyConfig
    from hierspec.zoo import registry

    torch.set_num_threads(2)
    after_imports = rss("VmRSS")
    names = ["zoo:small", "zoo:trunk"]
    levels = [
        {"method": "draft_model", "model": names[0], "num_speculative_tokens": 3},
        {
            "method": "draft_model",
            "model": names[1],
            "num_speculative_tokens": 10,
            "verify": "block",
        },
    ]
    config = HierarchyConfig.from_dict(
        {"target": {"model": target, "dtype": dtype}, "levels": levels, "verify": "block"}
    )
    hierarchy = Hierarchy.from_config(config)
    loaded = rss("VmHWM")
    generation = hierarchy.start(
        ["def fibonacci(n):\n"], max_new_tokens=tokens, ignore_eos=True, temperature=1.0, seed=0
    )
    caches = 0
    for event in generation:
        if event.index == tokens - 2:  # the caches are freed with the last token
            slots = generation.requests[0].slots.values()
            caches = sum(state_bytes(slot.state) for _, slot in slots)
    peak = rss("VmHWM")
    size = torch.tensor([], dtype=getattr(torch, dtype)).element_size()
    weights = 0
    for name in [target, *names]:
        source = registry.resolve(name)
        weights += sum(source.tensor(key).numel() for key in source.names()) * size
    allowed = weights + caches
    return {
        "rss_after_imports": after_imports,
        "peak_after_load": loaded,
        "peak": peak,
        "weights": weights,
        "caches": caches,
        "ratio": (peak - after_imports) / allowed,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", default="zoo:large?eps=0.2")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        print(json.dumps(measure(args.target, args.dtype, args.tokens)))
        return
    runs = []
    for _ in range(args.runs):
        process = subprocess.run(
            [sys.executable, __file__, "--measure", "--target", args.target,
             "--dtype", args.dtype, "--tokens", str(args.tokens)],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        runs.append(json.loads(process.stdout.splitlines()[-1]))
        print(f"ratio {runs[-1]['ratio']:.3f}")
    common.write(
        "memory",
        {
            "environment": common.environment(),
            "target": args.target,
            "dtype": args.dtype,
            "runs": runs,
            "ratio": common.spread([run["ratio"] for run in runs]),
        },
    )


if __name__ == "__main__":
    main()
