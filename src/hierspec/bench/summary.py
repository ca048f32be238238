"""Statistics: of values, of paired ratios, and of a method's runs."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Mapping, Sequence
from typing import Any


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median and quartiles."""
    ordered = sorted(values)
    if len(ordered) < 2:
        return {"median": ordered[0], "q1": ordered[0], "q3": ordered[0], "n": len(ordered)}
    q1, median, q3 = statistics.quantiles(ordered, n=4, method="inclusive")
    return {"median": median, "q1": q1, "q3": q3, "n": len(ordered)}


def ratio(numerators: Sequence[float], denominators: Sequence[float]) -> dict[str, float]:
    """Paired ratios: median, quartiles and a 95 % bootstrap interval of the median."""
    ratios = [a / b for a, b in zip(numerators, denominators, strict=True)]
    rng = random.Random(0)
    medians = sorted(statistics.median(rng.choices(ratios, k=len(ratios))) for _ in range(2000))
    return {**spread(ratios), "low95": medians[50], "high95": medians[1949]}


def described(values: Sequence[float]) -> dict[str, float | None]:
    """:func:`spread`, the mean and its standard error (``None`` for a single value)."""
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
    return {**spread(values), "mean": statistics.fmean(values), "standard_error": error}


def deviation(differences: Sequence[float]) -> float:
    """How many standard errors a mean lies from 0, as a normal deviate of the same rarity.

    Few values make Student's t, which has heavy tails: it is mapped to a normal deviate with
    Wallace's approximation (1959), z = (8ν + 1)/(8ν + 3) · √(ν ln(1 + t²/ν)), ν = n − 1, good to
    about a hundredth, so that one threshold serves any number of prompts.
    """
    mean, freedom = statistics.fmean(differences), len(differences) - 1
    if mean == 0.0 or freedom < 1:
        return 0.0
    error = statistics.stdev(differences) / math.sqrt(freedom + 1)
    if error == 0.0:
        return math.copysign(math.inf, mean)
    t = mean / error
    z = (8 * freedom + 1) / (8 * freedom + 3) * math.sqrt(freedom * math.log1p(t * t / freedom))
    return math.copysign(z, t)


def after_first(runs: Sequence[Mapping[str, Any]]) -> int:
    """Tokens after each run's first: those that decoding wrote."""
    return sum(max(0, run["num_tokens"] - 1) for run in runs)


def summary(
    runs: Sequence[Mapping[str, Any]],
    plain: Sequence[Mapping[str, Any]],
    transformers: Sequence[Mapping[str, Any]] | None = None,
    parameters: Mapping[str, int] | None = None,
    greedy: bool = True,
) -> dict[str, Any]:
    """What ``summary`` of a method holds, but for what its checks and its memory add.

    Args:
        runs: of the method, as in the results file.
        plain: of our plain decoding, on the same prompts.
        transformers: of the fastest method of transformers, if there is one.
        parameters: of each level by name, for :func:`standardized_walltime_improvement`.
    """
    ms = {run["prompt"]: run["ms_per_token"] for run in runs}
    decode = [run["decode_ms_per_token"] for run in runs]
    overhead = [run["overhead_ms_per_token"] for run in runs]
    calls = [run["target_calls"] for run in runs]
    tokens = after_first(runs)
    parts = levels(runs)
    known = all(call is not None for call in calls) and sum(calls) > 0
    return {
        "ms_per_token": described(list(ms.values())),
        "decode_ms_per_token": None if None in decode else described(decode),
        "tokens_per_second": sum(r["num_tokens"] for r in runs) / sum(r["seconds"] for r in runs),
        "overhead_ms_per_token": None if None in overhead else described(overhead),
        "mean_acceptance_length": tokens / sum(calls) if known else None,
        "speedup": paired(plain, runs),
        "speedup_over_best_transformers": paired(transformers, runs) if transformers else None,
        "standardized_walltime_improvement": standardized_walltime_improvement(
            tokens, parts, parameters
        ),
        "acceptance_per_position": acceptance_per_position(runs),
        "levels": parts,
        "same_as_plain": sum(bool(run["same_as_plain"]) for run in runs) if greedy else None,
        "logprob": None,
        "peak_memory_bytes": None,
    }


def paired(
    slow: Sequence[Mapping[str, Any]], fast: Sequence[Mapping[str, Any]]
) -> dict[str, float] | None:
    """The speed-up of ``fast`` over ``slow``, per prompt that both have; > 1 is faster."""
    before = {run["prompt"]: run["ms_per_token"] for run in slow}
    both = [run for run in fast if run["prompt"] in before]
    if not both:
        return None
    return ratio([before[run["prompt"]] for run in both], [run["ms_per_token"] for run in both])


def levels(runs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Per level, the target last, over all runs: what a token after the first takes there."""
    tokens = after_first(runs)
    out = []
    for name, parts in _by_level(runs).items():
        drafted = sum(part["num_draft_tokens"] for part in parts)
        kept = sum(part["num_accepted_tokens"] for part in parts)
        out.append(
            {
                "name": name,
                "calls_per_token": sum(part["calls"] for part in parts) / max(1, tokens),
                "ms_per_token": 1e3 * sum(part["seconds"] for part in parts) / max(1, tokens),
                "forward_ms_per_token": 1e3
                * sum(part["forward_seconds"] for part in parts)
                / max(1, tokens),
                "acceptance_rate": kept / drafted if drafted else None,
            }
        )
    return out


def acceptance_per_position(runs: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    """Per level below the target: the share of its drafts whose token at position 0, 1, … was
    kept by the level above. A draft that stopped short of a position counts as not kept there."""
    out = {}
    for name, parts in _by_level(runs).items():
        drafts = sum(part["num_drafts"] for part in parts)
        longest = max(len(part["num_accepted_tokens_per_pos"]) for part in parts)
        if drafts and longest:
            sums = [
                sum(kept[i] for kept in _per_position(parts) if i < len(kept))
                for i in range(longest)
            ]
            out[name] = [total / drafts for total in sums]
    return out


def standardized_walltime_improvement(
    tokens: int, parts: Sequence[Mapping[str, Any]], parameters: Mapping[str, int] | None
) -> float | None:
    """Speed-up over plain decoding if a call costs a constant, whatever the machine and its code.

    P1 (§5, Table 4) reports it "as in Chen et al. 2023b", cascade speculative drafting
    (arXiv 2312.11462), without a formula of its own. There every forward of a model is charged a
    fixed price, tables are free, and plain decoding pays the target's price for every token:

        SWI = (tokens · c_target) / Σ_k calls_k · c_k

    That work knows two price lists, sizes of models and figures of earlier work. Here c_k is the
    number of weights that a call of level k runs through; an early exit has its share of the
    layers.

    Args:
        tokens: after the first of each run.
        parts: of :func:`levels`, the target last.
        parameters: c_k by the level's name; ``None``: unknown.
    """
    if not parts or parameters is None or any(p["name"] not in parameters for p in parts):
        return None
    spent = sum(part["calls_per_token"] * tokens * parameters[part["name"]] for part in parts)
    return tokens * parameters[parts[-1]["name"]] / spent if spent else None


def _by_level(runs: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    found: dict[str, list[Mapping[str, Any]]] = {}
    for run in runs:
        for part in (*run["levels"], *([run["target"]] if run["target"] else [])):
            found.setdefault(part["name"], []).append(part)
    return found


def _per_position(parts: Sequence[Mapping[str, Any]]) -> list[Sequence[float]]:
    return [part["num_accepted_tokens_per_pos"] for part in parts]
