"""Statistics: of values, of paired ratios, and of a method's runs."""

from __future__ import annotations

import itertools
import math
import random
import statistics
from collections.abc import Mapping, Sequence

from hierspec_lab.bench.methods.base import Run

from .method_records import (
    LevelCounters,
    LevelSummary,
    MethodSummary,
    PairedRatio,
    RunRecord,
    Spread,
)

CountersByLevel = Mapping[str, Sequence[LevelCounters]]  # of each run; the target last


def quartiles(values: Sequence[float]) -> dict[str, float]:
    """Return ``median``, ``q1``, ``q3`` and ``n`` of values."""
    ordered = sorted(values)
    if len(ordered) < 2:
        return {"median": ordered[0], "q1": ordered[0], "q3": ordered[0], "n": len(ordered)}
    q1, median, q3 = statistics.quantiles(ordered, n=4, method="inclusive")
    return {"median": median, "q1": q1, "q3": q3, "n": len(ordered)}


def ratio(numerators: Sequence[float], denominators: Sequence[float]) -> PairedRatio:
    """Summarise paired ratios: median, quartiles, 95 % bootstrap interval of the median."""
    ratios = [a / b for a, b in zip(numerators, denominators, strict=True)]
    rng = random.Random(0)
    medians = sorted(statistics.median(rng.choices(ratios, k=len(ratios))) for _ in range(2000))
    return PairedRatio.model_validate(
        {**quartiles(ratios), "low95": medians[50], "high95": medians[1949]}
    )


def spread(values: Sequence[float]) -> Spread:
    """Return quartiles, the mean, and its standard error (``None`` for a single value)."""
    means = {"mean": statistics.fmean(values), "standard_error": standard_error(values)}
    return Spread.model_validate({**quartiles(values), **means})


def standard_error(values: Sequence[float]) -> float | None:
    """Return the standard error of the mean; ``None`` for a single value."""
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None


def z_score(differences: Sequence[float]) -> float:
    """Return how many standard deviations of a normal distribution the mean lies from 0.

    The mean of few values has Student's t, with heavy tails: it is mapped to a normal deviate with
    Wallace's approximation (1959), z = (8ν + 1)/(8ν + 3) · √(ν ln(1 + t²/ν)), ν = n − 1, good to
    about a hundredth, so that one threshold serves any number of prompts.
    """
    mean, degrees = statistics.fmean(differences), len(differences) - 1
    error = standard_error(differences)
    if mean == 0.0 or error is None:
        return 0.0
    if error == 0.0:
        return math.copysign(math.inf, mean)
    t = mean / error
    z = (8 * degrees + 1) / (8 * degrees + 3) * math.sqrt(degrees * math.log1p(t * t / degrees))
    return math.copysign(z, t)


def summary(
    runs: Sequence[RunRecord],
    plain: Sequence[RunRecord],
    parameters: Mapping[str, int] | None = None,
    greedy: bool = True,
) -> MethodSummary:
    """Summarise a method's runs; checks, memory, ratios to transformers' methods come later.

    Args:
        plain: runs of our plain decoding on the same prompts.
        parameters: weights of each level by name, for :func:`standardized_walltime_improvement`.
    """
    decode = [run.decode_ms_per_token for run in runs]
    overhead = [run.overhead_ms_per_token for run in runs]
    calls = [run.target_calls for run in runs]
    tokens = num_tokens_after_first(runs)
    counters = group_by_level(runs)
    levels = level_summaries(tokens, counters)
    known_calls = [count for count in calls if count is not None]
    return MethodSummary(
        ms_per_token=spread([run.ms_per_token for run in runs]),
        decode_ms_per_token=_spread_if_known(decode),
        tokens_per_second=sum(r.num_tokens for r in runs) / sum(r.seconds for r in runs),
        overhead_ms_per_token=_spread_if_known(overhead),
        mean_acceptance_length=tokens / sum(known_calls)
        if len(known_calls) == len(calls) and sum(known_calls)
        else None,
        speedup=paired_speedup(plain, runs),
        speedup_over_best_transformers=None,
        standardized_walltime_improvement=standardized_walltime_improvement(
            tokens, levels, parameters
        ),
        acceptance_per_position=acceptance_per_position(counters),
        levels=levels,
        same_as_plain=sum(bool(run.same_as_plain) for run in runs) if greedy else None,
        logprob=None,
        peak_memory_bytes=None,
    )


