"""Tokens per second on the shipped family, all methods interleaved in one process.

transformers' generate, our plain decoding, the best single draft and the best three-level
hierarchy, on ``zoo:large`` (a synthetic cost with a real distribution). The two
speculative methods are tuned on other prompts than those measured, with as many trials each.

    python benchmarks/speed.py --prompts humaneval.jsonl
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from pathlib import Path
from typing import Any

import common
import torch

from hierspec import Hierarchy, HierarchyConfig, SamplingParams
from hierspec.config.build import build
from hierspec.config.checkpoints import Loaded
from hierspec.lm.weights import build_hf_model
from hierspec.zoo import registry


def single(draft: str, budget: int, verify: str) -> dict[str, Any]:
    levels = [{"method": "draft_model", "model": draft, "num_speculative_tokens": budget}]
    return {"levels": levels, "verify": verify}


def three(low: str, low_budget: int, mid: str, mid_budget: int, verify: str) -> dict[str, Any]:
    first: dict[str, Any] = {
        "method": "draft_model",
        "model": low,
        "num_speculative_tokens": low_budget,
    }
    if low == "ngram_table":
        first = {"method": "ngram_table", "num_speculative_tokens": low_budget}
    second = {
        "method": "draft_model",
        "model": mid,
        "num_speculative_tokens": mid_budget,
        "verify": verify,
    }
    return {"levels": [first, second], "verify": verify}


def grids(verify: str) -> dict[str, list[dict[str, Any]]]:
    """Return as many candidates for one draft as for three levels."""
    single_drafts = [
        *(single("zoo:trunk", n, verify) for n in (4, 6, 8, 10, 12, 15)),
        *(single("zoo:mid", n, verify) for n in (3, 5, 7, 9)),
        *(single("zoo:small", n, verify) for n in (2, 4)),
    ]
    three_levels = [
        *(
            three("zoo:small", low, "zoo:trunk", mid, verify)
            for low, mid in itertools.product((2, 3, 4), (8, 12, 16))
        ),
        *(three("zoo:mid", low, "zoo:trunk", mid, verify) for low, mid in ((4, 12), (6, 12))),
        three("ngram_table", 2, "zoo:trunk", 12, verify),
    ]
    assert len(single_drafts) == len(three_levels)
    return {"single_draft": single_drafts, "three_levels": three_levels}


class Bench:
    """Methods over one set of weights. Models are loaded once and shared by all candidates."""

    def __init__(self, target: str, dtype: str, tokens: int) -> None:
        self.target, self.dtype, self.tokens = target, dtype, tokens
        self.cache: dict[str, Hierarchy] = {}
        self.loaded = Loaded()
        source = registry.resolve(target)
        self.hf = build_hf_model(source, getattr(torch, dtype)).eval()
        self.hf.generation_config.eos_token_id = None
        self.hf.generation_config.pad_token_id = 0

    def hierarchy(self, config: dict[str, Any]) -> Hierarchy:
        key = json.dumps(config)
        if key not in self.cache:
            full_config = HierarchyConfig.from_dict(
                {"target": {"model": self.target, "dtype": self.dtype}, **config}
            )
            self.cache[key] = Hierarchy(build(full_config, self.loaded))
        return self.cache[key]

    def ours(self, config: dict[str, Any], prompt: str, temperature: float, seed: int) -> dict:
        hierarchy = self.hierarchy(config)
        began = time.perf_counter()
        generation = hierarchy.start(
            [prompt],
            max_new_tokens=self.tokens,
            seed=seed,
            ignore_eos=True,
            sampling=SamplingParams(temperature=temperature),
        )
        for _ in generation:
            pass
        wall = time.perf_counter() - began
        result = generation.results()[0]
        forward = sum(s.forward_seconds for s in generation.runtime.metrics.levels.values())
        return {
            "ms_per_token": wall * 1e3 / result.num_tokens,
            "decode_ms_per_token": result.decode_seconds * 1e3 / (result.num_tokens - 1),
            # metrics restart after the prefill, so both sides cover decoding only
            "overhead_ms_per_token": (result.decode_seconds - forward)
            * 1e3
            / (result.num_tokens - 1),
            "mean_acceptance_length": result.mean_acceptance_length,
            "token_ids": result.token_ids,
        }

    def transformers(self, prompt: str, temperature: float, seed: int) -> dict:
        tokenizer = self.hierarchy({}).tokenizer
        inputs = tokenizer(prompt, return_tensors="pt")
        torch.manual_seed(seed)
        sampling: dict[str, Any] = {"do_sample": False}
        if temperature:
            sampling = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
        began = time.perf_counter()
        with torch.inference_mode():
            out = self.hf.generate(
                input_ids=inputs["input_ids"],
                attention_mask=inputs["attention_mask"],
                max_new_tokens=self.tokens,
                **sampling,
            )
        wall = time.perf_counter() - began
        new = out[0, inputs["input_ids"].shape[1] :].tolist()
        return {"ms_per_token": wall * 1e3 / len(new), "token_ids": tuple(new)}


def tune(
    bench: Bench, candidates: list[dict], prompts: list[str], temperature: float
) -> tuple[dict, list[dict]]:
    """Return the fastest candidate on the tuning prompts, and all trials."""
    for config in candidates:
        bench.ours(config, prompts[0], temperature, 0)  # warm
    times: list[list[float]] = [[] for _ in candidates]
    for seed, prompt in enumerate(prompts):
        for i, config in enumerate(candidates):
            times[i].append(bench.ours(config, prompt, temperature, seed)["ms_per_token"])
    trials = [
        {"config": config, "ms_per_token": common.spread(t)["median"]}
        for config, t in zip(candidates, times, strict=True)
    ]
    return min(trials, key=lambda trial: trial["ms_per_token"])["config"], trials


def measure(
    bench: Bench, methods: dict[str, Any], prompts: list[str], temperature: float
) -> dict[str, Any]:
    runs: dict[str, list[dict]] = {name: [] for name in methods}
    for run in methods.values():
        run(prompts[0], temperature, 0)
    names = list(methods)
    for seed, prompt in enumerate(prompts):
        for name in names[seed % len(names) :] + names[: seed % len(names)]:
            runs[name].append(methods[name](prompt, temperature, seed))
        print(f"  temperature {temperature}: prompt {seed + 1}/{len(prompts)}", flush=True)
    out: dict[str, Any] = {}
    for name, results in runs.items():
        keys = [key for key in results[0] if key != "token_ids"]
        out[name] = {key: common.spread([r[key] for r in results]) for key in keys}
        out[name]["tokens_per_second"] = 1e3 / out[name]["ms_per_token"]["median"]
        if temperature == 0:
            plain = runs["plain"]
            out[name]["same_tokens_as_plain"] = sum(
                a["token_ids"] == b["token_ids"] for a, b in zip(results, plain, strict=True)
            )
    ms = {name: [r["ms_per_token"] for r in results] for name, results in runs.items()}
    out["ratios"] = {
        "plain over transformers": common.ratio(ms["transformers"], ms["plain"]),
        "single_draft over plain": common.ratio(ms["plain"], ms["single_draft"]),
        "three_levels over plain": common.ratio(ms["plain"], ms["three_levels"]),
        "three_levels over single_draft": common.ratio(ms["single_draft"], ms["three_levels"]),
        "three_levels over transformers": common.ratio(ms["transformers"], ms["three_levels"]),
    }
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--target", default="zoo:large?eps=0.2")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--num-prompts", type=int, default=40)
    parser.add_argument("--tune-prompts", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 1.0])
    parser.add_argument("--name", default="speed")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    prompts, identity = common.read_prompts(args.prompts)
    measured = prompts[: args.num_prompts]
    tuning = prompts[args.num_prompts :][: args.tune_prompts]
    bench = Bench(args.target, args.dtype, args.tokens)
    report: dict[str, Any] = {
        "environment": common.environment(prompts=identity),
        "target": args.target,
        "note": "zoo:large is a synthetic cost with a real distribution",
        "dtype": args.dtype,
        "tokens": args.tokens,
        "temperatures": {},
    }
    for temperature in args.temperatures:
        best, trials = {}, {}
        for name, candidates in grids("block").items():
            print(f"tuning {name} at temperature {temperature}", flush=True)
            best[name], trials[name] = tune(bench, candidates, tuning, temperature)
            print("  best:", json.dumps(best[name]), flush=True)
        methods: dict[str, Any] = {
            "transformers": bench.transformers,
            "plain": lambda p, t, s: bench.ours({}, p, t, s),
            **{
                name: (lambda p, t, s, config=config: bench.ours(config, p, t, s))
                for name, config in best.items()
            },
        }
        cell = measure(bench, methods, measured, temperature)
        report["temperatures"][str(temperature)] = {"best": best, "tuning": trials, **cell}
        for name, value in cell["ratios"].items():
            print(f"  {name}: {value['median']:.2f} [{value['low95']:.2f}, {value['high95']:.2f}]")
    report["environment"]["load_average_after"] = common.environment()["load_average"]
    common.write(args.name, report)


if __name__ == "__main__":
    main()
