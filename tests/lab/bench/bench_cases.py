"""A result of ``hierspec bench`` made up from one number per method, in the shape of schema 1.

Every derived number follows from the made-up ones by simple arithmetic, so that tests can ask for
it; nothing here comes from a measurement. And a method that is made up as well.
"""

from __future__ import annotations

import random
import statistics
from typing import Any

from hierspec_lab.bench.records import BenchResults
from hierspec_lab.bench.results import parse

PLAIN_MS = 20.0
PROMPTS = 5
TOKENS = 40

# name → title, group, source, lossless, levels below the target (smallest first), speed-up
METHODS: dict[str, tuple[str, str, str, bool, tuple[str, ...], float]] = {
    "plain": ("plain decoding", "plain", "", True, (), 1.0),
    "planned": ("planned here", "planned", "P1", True, ("zoo:small", "zoo:trunk"), 2.6),
    "speculative": ("one draft model", "baseline", "Leviathan", True, ("zoo:trunk",), 2.3),
    "hierarchy": ("three levels", "paper", "P1", True, ("zoo:small", "zoo:trunk"), 2.5),
    "interleaved": ("interleaved", "paper", "P2", True, ("zoo:small", "zoo:trunk"), 0.8),
    "hispec": ("HiSpec (two early exits)", "paper", "P3", True, ("large@1", "large@3"), 1.1),
    "branch": ("branch resampling", "paper", "P4", True, ("zoo:trunk",), 2.35),
    "dynamic-windows": (
        "dynamic windows",
        "paper",
        "P5",
        True,
        ("zoo:small", "zoo:mid", "zoo:trunk"),
        1.9,
    ),
    "lossy": ("a lossy specimen <b>", "paper", "", False, ("zoo:small",), 1.4),
    "prompt-lookup": ("prompt lookup", "baseline", "", True, ("prompt_lookup",), 1.2),
    "hf-plain": ("transformers, plain", "peer", "", True, (), 0.5),
    "hf-assisted": ("transformers, assisted", "peer", "", True, (), 0.9),
}
SKIPPED = ("eagle", "EAGLE head", "peer", "none trained for this target: <b>train</b> & retry")


def results(temperatures: tuple[float, ...] = (0.0, 1.0), finished: bool = True) -> BenchResults:
    """What is read from the file; a fresh object each time."""
    return parse(content(temperatures, finished), "made up")


def content(temperatures: tuple[float, ...] = (0.0, 1.0), finished: bool = True) -> dict[str, Any]:
    """The file's content; a fresh object each time."""
    return {
        "schema_version": 1,
        "kind": "hierspec-bench",
        "created": "2026-01-02T03:04:05+00:00",
        "finished": finished,
        "environment": {
            "commit": "abc1234",
            "versions": {"python": "3.11.0", "hierspec": "0.1.0", "torch": "2.13.0",
                         "transformers": "5.23.0", "numpy": "2.0.0"},
            "cpu": "A CPU <of some kind>",
            "cores": 2,
            "threads": 2,
            "OMP_WAIT_POLICY": "PASSIVE",
            "accelerator": None,
            "load_average": [0.1, 0.2, 0.3],
        },
        "settings": {
            "target": "zoo:large?eps=0.2",
            "dtype": "bfloat16",
            "device": "cpu",
            "drafts": ["zoo:small", "zoo:trunk"],
            "methods": [*METHODS, SKIPPED[0]],
            "temperatures": list(temperatures),
            "max_new_tokens": TOKENS,
            "num_prompts": PROMPTS,
            "tune_prompts": 2,
            "tune_tokens": 16,
            "seed": 0,
            "batch_size": 1,
            "prompts": {"file": "some prompts.jsonl", "sha256": "0123456789abcdef" * 4},
        },
        "notes": ["zoo:large is a synthetic cost with a real distribution (eps 0.2)"],
        "floor": {"weight_bytes": 232_000_000, "bytes_per_second": 29e9, "ms_per_token": 8.0},
        "cells": [
            {
                "temperature": temperature,
                "load_average": {"before": [0.1, 0.2, 0.3], "after": [0.9, 0.8, 0.7]},
                "methods": [*(_method(n, temperature) for n in METHODS), _skipped()],
            }
            for temperature in temperatures
        ],
    }  # fmt: skip


def _skipped() -> dict[str, Any]:
    name, title, group, reason = SKIPPED
    return {
        "name": name, "title": title, "group": group, "source": "a citation", "lossless": True,
        "configuration": {}, "skipped": reason, "tuning": None, "predicted_ms_per_token": None,
        "runs": [], "summary": None,
    }  # fmt: skip


