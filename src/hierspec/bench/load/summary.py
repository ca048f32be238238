"""Measurements under load, summed up in the fields of ``vllm bench serve``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .client import RequestOutcome
from .counters import counted
from .run import LoadRun

METRICS = {
    "ttft": "time to first token",
    "tpot": "time per output token after it",
    "itl": "between pieces of text",
    "e2el": "whole request",
}


def summary(run: LoadRun, goodput: Mapping[str, float] | None = None) -> dict[str, Any]:
    """Return the fields of vLLM's result file; latencies in milliseconds.

    Requests that failed count in ``failed`` alone. ``itl`` is the gap between pieces of a stream,
    however many tokens a piece holds; ``tpot`` is per token.

    Args:
        goodput: limits of a good request, milliseconds by metric (``ttft``, ``tpot``, ``e2el``).
    """
    good = [one for one in run.outcomes if one is not None and not one.error]
    outputs = sum(one.num_output_tokens for one in good)
    inputs = sum(one.num_input_tokens for one in good)
    times = samples(good)
    seconds = run.duration or float("inf")
    result: dict[str, Any] = {
        "duration": run.duration,
        "completed": len(good),
        "failed": len(run.outcomes) - len(good),
        "total_input_tokens": inputs,
        "total_output_tokens": outputs,
        "request_throughput": len(good) / seconds,
        "output_throughput": outputs / seconds,
        "total_token_throughput": (inputs + outputs) / seconds,
        "max_output_tokens_per_s": busiest_second(good),
        "max_concurrent_requests": run.max_concurrent_requests,
        "output_tokens_counted_by": "server" if all(one.counted for one in good) else "pieces",
    }
    if goodput:
        result["request_goodput"] = sum(_is_good(one, goodput) for one in good) / seconds
    for name in METRICS:
        values = np.asarray(times[name]) * 1e3
        some = values.size > 0
        result[f"mean_{name}_ms"] = float(values.mean()) if some else 0.0
        result[f"median_{name}_ms"] = float(np.median(values)) if some else 0.0
        result[f"std_{name}_ms"] = float(values.std()) if some else 0.0
        result[f"p99_{name}_ms"] = float(np.percentile(values, 99)) if some else 0.0
    return {**result, **counted(run.before, run.after), "error_counts": errors(run.outcomes)}


def details(outcomes: Sequence[RequestOutcome | None]) -> dict[str, Any]:
    """Return vLLM's lists over all requests: lengths in tokens, times in seconds."""
    sent = [RequestOutcome(0.0, error="never sent") if one is None else one for one in outcomes]
    return {
        "input_lens": [one.num_input_tokens for one in sent],
        "output_lens": [one.num_output_tokens for one in sent],
        "ttfts": [one.ttft for one in sent],
        "itls": [one.itls for one in sent],
        "generated_texts": [one.text for one in sent],
        "errors": [one.error for one in sent],
    }


def errors(outcomes: Sequence[RequestOutcome | None]) -> dict[str, int]:
    """Count each error, most frequent first."""
    found = ["given up at the time limit" if one is None else one.error for one in outcomes]
    return dict(Counter(error for error in found if error).most_common())


def samples(outcomes: Sequence[RequestOutcome]) -> dict[str, list[float]]:
    """Collect each metric's values in seconds: one per request (``itl``: one per gap)."""
    return {
        "ttft": [one.ttft for one in outcomes],
        "tpot": [_tpot(one) for one in outcomes if one.num_output_tokens > 1],
        "itl": [gap for one in outcomes for gap in one.itls],
        "e2el": [one.latency for one in outcomes],
    }


def busiest_second(outcomes: Sequence[RequestOutcome]) -> float:
    """Return the most tokens that arrived within one second of the run.

    Each piece of a request counts an equal share of the request's tokens.
    """
    shares: dict[int, float] = {}
    first = min((one.started for one in outcomes), default=0.0)
    for one in outcomes:
        for at in one.arrivals:
            second = int(at - first)
            share = one.num_output_tokens / len(one.arrivals)
            shares[second] = shares.get(second, 0.0) + share
    return max(shares.values(), default=0.0)


def _tpot(outcome: RequestOutcome) -> float:
    return (outcome.latency - outcome.ttft) / (outcome.num_output_tokens - 1)


def _is_good(outcome: RequestOutcome, limits: Mapping[str, float]) -> bool:
    tpot = _tpot(outcome) if outcome.num_output_tokens > 1 else 0.0
    found = {"ttft": outcome.ttft, "tpot": tpot, "e2el": outcome.latency}
    return all(1e3 * found[name] <= limit for name, limit in limits.items())
