"""How fast is a forward: transformers' generate, our loop over its layers, and the lean forward.

    python benchmarks/lean_vs_hf.py [--threads 2] [--rounds 15]

Random weights (a forward's time does not depend on them), one process, variants interleaved so
that a noisy neighbour hits all alike. A decode step is what the engine does: a query for one more
token, through the trunk, to float32 scores. ``generate`` is timed as the difference of a long and
a short run, without its prefill. Prints a table and writes JSON to benchmarks/results/.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import common  # first: it sets the environment torch reads
import torch
import transformers

from hierspec.core.context import Context
from hierspec.lm.base import Query
from hierspec.lm.hf.decoder import HFBackend
from hierspec.lm.lean.decoder import LeanBackend
from hierspec.lm.trunk.trunk import Trunk

MODELS = {
    "large": {"hidden_size": 768, "layers": 16, "intermediate_size": 2048, "heads": 12},
    "trunk": {"hidden_size": 384, "layers": 8, "intermediate_size": 1024, "heads": 6},
    "small": {"hidden_size": 192, "layers": 2, "intermediate_size": 512, "heads": 6},
}
VOCAB, CONTEXT = 4096, 300


class InMemory:
    """A transformers model as a weight source."""

    tokenizer_path = None

    def __init__(self, model: Any, name: str) -> None:
        self.weights, self.config, self.name = dict(model.named_parameters()), model.config, name

    def names(self) -> list[str]:
        return list(self.weights)

    def tensor(self, name: str) -> torch.Tensor:
        return self.weights[name].detach()


def hf_model(name: str, dtype: torch.dtype) -> Any:
    size = MODELS[name]
    config = transformers.LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=size["hidden_size"],
        intermediate_size=size["intermediate_size"],
        num_hidden_layers=size["layers"],
        num_attention_heads=size["heads"],
        num_key_value_heads=size["heads"],
        max_position_embeddings=2048,
        tie_word_embeddings=True,
    )
    return transformers.LlamaForCausalLM(config).to(dtype).eval()


def stepper(trunk: Trunk, tokens: list[int]) -> Callable[[int], float]:
    """Return a function that times a call for n more tokens at context ``len(tokens)``."""
    model = trunk.view()
    slot = model.open()
    context = Context(tokens)
    model.score([Query(slot, context, len(tokens))])
    draft = 0

    def step(n: int) -> float:
        nonlocal draft
        # Tokens never seen there before, so that the trunk has to compute all n.
        draft += 1
        pending = tuple((draft + 17 * i) % VOCAB for i in range(n))
        query = Query(slot, Context(tokens, pending), len(tokens) + 1)
        began = time.perf_counter()
        model.score([query])
        return time.perf_counter() - began

    return step


def generate_seconds(model: Any, ids: torch.Tensor, short: int, long: int) -> float:
    """Return the seconds a token takes in ``model.generate``, greedy, without its prefill."""
    mask = torch.ones_like(ids)

    def run(n: int) -> float:
        began = time.perf_counter()
        model.generate(
            ids,
            attention_mask=mask,
            min_new_tokens=n,
            max_new_tokens=n,
            do_sample=False,
            pad_token_id=0,
        )
        return time.perf_counter() - began

    return (run(long) - run(short)) / (long - short)


def measure(name: str, dtype: torch.dtype, rounds: int, counts: list[int]) -> dict[str, Any]:
    model = hf_model(name, dtype)
    tokens = torch.randint(VOCAB, (CONTEXT,), generator=torch.Generator().manual_seed(0)).tolist()
    lean = LeanBackend(InMemory(model, name), dtype)
    steps = {
        "hf": stepper(Trunk(HFBackend(model, name)), tokens),
        "lean": stepper(Trunk(lean), tokens),
    }
    times: dict[str, list[float]] = {"generate": []}
    ids = torch.tensor([tokens])
    for round_ in range(-2, rounds):
        seconds = generate_seconds(model, ids, 2, 10)
        if round_ >= 0:
            times["generate"].append(seconds)
        for kind, step in steps.items():
            for n in counts:
                values = [step(n) for _ in range(4)]
                if round_ >= 0:
                    times.setdefault(f"{kind} n={n}", []).append(statistics.median(values))
    parameters = sum(p.numel() for p in model.parameters())
    out: dict[str, Any] = {
        "model": name,
        "dtype": str(dtype).removeprefix("torch."),
        "parameters": parameters,
        "context": CONTEXT,
        "fast_path": lean.fast_path,
        "weight_bytes_ms_at_37GBps": parameters * dtype.itemsize / 37e9 * 1e3,
        "milliseconds": {
            key: common.spread([1e3 * value for value in values]) | {"min": 1e3 * min(values)}
            for key, values in times.items()
        },
    }
    ms = {key: value["median"] for key, value in out["milliseconds"].items()}
    out["speedup_over_generate"] = common.ratio(times["generate"], times["lean n=1"])
    out["cost_of_n"] = {str(n): ms[f"lean n={n}"] / ms["lean n=1"] for n in counts}
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--dtypes", nargs="+", default=["bfloat16", "float32"])
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    transformers.logging.set_verbosity_error()
    results = []
    for name in args.models:
        for dtype in args.dtypes:
            result = measure(name, getattr(torch, dtype), args.rounds, [1, 2, 4, 8, 12])
            results.append(result)
            print(f"\n{name} {dtype}, {result['parameters'] / 1e6:.1f} M: {result['fast_path']}")
            for key, value in result["milliseconds"].items():
                print(f"  {key:10s} {value['median']:8.3f} ms  (min {value['min']:.3f})")
            speedup = result["speedup_over_generate"]["median"]
            print(f"  lean over generate: {speedup:.2f}x", flush=True)
    common.write(
        "lean_vs_hf",
        {"environment": common.environment(), "rounds": args.rounds, "results": results},
    )


if __name__ == "__main__":
    main()
