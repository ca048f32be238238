"""Measurements under load, summed up in the fields of ``vllm bench serve``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .client import RequestOutcome
from .counters import spec_decode_fields
from .run import LoadRun

METRICS = {
    "ttft": "time to first token",
    "tpot": "time per output token after the first",
    "itl": "time between pieces of text",
    "e2el": "time of the whole request",
}

UNFINISHED = "given up at the time limit"  # the error of a request without an outcome


def summary(run: LoadRun, goodput: Mapping[str, float] | None = None) -> dict[str, Any]:
    """Return the fields of vLLM's result file; latencies in milliseconds.

    Requests that failed count in ``failed`` alone. ``itl`` is the gap between pieces of a stream,
    however many tokens a piece holds; ``tpot`` is per token.

    Args:
        goodput: latency limits, milliseconds by metric (``ttft``, ``tpot``, ``e2el``);
            ``request_goodput`` is how many requests a second are within all of them.
    """
    completed = [outcome for outcome in run.outcomes if outcome is not None and not outcome.error]
    outputs = sum(outcome.num_output_tokens for outcome in completed)
    inputs = sum(outcome.num_input_tokens for outcome in completed)
    times = samples(completed)
    seconds = run.duration or float("inf")
    result: dict[str, Any] = {
        "duration": run.duration,
        "completed": len(completed),
        "failed": len(run.outcomes) - len(completed),
        "total_input_tokens": inputs,
        "total_output_tokens": outputs,
        "request_throughput": len(completed) / seconds,
        "output_throughput": outputs / seconds,
        "total_token_throughput": (inputs + outputs) / seconds,
        "max_output_tokens_per_s": busiest_second(completed),
        "max_concurrent_requests": run.max_concurrent_requests,
        "output_tokens_counted_by": "server"
        if all(outcome.counted for outcome in completed)
        else "pieces",
    }
    if goodput:
        num_within_limits = sum(_is_within(goodput, outcome) for outcome in completed)
        result["request_goodput"] = num_within_limits / seconds
    for name in METRICS:
        values = np.asarray(times[name]) * 1e3
        has_values = values.size > 0
        result[f"mean_{name}_ms"] = float(values.mean()) if has_values else 0.0
        result[f"median_{name}_ms"] = float(np.median(values)) if has_values else 0.0
        result[f"std_{name}_ms"] = float(values.std()) if has_values else 0.0
        result[f"p99_{name}_ms"] = float(np.percentile(values, 99)) if has_values else 0.0
    result |= spec_decode_fields(run.before, run.after)
    return {**result, "error_counts": errors(run.outcomes)}


def details(outcomes: Sequence[RequestOutcome | None]) -> dict[str, Any]:
    """Return vLLM's lists over all requests: lengths in tokens, times in seconds."""
    requests = [
        RequestOutcome(0.0, error=UNFINISHED) if outcome is None else outcome
        for outcome in outcomes
    ]
    return {
        "input_lens": [outcome.num_input_tokens for outcome in requests],
        "output_lens": [outcome.num_output_tokens for outcome in requests],
        "ttfts": [outcome.ttft for outcome in requests],
        "itls": [outcome.itls for outcome in requests],
        "generated_texts": [outcome.text for outcome in requests],
        "errors": [outcome.error for outcome in requests],
    }


def errors(outcomes: Sequence[RequestOutcome | None]) -> dict[str, int]:
    """Count each error, most frequent first."""
    messages = [UNFINISHED if outcome is None else outcome.error for outcome in outcomes]
    return dict(Counter(message for message in messages if message).most_common())


def samples(outcomes: Sequence[RequestOutcome]) -> dict[str, list[float]]:
    """Collect each metric's values in seconds: one per request (``itl``: one per gap)."""
    return {
        "ttft": [outcome.ttft for outcome in outcomes],
        "tpot": [_tpot(outcome) for outcome in outcomes if outcome.num_output_tokens > 1],
        "itl": [gap for outcome in outcomes for gap in outcome.itls],
        "e2el": [outcome.latency for outcome in outcomes],
    }


def busiest_second(outcomes: Sequence[RequestOutcome]) -> float:
    """Return the most tokens that arrived within one second of the run.

    Each piece of a request counts an equal share of the request's tokens.
    """
    shares: dict[int, float] = {}
    first = min((outcome.started for outcome in outcomes), default=0.0)
    for outcome in outcomes:
        for arrival in outcome.arrivals:
            second = int(arrival - first)
            share = outcome.num_output_tokens / len(outcome.arrivals)
            shares[second] = shares.get(second, 0.0) + share
    return max(shares.values(), default=0.0)


def _tpot(outcome: RequestOutcome) -> float:
    return (outcome.latency - outcome.ttft) / (outcome.num_output_tokens - 1)


def _is_within(limits: Mapping[str, float], outcome: RequestOutcome) -> bool:
    tpot = _tpot(outcome) if outcome.num_output_tokens > 1 else 0.0
    latencies = {"ttft": outcome.ttft, "tpot": tpot, "e2el": outcome.latency}
    return all(1e3 * latencies[name] <= limit for name, limit in limits.items())
