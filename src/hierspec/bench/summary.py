"""Statistics: of values, of paired ratios, and of a method's runs."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Mapping, Sequence

from hierspec.bench.method_records import (
    LevelCounters,
    LevelSummary,
    MethodSummary,
    PairedRatio,
    RunRecord,
    Spread,
)

Parts = Mapping[str, Sequence[LevelCounters]]  # by level, the target last


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
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
    mean = statistics.fmean(values)
    return Spread.model_validate({**quartiles(values), "mean": mean, "standard_error": error})


def deviation(differences: Sequence[float]) -> float:
    """Return how many standard deviations of a normal a mean lies from 0.

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
    tokens = after_first([run.num_tokens for run in runs])
    parts = by_level([(run.levels, run.target) for run in runs])
    levels = level_summaries(tokens, parts)
    known = [call for call in calls if call is not None]
    return MethodSummary(
        ms_per_token=spread([run.ms_per_token for run in runs]),
        decode_ms_per_token=_spread_if_known(decode),
        tokens_per_second=sum(r.num_tokens for r in runs) / sum(r.seconds for r in runs),
        overhead_ms_per_token=_spread_if_known(overhead),
        mean_acceptance_length=tokens / sum(known)
        if len(known) == len(calls) and sum(known)
        else None,
        speedup=paired(plain, runs),
        speedup_over_best_transformers=None,
        standardized_walltime_improvement=standardized_walltime_improvement(
            tokens, levels, parameters
        ),
        acceptance_per_position=acceptance_per_position(parts),
        levels=levels,
        same_as_plain=sum(bool(run.same_as_plain) for run in runs) if greedy else None,
        logprob=None,
        peak_memory_bytes=None,
    )


def _spread_if_known(values: Sequence[float | None]) -> Spread | None:
    known = [value for value in values if value is not None]
    return spread(known) if len(known) == len(values) else None


def paired(slow: Sequence[RunRecord], fast: Sequence[RunRecord]) -> PairedRatio | None:
    """Compare ``fast`` with ``slow`` on each prompt that both have; a ratio > 1 is faster."""
    before = {run.prompt: run.ms_per_token for run in slow}
    both = [run for run in fast if run.prompt in before]
    if not both:
        return None
    return ratio([before[run.prompt] for run in both], [run.ms_per_token for run in both])


def after_first(num_tokens: Sequence[int]) -> int:
    """Count the tokens that decoding wrote: all but the first of each run, which prefill gives."""
    return sum(max(0, count - 1) for count in num_tokens)


def by_level(
    runs: Sequence[tuple[Sequence[LevelCounters], LevelCounters | None]],
) -> dict[str, list[LevelCounters]]:
    """Group the counters of runs, given as (levels, target), by level."""
    found: dict[str, list[LevelCounters]] = {}
    for levels, target in runs:
        for part in (*levels, *([target] if target else [])):
            found.setdefault(part.name, []).append(part)
    return found


def level_summaries(tokens: int, parts: Parts) -> list[LevelSummary]:
    """Summarise calls and times per token after the first of each level, the target last.

    Args:
        tokens: number of tokens after the first of each run.
    """
    count, out = max(1, tokens), []
    for name, counters in parts.items():
        drafted = sum(part.num_draft_tokens for part in counters)
        kept = sum(part.num_accepted_tokens for part in counters)
        out.append(
            LevelSummary(
                name=name,
                calls_per_token=sum(part.calls for part in counters) / count,
                ms_per_token=1e3 * sum(part.seconds for part in counters) / count,
                forward_ms_per_token=1e3 * sum(part.forward_seconds for part in counters) / count,
                acceptance_rate=kept / drafted if drafted else None,
            )
        )
    return out


def acceptance_per_position(parts: Parts) -> dict[str, list[float]]:
    """Compute each level's share of drafts whose token at position 0, 1, … was kept.

    Kept by the level above; a draft that stopped short of a position counts as not kept there.
    """
    out = {}
    for name, counters in parts.items():
        drafts = sum(part.num_drafts for part in counters)
        kept = [part.num_accepted_tokens_per_pos for part in counters]
        longest = max(map(len, kept))
        if drafts and longest:
            sums = [sum(each[i] for each in kept if i < len(each)) for i in range(longest)]
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