def _spread_if_known(values: Sequence[float | None]) -> Spread | None:
    known = [value for value in values if value is not None]
    return spread(known) if known else None


def paired_speedup(slow: Sequence[RunRecord], fast: Sequence[RunRecord]) -> PairedRatio | None:
    """Return the speed-up of ``fast`` over ``slow`` on their common prompts, if there are any."""
    slow_times = {run.prompt: run.ms_per_token for run in slow}
    runs = [run for run in fast if run.prompt in slow_times]
    if not runs:
        return None
    return ratio([slow_times[run.prompt] for run in runs], [run.ms_per_token for run in runs])


def num_tokens_after_first(runs: Sequence[Run | RunRecord]) -> int:
    """Count the tokens of runs without the first of each, which the prompt's forward gives."""
    return sum(max(0, run.num_tokens - 1) for run in runs)


def group_by_level(runs: Sequence[Run | RunRecord]) -> dict[str, list[LevelCounters]]:
    """Group the counters of runs by level."""
    by_level: dict[str, list[LevelCounters]] = {}
    for run in runs:
        for counters in run.counters:
            by_level.setdefault(counters.name, []).append(counters)
    return by_level


def level_summaries(tokens: int, counters: CountersByLevel) -> list[LevelSummary]:
    """Summarise calls and times per token after the first of each level, the target last.

    Args:
        tokens: number of tokens after the first of each run.
    """
    count, out = max(1, tokens), []
    for name, runs in counters.items():
        drafted = sum(run.num_draft_tokens for run in runs)
        kept = sum(run.num_accepted_tokens for run in runs)
        out.append(
            LevelSummary(
                name=name,
                calls_per_token=sum(run.calls for run in runs) / count,
                ms_per_token=1e3 * sum(run.seconds for run in runs) / count,
                forward_ms_per_token=1e3 * sum(run.forward_seconds for run in runs) / count,
                acceptance_rate=kept / drafted if drafted else None,
            )
        )
    return out


def acceptance_per_position(counters: CountersByLevel) -> dict[str, list[float]]:
    """Compute each level's share of drafts whose token at position 0, 1, … was accepted.

    Accepted by the level above; a draft that stopped short of a position counts as not accepted
    there.
    """
    out = {}
    for name, runs in counters.items():
        drafts = sum(run.num_drafts for run in runs)
        kept = [run.num_accepted_tokens_per_pos for run in runs]
        if drafts and any(kept):
            sums = map(sum, itertools.zip_longest(*kept, fillvalue=0))
            out[name] = [total / drafts for total in sums]
    return out


def standardized_walltime_improvement(
    tokens: int, levels: Sequence[LevelSummary], parameters: Mapping[str, int] | None
) -> float | None:
    """Compute the speed-up over plain decoding if a call costs a constant on any machine.

    P1 (§5, Table 4) reports it "as in Chen et al. 2023b", cascade speculative drafting
    (arXiv 2312.11462), without a formula of its own. There every forward of a model is charged a
    fixed price, tables are free, and plain decoding pays the target's price for every token:

        SWI = (tokens · c_target) / Σ_k calls_k · c_k

    That work knows two price lists, sizes of models and figures of earlier work. Here c_k is the
    number of weights that a call of level k runs through; an early exit has its share of the
    layers.

    Args:
        tokens: number of tokens after the first of each run.
        levels: the target last.
        parameters: c_k by the level's name; ``None``: unknown.
    """
    if not levels or parameters is None or any(level.name not in parameters for level in levels):
        return None
    spent = sum(level.calls_per_token * tokens * parameters[level.name] for level in levels)
    return tokens * parameters[levels[-1].name] / spent if spent else None