def _method(name: str, temperature: float) -> dict[str, Any]:
    title, group, source, lossless, levels, speedup = METHODS[name]
    ours = group != "peer"
    rng = random.Random(f"{name} {temperature}")
    speedup *= 1.0 if name == "plain" or temperature == 0 else 0.9
    decode = [PLAIN_MS / speedup * rng.uniform(0.9, 1.1) for _ in range(PROMPTS)]
    wall = [ms + 1.0 for ms in decode]
    overhead = [0.07 * ms for ms in decode]
    calls = [max(1, round(TOKENS / (1.0 + 2.2 * len(levels)))) for _ in decode]
    rates = [round(0.9 - 0.1 * depth, 3) for depth in range(len(levels), 0, -1)]
    runs = [
        {
            "prompt": i, "num_tokens": TOKENS, "seconds": wall[i] * TOKENS / 1e3,
            "decode_seconds": decode[i] * (TOKENS - 1) / 1e3 if ours else None,
            "ms_per_token": wall[i], "decode_ms_per_token": decode[i] if ours else None,
            "overhead_ms_per_token": overhead[i] if ours else None,
            "target_calls": calls[i] if ours else None,
            "mean_acceptance_length": (TOKENS - 1) / calls[i] if ours else None,
            "same_as_plain": (lossless or i > 0) if temperature == 0 else None,
            "logprob_per_token": -0.7 if temperature else None,
            "token_ids": list(range(TOKENS)), "levels": [], "target": {},
        }
        for i in range(PROMPTS)
    ]  # fmt: skip
    forward = statistics.mean(decode) - statistics.mean(overhead)
    shares = [*(0.2 for _ in levels), 1 - 0.2 * len(levels)]
    named = [*levels, "zoo:large?eps=0.2"]
    return {
        "name": name, "title": title, "group": group, "source": source, "lossless": lossless,
        "configuration": {
            "levels": [
                {"method": "draft_model", "model": level, "num_speculative_tokens": 4}
                for level in levels
            ],
            "verify": "block",
        },
        "skipped": None,
        "tuning": {
            "prompts": 2,
            "trials": [
                {"configuration": {"num_speculative_tokens": n}, "ms_per_token": 10.0 + n}
                for n in (4, 8)
            ],
        } if levels else None,
        "predicted_ms_per_token": statistics.mean(decode) * rng.uniform(0.93, 1.12)
        if ours and levels else None,
        "runs": runs,
        "summary": {
            "ms_per_token": spread(wall),
            "decode_ms_per_token": spread(decode) if ours else None,
            "tokens_per_second": 1e3 / statistics.mean(wall),
            "overhead_ms_per_token": spread(overhead) if ours else None,
            "mean_acceptance_length": (TOKENS - 1) * PROMPTS / sum(calls) if ours else None,
            "speedup": None if name == "plain" else ratio(speedup),
            "speedup_over_best_transformers": ratio(2 * speedup) if ours else None,
            "standardized_walltime_improvement": 1.1 * speedup if levels else None,
            "acceptance_per_position": {
                level: [rate**k for k in range(1, 9 - 2 * depth)]
                for depth, (level, rate) in enumerate(zip(levels, rates, strict=True))
            },
            "levels": [
                {"name": n, "calls_per_token": 1.0 / (i + 1), "ms_per_token": share * forward + 0.1,
                 "forward_ms_per_token": share * forward,
                 "acceptance_rate": rates[i] if i < len(rates) else None}
                for i, (n, share) in enumerate(zip(named, shares, strict=True))
            ] if ours else [],
            "same_as_plain": sum(bool(run["same_as_plain"]) for run in runs)
            if temperature == 0 else None,
            "logprob": {"mean": -0.7, "difference_from_plain": -0.002 if lossless else -0.2,
                        "standard_error": 0.004, "within_noise": lossless}
            if temperature else None,
            "peak_memory_bytes": 300 * 2**20 if ours else None,
        },
    }  # fmt: skip


def spread(values: list[float]) -> dict[str, float]:
    """S of the schema."""
    q1, median, q3 = statistics.quantiles(values, n=4, method="inclusive")
    error = statistics.stdev(values) / len(values) ** 0.5
    return {"median": median, "q1": q1, "q3": q3, "mean": statistics.mean(values),
            "standard_error": error, "n": len(values)}  # fmt: skip


def ratio(value: float) -> dict[str, float]:
    """R of the schema, around ``value``."""
    return {"median": value, "q1": 0.97 * value, "q3": 1.04 * value, "low95": 0.95 * value,
            "high95": 1.06 * value, "n": PROMPTS}  # fmt: skip
