"""A loaded model, decoded by transformers' ``generate`` and by ours: milliseconds a token.

    python benchmarks/loaded.py [--models qwen3-57m smollm2 llama-1.2b] [--prompts 8] [--tokens 64]

Every way continues the same prompts by the same model object, one prompt after the other and the
ways in turn, so that a noisy neighbour hits all alike; whole calls are timed, prompts included.
``qwen3-57m`` and ``llama-1.2b`` have random weights: plain decoding costs the same as with any, but
their text repeats itself, which flatters drafts. Prints a table and, with ``--name``, writes JSON
to benchmarks/results/.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import common  # first: it sets the environment torch reads
import torch
import transformers
from random_models import CONFIGS, open_source

import hierspec
from hierspec.config.checkpoints import load_tokenizer
from hierspec.lm.weights import build_hf_model
from hierspec.profiling.texts import chats
from hierspec.zoo import registry

SMOLLM2 = "smollm2"
PROMPT = 48  # tokens of a prompt to a random model


def open_model(name: str, dtype: torch.dtype, count: int) -> tuple[Any, list[list[int]]]:
    """Return a transformers model and prompts for it."""
    if name == SMOLLM2:
        source = registry.resolve("zoo:smollm2")
        prompts = [list(ids) for ids in chats(load_tokenizer(source))[:count]]
        return build_hf_model(source, dtype), prompts
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(CONFIGS[name].vocab_size, (count, PROMPT), generator=generator)
    return build_hf_model(open_source(name), dtype), ids.tolist()


def ways(model: Any, tokens: int) -> dict[str, Callable[[list[int]], list[int]]]:
    options: dict[str, Any] = {
        "max_new_tokens": tokens, "do_sample": False, "eos_token_id": None, "pad_token_id": 0,
    }  # fmt: skip

    def in_generate(**more: Any) -> Callable[[list[int]], list[int]]:
        def run(prompt: list[int]) -> list[int]:
            ids = torch.tensor([prompt])
            out = model.generate(ids, attention_mask=torch.ones_like(ids), **options, **more)
            return out[0, len(prompt) :].tolist()

        return run

    def in_hierarchy(target: Any, drafts: Any) -> Callable[[list[int]], list[int]]:
        hierarchy = hierspec.Hierarchy(target, drafts=drafts)

        def run(prompt: list[int]) -> list[int]:
            result = hierarchy.generate(prompt, max_new_tokens=tokens, ignore_eos=True)
            return list(result.token_ids)

        return run

    ours = {"custom_generate": hierspec.custom_generate}
    own_layers = hierspec.TargetConfig(model=model, backend="hf")
    return {
        "generate": in_generate(),
        "custom_generate": in_generate(**ours),
        "custom_generate, suffix": in_generate(**ours, drafts=["suffix"]),
        "Hierarchy, plain": in_hierarchy(model, []),
        "own layers, plain": in_hierarchy(own_layers, []),
        "own layers, suffix": in_hierarchy(own_layers, ["suffix"]),
    }


def measure(name: str, dtype: torch.dtype, count: int, tokens: int, only: list[str] | None) -> Any:
    model, prompts = open_model(name, dtype, count)
    began = time.perf_counter()
    runs = ways(model, tokens)
    prepared = time.perf_counter() - began
    runs = {way: run for way, run in runs.items() if only is None or way in only}
    milliseconds: dict[str, list[float]] = {way: [] for way in runs}
    texts: dict[str, list[list[int]]] = {way: [] for way in runs}
    for i, prompt in enumerate([prompts[0], *prompts]):
        for way, run in runs.items():
            began = time.perf_counter()
            text = run(prompt)
            if i:  # the first round compiles and packs
                milliseconds[way].append(1e3 * (time.perf_counter() - began) / tokens)
                texts[way].append(text)
    base = milliseconds["generate"]
    return {
        "model": name,
        "dtype": str(dtype).removeprefix("torch."),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "prepare_seconds": prepared,
        "prompts": len(prompts),
        "tokens": tokens,
        "ways": {
            way: {
                "ms_per_token": common.spread(values),
                "speedup": common.ratio(base, values),
                "texts_equal": sum(
                    a == b for a, b in zip(texts[way], texts["generate"], strict=True)
                ),
            }
            for way, values in milliseconds.items()
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=[*CONFIGS, SMOLLM2], default=["qwen3-57m"])
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--ways", nargs="+", help="default: all; generate is always among them")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--name", help="of a result file to write")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    transformers.logging.set_verbosity_error()
    only = args.ways and ["generate", *args.ways]
    results = []
    for name in args.models:
        result = measure(name, getattr(torch, args.dtype), args.prompts, args.tokens, only)
        results.append(result)
        print(f"\n{name}, {result['parameters'] / 1e6:.1f} M, {result['dtype']}")
        for way, values in result["ways"].items():
            ms, speedup = values["ms_per_token"], values["speedup"]["median"]
            equal = f"{values['texts_equal']} of {args.prompts} texts equal"
            print(f"  {way:26} {ms['median']:8.2f} ms  {speedup:5.2f}x  {equal}", flush=True)
    if args.name:
        common.write(args.name, {"environment": common.environment(), "results": results})


if __name__ == "__main__":
    main()
