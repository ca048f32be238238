"""``hierspec bench`` on an accelerator: a target of billions of parameters, shipped drafts.

The target is ``zoo:large``, made wide and deep while it is loaded until it has about ``--size``
parameters: a synthetic cost with a real distribution, whose law ``--eps`` alone moves. It is
compared in bfloat16 with everything that runs beside it there: drafts, early exits, plans, and
transformers' own methods.

    python benchmarks/gpu.py --size 3B --prompts humaneval.jsonl
    python benchmarks/gpu.py --device cpu --size tiny --num-prompts 1 --tokens 8   # a dry run
"""

from __future__ import annotations

import argparse
import itertools
import math
import re
import sys
from collections.abc import Sequence
from pathlib import Path

RESULTS = Path(__file__).parent / "results" / "gpu.json"
DRAFTS = ("zoo:small", "zoo:mid", "zoo:trunk")
# Lossless, and run on the target's device: llama.cpp and vLLM choose their own.
METHODS = (
    "plain",
    "planned",
    "online",
    "hierarchy",
    "branch",
    "self-speculative",
    "hispec",
    "dynamic-windows",
    "interleaved",
    "multi-draft",
    "speculative",
    "layerskip",
    "prompt-lookup",
    "transformers",
    "transformers-assisted",
    "transformers-prompt-lookup",
    "transformers-early-exit",
)
TINY = "tiny"
WIDTHS, DEPTHS = (2, 4, 8, 16), (2, 3, 4)  # deeper than that, no model of such a width is
_UNITS = {"M": 1e6, "B": 1e9}


def parameters(widen: int, deepen: int) -> int:
    """Count the parameters of ``zoo:large`` with these options, the tied embedding once."""
    from hierspec.zoo.registry import resolve

    config = resolve(f"zoo:large?widen={widen}&deepen={deepen}").config
    d, heads = config.hidden_size, config.num_attention_heads * config.head_dim
    keys = config.num_key_value_heads * config.head_dim
    layer = d * (2 * heads + 2 * keys) + 3 * d * config.intermediate_size + 2 * d
    return config.vocab_size * d + config.num_hidden_layers * layer + d


def shape(size: str) -> tuple[int, int]:
    """Return ``widen`` and ``deepen`` that come nearest to ``"0.5B"``, ``"350M"``, … parameters.

    Raises:
        ValueError: no such size.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([MB])", size.strip(), re.IGNORECASE)
    if match is None or not float(match[1]):
        raise ValueError(f"--size {size!r} is none: say {TINY}, 350M, 0.5B, 1B, 3B, …")
    num_parameters = float(match[1]) * _UNITS[match[2].upper()]
    return min(
        itertools.product(WIDTHS, DEPTHS),
        key=lambda factors: abs(math.log(parameters(*factors) / num_parameters)),
    )


def target(size: str, eps: float) -> str:
    """Return the target's name. ``tiny`` is the trunk itself, for a dry run."""
    if size == TINY:
        return "zoo:trunk"
    widen, deepen = shape(size)
    return f"zoo:large?eps={eps:g}&widen={widen}&deepen={deepen}"


def main(argv: Sequence[str] | None = None) -> int:
    """Return 0; 2 for a mistake, or where there is no such device; 130 when interrupted."""
    options = _parser().parse_args(argv)
    import torch

    if options.device.startswith("cuda") and not torch.cuda.is_available():
        return _refuse(
            "torch sees no CUDA device here; --device cpu --size tiny tries the benchmark itself"
        )
    from hierspec.cli import run

    try:
        name = target(options.size, options.eps)
    except ValueError as error:
        return _refuse(" ".join(str(error).split()))
    if not options.json:
        print(f"target {name}", file=sys.stderr)
    return run(["bench", "--target", name, *_bench_arguments(options)])


def _bench_arguments(options: argparse.Namespace) -> list[str]:
    """Return these options as ``hierspec bench`` takes them."""
    arguments = {
        "draft": DRAFTS[:2] if options.size == TINY else DRAFTS,
        "methods": options.methods,
        "prompts": [options.prompts] if options.prompts else [],
        "num-prompts": [options.num_prompts],
        "tune-prompts": [options.tune_prompts],
        "tune-tokens": [min(64, options.tokens)],
        "max-new-tokens": [options.tokens],
        "temperature": options.temperature or [],
        "seed": [options.seed],
        "dtype": [options.dtype],
        "device": [options.device],
        "output": [options.output],
    }
    argv = [f"--{name}={value}" for name, values in arguments.items() for value in values]
    flags = {"--overwrite": options.overwrite, "--json": options.json}
    return [*argv, *(flag for flag, is_set in flags.items() if is_set)]


def _refuse(text: str) -> int:
    print(f"gpu.py: error: {text}", file=sys.stderr)
    return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    add = parser.add_argument
    add("--size", default="1B", help=f"of the target: {TINY}, 0.5B, 1B, 3B, … parameters")
    add("--eps", type=float, default=0.2, help="how far the target's law is from zoo:trunk's")
    add("--device", default="cuda")
    add("--dtype", default="bfloat16")
    add("--methods", nargs="+", default=METHODS, help="names or groups of hierspec bench --list")
    add("--prompts", type=Path, help="a .jsonl file; default: some built in")
    add("--num-prompts", type=int, default=12)
    add("--tune-prompts", type=int, default=4)
    add("--tokens", type=int, default=128, help="that every method writes per prompt")
    add("--temperature", type=float, action="append", help="repeatable; default: 0 and 1")
    add("--seed", type=int, default=0)
    add("-o", "--output", type=Path, default=RESULTS)
    add("--overwrite", action="store_true", help="measure anew where --output is there")
    add("--json", action="store_true", help="print the whole results object, no table")
    return parser


if __name__ == "__main__":
    sys.exit(main())
