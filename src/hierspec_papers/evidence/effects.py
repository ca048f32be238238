"""Metrics of a run, and a claim's effect prompt by prompt, from an experiment's file.

Where a claim compares the best of several methods (the best single exit, the best hierarchy of
three), the choice is cross-fitted: on even prompts the method that is best on odd ones is taken,
and the other way round, so that none is chosen on the prompts it is judged by.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

Run = Mapping[str, Any]
Data = Mapping[str, Any]
Metric = Callable[[Run, Data], "float | None"]


def tokens_per_call(run: Run, data: Data) -> float | None:
    """Return tokens after the first over calls of the target."""
    return (run["tokens"] - 1) / run["target_calls"] if run["target_calls"] else None


def tokens_per_cost(run: Run, data: Data) -> float | None:
    """Return the speed-up over plain decoding if a call costs its weights (P1's Table 4)."""
    price = data["prices"].get(run["method"])
    if price is None:
        return None
    spent = sum(level["calls"] * price[level["name"]] for level in run["levels"])
    return (run["tokens"] - 1) / spent if spent else None


def tokens_per_second(run: Run, data: Data) -> float | None:
    """Return tokens after the first over seconds of decoding."""
    return (run["tokens"] - 1) / run["decode_seconds"] if run["decode_seconds"] else None


def acceptance(run: Run, data: Data) -> float | None:
    """Return which share of the tokens offered to the target it kept."""
    offered = sum(offered for offered, _ in run["rounds"])
    return sum(kept for _, kept in run["rounds"]) / offered if offered else None


def kept_per_round(run: Run, data: Data) -> float | None:
    """Return the mean number of a draft's tokens that the target keeps, without bonus tokens."""
    return fmean(kept for _, kept in run["rounds"]) if run["rounds"] else None


def first_acceptance(run: Run, data: Data) -> float | None:
    """Return the share of drafts whose first token the target kept: the acceptance rate α."""
    return fmean(kept > 0 for _, kept in run["rounds"]) if run["rounds"] else None


def offered_per_call(run: Run, data: Data) -> float | None:
    """Return the mean number of tokens that the target is offered in a round."""
    return fmean(offered for offered, _ in run["rounds"]) if run["rounds"] else None


def window_deviation(run: Run, data: Data) -> float | None:
    """Return the standard deviation of the tokens offered, over a text's rounds.

    The last round is left out, which the end of the text may have cut short.
    """
    offered = [offered for offered, _ in run["rounds"][:-1]]
    if len(offered) < 2:
        return None
    mean = fmean(offered)
    return math.sqrt(fmean((number - mean) ** 2 for number in offered))


def separation(run: Run, data: Data) -> float | None:
    """Return the probability that a rejected token's entropy is above a kept one's (AUC)."""
    kept = [value for value, good in run["entropies"] if good]
    lost = [value for value, good in run["entropies"] if not good]
    if not kept or not lost:
        return None
    wins = sum((a > b) + (a == b) / 2 for a in lost for b in kept)
    return wins / (len(kept) * len(lost))


def exact_block(run: Run, data: Data) -> float | None:
    """Return tokens a call that block's exact law expects for this run's drafts."""
    return 1 + run["exact"]["block"] / run["exact"]["drafts"] if run["exact"]["drafts"] else None


def exact_tokenwise(run: Run, data: Data) -> float | None:
    """Return tokens a call that tokenwise's exact law expects for the same drafts."""
    drafts = run["exact"]["drafts"]
    return 1 + run["exact"]["tokenwise"] / drafts if drafts else None


def exact_own(run: Run, data: Data) -> float | None:
    """Return tokens a call that the exact law of the run's own rule expects for them."""
    drafts = run["exact"]["drafts"]
    return 1 + run["exact"]["expected"] / drafts if drafts else None


def exact_several(rule: str) -> Metric:
    """Return the metric: tokens a call that a rule's exact law expects for several drafts.

    Args:
        rule: for several drafts, or ``one``: block on the first of them alone.
    """

    def metric(run: Run, data: Data) -> float | None:
        exact = run["exact"]
        return 1 + exact[rule] / exact["drafts"] if exact["drafts"] else None

    return metric


def kept_whole(rule: str) -> Metric:
    """Return the metric: the chance that a draft of the longest length is kept whole.

    Args:
        rule: ``tokenwise``, ``block``, or ``ideal``: min(1, R_n).
    """

    def metric(run: Run, data: Data) -> float | None:
        positions = run["exact"]["positions"]
        return positions[rule][-1] / positions["drafts"] if positions["drafts"] else None

    return metric


def first_kept(power: float) -> Metric:
    """Return the metric: the chance that a first token is kept, if q is raised to a power."""

    def metric(run: Run, data: Data) -> float | None:
        exact = run["exact"]
        return exact["powers"][f"{power:g}"] / exact["drafts"] if exact["drafts"] else None

    return metric


def verification_share(run: Run, data: Data, drafted: int = 6) -> float | None:
    """Return the time of a check by the target over that of drafting ``drafted`` tokens."""
    draft, target = run["levels"][0], run["levels"][-1]
    below, own = run["level_seconds"][0], run["level_seconds"][-1]
    if not draft["drafted"] or not target["calls"] or not below:
        return None
    return (own / target["calls"]) / (drafted * below / draft["drafted"])


def verification_overhead(run: Run, data: Data) -> float | None:
    """Return the share of decoding time that verification takes, forwards left out."""
    seconds = run.get("verify_seconds")
    return seconds / run["decode_seconds"] if seconds and run["decode_seconds"] else None


def runs_of(data: Data, method: str) -> dict[int, Run]:
    """Return a method's runs by prompt."""
    return {run["prompt"]: run for run in data["runs"] if run["method"] == method}


def values(data: Data, method: str, metric: Metric) -> dict[int, float]:
    """Return a metric by prompt, where it has a value."""
    found = {number: metric(run, data) for number, run in runs_of(data, method).items()}
    return {number: value for number, value in found.items() if value is not None}


def best(data: Data, names: Sequence[str], metric: Metric) -> dict[int, float]:
    """Return by prompt the metric of the method that is best on the prompts of other parity."""
    by_method = {name: values(data, name, metric) for name in names}
    if len(names) == 1:
        return by_method[names[0]]
    by_prompt = {}
    for parity in (0, 1):
        means = {
            name: fmean(value for number, value in found.items() if number % 2 != parity)
            for name, found in by_method.items()
            if any(number % 2 != parity for number in found)
        }
        if not means:
            continue
        chosen = max(means, key=lambda name: means[name])
        by_prompt |= {n: value for n, value in by_method[chosen].items() if n % 2 == parity}
    return by_prompt


def log_ratio(ours: Mapping[int, float], theirs: Mapping[int, float]) -> dict[int, float]:
    """Return logarithms of ratios by prompt, where both are above 0."""
    both = [n for n in ours if n in theirs and ours[n] > 0 and theirs[n] > 0]
    return {n: math.log(ours[n] / theirs[n]) for n in both}


def difference(ours: Mapping[int, float], theirs: Mapping[int, float]) -> dict[int, float]:
    """Return differences by prompt that both have."""
    return {n: ours[n] - theirs[n] for n in ours if n in theirs}


def variation(speeds: Sequence[float]) -> float:
    """Return (max − min) / max."""
    return (max(speeds) - min(speeds)) / max(speeds)


def jackknife(
    prompts: Sequence[int], statistic: Callable[[Sequence[int]], float]
) -> dict[int, float]:
    """Return a statistic's pseudo-values by prompt, n θ − (n − 1) θ₋ᵢ (Tukey, 1958).

    Their mean and spread make an interval of a statistic that is no mean itself.
    """
    n = len(prompts)
    if n < 3:
        return {}
    whole = n * statistic(prompts)
    return {
        left_out: whole - (n - 1) * statistic([kept for kept in prompts if kept != left_out])
        for left_out in prompts
    }


def contrast(by_prompt: Mapping[int, float], group: set[int]) -> dict[int, float]:
    """Return pseudo-values of the mean over the other prompts less the mean over ``group``.

    Empty where there are fewer than two of either.
    """
    if min(sum(n in group for n in by_prompt), sum(n not in group for n in by_prompt)) < 2:
        return {}

    def gap(prompts: Sequence[int]) -> float:
        inside = [by_prompt[n] for n in prompts if n in group]
        return fmean(by_prompt[n] for n in prompts if n not in group) - fmean(inside)

    return jackknife(sorted(by_prompt), gap)


def steadier(
    data: Data, ours: Sequence[str], theirs: Sequence[str], metric: Metric
) -> dict[int, float]:
    """Return how much less the mean metric varies over our methods than over theirs.

    A variation is a statistic of means over prompts, so the values are the jackknife's.
    """
    by_method = {name: values(data, name, metric) for name in (*ours, *theirs)}
    common = sorted(set.intersection(*(set(found) for found in by_method.values())))

    def gap(prompts: Sequence[int]) -> float:
        means = {name: fmean(found[n] for n in prompts) for name, found in by_method.items()}
        return variation([means[n] for n in theirs]) - variation([means[n] for n in ours])

    return jackknife(common, gap)
