"""Metrics of a run, and a claim's effect prompt by prompt, from an experiment's file.

Where a claim compares the best of several methods (the best single exit, the best hierarchy of
three), the choice is cross-fitted: each half of the prompts compares the method that is best on the
other one, so that no method is chosen on the prompts that it is judged by.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean, pstdev

from hierspec_lab.papers.p5.entropy import area_under_curve
from hierspec_lab.papers.p5.redundancy import implied_cost

from .files import ExperimentFile, ExperimentRun

Metric = Callable[[ExperimentRun, ExperimentFile], "float | None"]


def tokens_per_call(run: ExperimentRun, file: ExperimentFile) -> float | None:
    """Return tokens after the first over calls of the target."""
    return run.tokens_after_first / run.target_calls if run.target_calls else None


def tokens_per_cost(run: ExperimentRun, file: ExperimentFile) -> float | None:
    """Return the speed-up over plain decoding if a call costs its weights (P1's Table 4)."""
    price = file.prices.get(run.method)
    if price is None:
        return None
    cost = sum(level.calls * price[level.name] for level in run.levels)
    return run.tokens_after_first / cost if cost else None


def tokens_per_printed_cost(run: ExperimentRun, file: ExperimentFile) -> float | None:
    """Return the speed-up over plain decoding if calls cost what P5's Table 4 implies.

    These are about .02 of a call of the target for M1, and .19 for M2.
    """
    three = next((other.levels for other in file.runs if len(other.levels) == 3), None)
    if three is None:
        return None
    small, large, target = (level.name for level in three)
    prices = {small: implied_cost("vanilla M1"), large: implied_cost("vanilla M2"), target: 1.0}
    cost = sum(level.calls * prices[level.name] for level in run.levels)
    return run.tokens_after_first / cost if cost else None


def tokens_per_second(run: ExperimentRun, file: ExperimentFile) -> float | None:
    """Return tokens after the first over seconds of decoding."""
    return run.tokens_after_first / run.decode_seconds if run.decode_seconds else None


def acceptance(run: ExperimentRun, file: ExperimentFile) -> float | None:
    """Return the share of the tokens offered to the target that it kept."""
    offered, kept = offered_and_kept(run)
    return kept / offered if offered else None


def offered_and_kept(run: ExperimentRun) -> tuple[int, int]:
    """Return how many tokens the target was offered, and how many of them it kept."""
    if run.rounds:
        return sum(one.offered for one in run.rounds), sum(one.kept for one in run.rounds)
    below = run.levels[-2:-1]  # as a level counts them, where rounds were not recorded
    return sum(level.drafted for level in below), sum(level.accepted for level in below)


def kept_per_round(run: ExperimentRun, file: ExperimentFile) -> float | None:
    """Return the mean number of a draft's tokens that the target keeps, without bonus tokens."""
    return fmean(counts.kept for counts in run.rounds) if run.rounds else None


def first_token_acceptance(run: ExperimentRun, file: ExperimentFile) -> float | None:
    """Return the share of drafts whose first token the target kept: the acceptance rate α."""
    return fmean(counts.kept > 0 for counts in run.rounds) if run.rounds else None


def window_deviation(run: ExperimentRun, file: ExperimentFile) -> float | None:
    """Return the standard deviation of the tokens offered, over a text's rounds.

    The last round is left out, since the end of the text may have cut it short.
    """
    offered = [counts.offered for counts in run.rounds[:-1]]
    return pstdev(offered) if len(offered) > 1 else None


def entropy_auc(run: ExperimentRun, file: ExperimentFile) -> float | None:
    """Return the probability that a rejected token's entropy is above a kept one's (AUC)."""
    kept = [token.entropy for token in run.entropies if token.kept]
    rejected = [token.entropy for token in run.entropies if not token.kept]
    return area_under_curve(kept, rejected) if kept and rejected else None


def expected_tokens_per_call(rule: str | None) -> Metric:
    """Return the metric: the tokens a call that a rule is expected to give on the run's drafts.

    Args:
        rule: one of :data:`.files.RULES`; ``None``: the one that the run was verified by.
    """

    def metric(run: ExperimentRun, file: ExperimentFile) -> float | None:
        sums = run.kept_sums
        if sums is None or not sums.drafts:
            return None
        kept = sums.expected if rule is None else sums.by_rule[rule]
        return None if kept is None else 1 + kept / sums.drafts

    return metric


def all_kept_chance(rule: str) -> Metric:
    """Return the metric: the chance that all tokens of a draft of the longest length are kept.

    Args:
        rule: ``tokenwise``, ``block``, or ``ideal``: min(1, R_n).
    """

    def metric(run: ExperimentRun, file: ExperimentFile) -> float | None:
        positions = run.kept_sums and run.kept_sums.positions
        if not positions or not positions.drafts:
            return None
        return positions.by_rule[rule][-1] / positions.drafts

    return metric


def first_kept_chance(power: float) -> Metric:
    """Return the metric: the chance that a draft's first token is kept if q is raised to a power.

    The powers measured are :data:`.counting.POWERS`.
    """

    def metric(run: ExperimentRun, file: ExperimentFile) -> float | None:
        sums = run.kept_sums
        return sums.powers[f"{power:g}"] / sums.drafts if sums and sums.drafts else None

    return metric


def check_time_ratio(run: ExperimentRun, file: ExperimentFile) -> float | None:
    """Return the time of a check by the target over that of drafting six tokens."""
    drafter, target = run.levels[0], run.levels[-1]
    drafter_seconds, target_seconds = run.level_seconds[0], run.level_seconds[-1]
    if not drafter.drafted or not target.calls or not drafter_seconds:
        return None
    return (target_seconds / target.calls) / (6 * drafter_seconds / drafter.drafted)


def verification_time_share(run: ExperimentRun, file: ExperimentFile) -> float | None:
    """Return the share of decoding time that verification takes, without forward passes."""
    seconds = run.verify_seconds
    return seconds / run.decode_seconds if seconds and run.decode_seconds else None


def values_by_prompt(file: ExperimentFile, method: str, metric: Metric) -> dict[int, float]:
    """Return a method's metric by prompt, where it has a value."""
    return {
        run.prompt: value
        for run in file.runs_of(method)
        if (value := metric(run, file)) is not None
    }


def best_by_prompt(
    file: ExperimentFile, names: Sequence[str], metric: Metric, *, by_logarithm: bool = False
) -> dict[int, float]:
    """Return by prompt the metric of the method that is best on prompts of the other half.

    Args:
        by_logarithm: best in the mean of logarithms, as ratios are judged; a few texts that one
            method writes at many times the speed then do not choose it alone.
    """
    by_method = {name: values_by_prompt(file, name, metric) for name in names}
    if len(names) == 1:
        return by_method[names[0]]
    mean = mean_logarithm if by_logarithm else fmean
    half_of, by_prompt = halves(file), dict[int, float]()
    for half in (0, 1):
        means = {
            name: mean(others)
            for name, values in by_method.items()
            if (others := [value for n, value in values.items() if half_of[n] != half])
        }
        if not means:
            continue
        best = max(means, key=lambda name: means[name])
        by_prompt |= {n: value for n, value in by_method[best].items() if half_of[n] == half}
    return by_prompt


def halves(file: ExperimentFile) -> list[int]:
    """Return for each prompt the half it is in, by turns within its domain: both have all."""
    seen = Counter[str]()
    half_of = []
    for domain in file.domains:
        half_of.append(seen[domain] % 2)
        seen[domain] += 1
    return half_of


def mean_logarithm(values: Iterable[float]) -> float:
    """Return the mean of the logarithms of numbers ≥ 0, −∞ where one is 0."""
    return fmean(math.log(value) if value > 0 else -math.inf for value in values)


def chosen_by_prompt(
    file: ExperimentFile, choose: Callable[[ExperimentFile], str], metric: Metric
) -> dict[int, float]:
    """Return by prompt the metric of the method that is chosen from prompts of the other half."""
    half_of, by_prompt = halves(file), dict[int, float]()
    for half in (0, 1):
        others = [run for run in file.runs if half_of[run.prompt] != half]
        if not others:
            continue
        chosen = choose(file.model_copy(update={"runs": others}))
        values = values_by_prompt(file, chosen, metric)
        by_prompt |= {n: value for n, value in values.items() if half_of[n] == half}
    return by_prompt


def log_ratio(ours: Mapping[int, float], theirs: Mapping[int, float]) -> dict[int, float]:
    """Return logarithms of ratios by prompt, where both values are above 0."""
    return {
        n: math.log(value / theirs[n])
        for n, value in ours.items()
        if n in theirs and value > 0 and theirs[n] > 0
    }


def difference(ours: Mapping[int, float], theirs: Mapping[int, float]) -> dict[int, float]:
    """Return differences by prompt, where both have a value."""
    return {n: ours[n] - theirs[n] for n in ours if n in theirs}


def jackknife(
    prompts: Sequence[int], statistic: Callable[[Sequence[int]], float]
) -> dict[int, float]:
    """Return a statistic's pseudo-values by prompt, n θ − (n − 1) θ₋ᵢ (Tukey, 1958).

    Their mean and spread give an interval for a statistic that is not a mean itself.
    """
    n = len(prompts)
    if n < 3:
        return {}
    scaled = n * statistic(prompts)
    return {
        left_out: scaled - (n - 1) * statistic([prompt for prompt in prompts if prompt != left_out])
        for left_out in prompts
    }


def contrast(by_prompt: Mapping[int, float], group: set[int]) -> dict[int, float]:
    """Return pseudo-values of the mean over the other prompts less the mean over ``group``.

    Empty where either has fewer than two prompts.
    """
    if min(sum(n in group for n in by_prompt), sum(n not in group for n in by_prompt)) < 2:
        return {}

    def gap(prompts: Sequence[int]) -> float:
        mean_inside = fmean(by_prompt[n] for n in prompts if n in group)
        return fmean(by_prompt[n] for n in prompts if n not in group) - mean_inside

    return jackknife(sorted(by_prompt), gap)


def variation_reduction(
    file: ExperimentFile, ours: Sequence[str], theirs: Sequence[str], metric: Metric
) -> dict[int, float]:
    """Return how much less the mean metric varies over our methods than over theirs.

    A variation, (max − min) / max, is a statistic of means over prompts, so the values are the
    jackknife's.
    """
    by_method = {name: values_by_prompt(file, name, metric) for name in (*ours, *theirs)}
    shared_prompts = sorted(set.intersection(*map(set, by_method.values())))

    def variation(means: Sequence[float]) -> float:
        return (max(means) - min(means)) / max(means)

    def gap(prompts: Sequence[int]) -> float:
        means = {name: fmean(values[n] for n in prompts) for name, values in by_method.items()}
        return variation([means[n] for n in theirs]) - variation([means[n] for n in ours])

    return jackknife(shared_prompts, gap)
