"""From a profile to the planner's estimates: curves extrapolated, times interpolated linearly."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from hierspec.planner.estimates import LONGEST_DRAFT, Estimates

from .schema import AtTemperature, MeasuredClass, MeasuredModel, MeasuredPair, TimeSummary


def estimates(
    models: Sequence[MeasuredModel],
    memory: Mapping[str, int],
    measured: AtTemperature,
    *,
    max_budget: int,
) -> Estimates:
    """Build the planner's estimates from one temperature's measurements."""
    count, size = len(models), LONGEST_DRAFT + 1
    costs = _Costs(models, measured)
    draft_ms, first_step_extra_ms = costs.drafts(size)
    # Each draft pays the extra once, so it is charged to the call that verifies the draft.
    call_ms = costs.verify_calls(size) + first_step_extra_ms[:, :, None]
    target, per_token = count - 1, measured.token_ms
    call_without_bonus_ms = _without_bonus(call_ms, models, costs)

    def with_curves(curves: Callable[[MeasuredPair], MeasuredClass]) -> Estimates:
        survival = np.full((count, count, size), np.nan)
        joint_survival: dict[int, np.ndarray] = {}
        for pair in measured.pairs:
            i, k, known = pair.drafter, pair.verifier, curves(pair)
            survival[i, k] = extend_curve(np.asarray(known.block), size)
            if known.joint:
                joint = np.asarray(known.joint["block"])
                joint_survival.setdefault(i, np.zeros((count, *joint.shape)))[k] = joint
        verify_ms = call_ms.copy()
        # A token also costs what the caller's loop does with it; a call yields E[tokens] of them.
        verify_ms[:, target] += per_token * np.nan_to_num(survival[:, target]).cumsum(-1)
        return Estimates(
            names=tuple(model.name for model in models),
            survival=survival,
            draft_ms=draft_ms,
            verify_ms=verify_ms,
            verify_without_bonus_ms=call_without_bonus_ms,
            plain_ms=costs.plain_call(target) + per_token,
            max_budget=max_budget,
            owners=tuple(model.owner for model in models),
            memory=dict(memory),
            multi_drafters=frozenset(i for i, model in enumerate(models) if model.makes_several),
            on_target_cache=tuple(_uses_target_trunk(model, models[target]) for model in models),
            joint_survival=joint_survival,
            priors=tuple(measured.priors),
        )

    average = with_curves(_curves_of_all)
    num_classes = min((len(pair.classes) for pair in measured.pairs), default=1)
    if num_classes < 2:
        return average
    parts = [with_curves(lambda pair, c=c: pair.classes[c]) for c in range(num_classes)]
    return dataclasses.replace(average, classes=tuple(parts))


def _without_bonus(
    call_ms: np.ndarray, models: Sequence[MeasuredModel], costs: _Costs
) -> np.ndarray:
    """Return [K+1, K+1, size] ms of checks by levels that drop their bonus [MATH §4].

    The last drafted token does not go through the verifier, so the call has a row less: that of a
    draft shorter by one. If a smaller exit of the same trunk drafted it, it does not go through the
    layers they share either, so that this pass over their weights, which is in every measured
    check, is saved: e layers, as the plain calls of the two exits differ by the layers between
    them.
    """
    out = call_ms.copy()
    out[:, :, 1:] = call_ms[:, :, :-1]
    # 0 where a model is no exit, or one that was left out, so that none of its calls was timed.
    exits = [
        int((model.level or {}).get("exit_layer", 0)) if (None, k) in costs.rows else 0
        for k, model in enumerate(models)
    ]
    for k, (verifier, upper) in enumerate(zip(models, exits, strict=True)):
        for i, (drafter, lower) in enumerate(zip(models[:k], exits, strict=False)):
            if lower and upper and lower < upper and drafter.owner == verifier.owner:
                layer_ms = (costs.plain_call(k) - costs.plain_call(i)) / (upper - lower)
                saved = np.clip(lower * layer_ms, 0.0, None)
                # Not below a pass of one row through the layers between the exits.
                floor = (upper - lower) * max(layer_ms, 0.0)
                out[i, k, 1:] = np.maximum(out[i, k, 1:] - saved, np.minimum(out[i, k, 1:], floor))
    return out


def _uses_target_trunk(model: MeasuredModel, target: MeasuredModel) -> bool:
    """Return whether a model runs on the target's cache: an exit, or a copy of it."""
    level = model.config
    return model.owner == target.owner or (level is not None and level.capabilities.cache != "own")


def _curves_of_all(pair: MeasuredPair) -> MeasuredClass:
    curves = pair.survival
    return MeasuredClass(block=curves.block, tokenwise=curves.tokenwise, joint=pair.joint)


def extend_curve(curve: np.ndarray, size: int) -> np.ndarray:
    """Extend a survival curve [M+1] to ``size`` entries, at the rate of its last few tokens."""
    out = np.empty(size)
    measured = min(len(curve), size)
    out[:measured] = curve[:measured]
    if measured < size:
        back = min(4, measured - 1)
        start, end = out[measured - 1 - back], out[measured - 1]
        rate = (end / start) ** (1 / back) if start > 0 and back else 0.0
        out[measured:] = end * rate ** np.arange(1, size - measured + 1)
    return out


class _Costs:
    """Mean times by number of tokens."""

    def __init__(self, models: Sequence[MeasuredModel], measured: AtTemperature) -> None:
        self.models, self.count = models, len(models)
        self.rows = {(row.drafter, row.verifier): row for row in measured.costs}
        self.pairs = [(pair.drafter, pair.verifier) for pair in measured.pairs]

    def drafts(self, size: int) -> tuple[np.ndarray, np.ndarray]:
        """Return ms of drafts of n tokens [K+1, size], and ms that first steps add [K+1, K+1].

        A draft grows by a step with every token, so one step's time is fitted to all lengths after
        all verifiers: the noise of a single length is larger than steps differ. A draft begins
        right after the verifier's call, which has used the processor's caches. So its first step
        takes longer, the more so after some verifiers: milliseconds of drafts are those after the
        verifier that slows it least, and what other pairs add is by pair.
        """
        out = np.zeros((self.count, size))
        first_step_extra = np.zeros((self.count, self.count))
        lengths = np.arange(size)
        for i in range(self.count):
            found = {k: row.draft for (j, k), row in self.rows.items() if j == i and row.draft}
            if not found:
                out[i] = lengths * self.plain_call(i) if (None, i) in self.rows else 0.0
                continue
            out[i, 0] = min((times[0].mean for times in found.values() if 0 in times), default=0.0)
            if drafted := {k: times for k, times in found.items() if any(times)}:
                first_ms, step_ms = _first_and_step(list(drafted.values()))
                out[i, 1:] = first_ms.min() + step_ms * (lengths[1:] - 1)
                first_step_extra[i, list(drafted)] = first_ms - first_ms.min()
        return out, first_step_extra

    def verify_calls(self, size: int) -> np.ndarray:
        """Return the milliseconds of one verifier's call on n tokens, [K+1, K+1, size]."""
        out = np.zeros((self.count, self.count, size))
        lengths = np.arange(size)
        for i, k in dict.fromkeys((*self.rows, *self.pairs)):
            if i is None or (None, k) not in self.rows:
                continue
            out[i, k] = _interpolate(self._calls(i, k), lengths)
        return out

    def _calls(self, drafter: int, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Return lengths n, and the milliseconds of model k's calls on n tokens of a drafter.

        A call without a draft is the same for every drafter: noise must make none cheaper. Others
        differ by their length, and by what the drafter has left of the caches; this sum is fitted
        to the times after all drafters. So noise in one of them counts little, and a look-up that
        found nothing as long while it was timed, or a pair that was not timed, has a price, too.
        """
        others = [i for i, verifier in self.rows if verifier == k and i is not None]
        if not self._is_special(drafter, k):
            others = [i for i in others if not self._is_special(i, k)]
        elif drafter in others:
            others = [drafter]
        lengths = sorted({n for i in others for n in self.rows[i, k].check} - {0})
        if not lengths:
            return np.array([0]), np.array([self.plain_call(k)])
        times = [[self.rows[i, k].check.get(n) for n in lengths] for i in others]
        weights = np.array([[time.count if time else 0 for time in row] for row in times])
        means = np.array([[time.mean if time else 0.0 for time in row] for row in times])
        by_drafter, by_length = _sum_of_two(means, weights)
        own = by_drafter[others.index(drafter)] if drafter in others else 0.0
        # Where one time is far off, so is the sum; it is never below what a call has really taken.
        fitted = np.maximum(by_length + own, means[weights > 0].min())
        return np.array([0, *lengths]), np.array([self.plain_call(k), *fitted])

    def _is_special(self, drafter: int, k: int) -> bool:
        """Return whether model k's calls on a drafter's tokens differ from those on others'.

        They pass fewer layers if it is an exit of k's trunk, and more tokens than a draft is long
        if they are a tree.
        """
        low, high = self.models[drafter], self.models[k]
        return low.owner == high.owner or low.makes_several

    def plain_call(self, k: int) -> float:
        return self.rows[None, k].check[0].mean


def _first_and_step(drafts: Sequence[Mapping[int, TimeSummary]]) -> tuple[np.ndarray, float]:
    """Fit first + (n - 1) step to times of drafts of n tokens, least squares of relative errors.

    Returns:
        the first step's milliseconds in each of ``drafts``, and those of further steps in all.
    """
    points = [(row, n, time) for row, times in enumerate(drafts) for n, time in times.items() if n]
    left, right = np.zeros((len(points), len(drafts) + 1)), np.zeros(len(points))
    for number, (row, n, time) in enumerate(points):
        weight = time.count**0.5 / max(time.mean, 1e-9)
        left[number, row], left[number, -1] = weight, weight * (n - 1)
        right[number] = weight * time.mean
    *first, step = np.linalg.lstsq(left, right)[0]
    if all(n == 1 for _, n, _ in points):  # then further steps are taken to cost as much
        step = np.mean(first) if first else 0.0
    return np.maximum(first, 0.0), max(float(step), 0.0)  # noise makes none negative


def _sum_of_two(values: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Fit rows[i] + columns[n] to weighted values [I, N], some of weight 0; rows are near 0."""
    rows, columns = np.zeros(len(values)), np.zeros(values.shape[1])
    for _ in range(20):  # each of the two given the other, by turns
        columns = np.average(values - rows[:, None], axis=0, weights=weights)
        rows = (weights * (values - columns)).sum(1) / np.maximum(weights.sum(1), 1)
    return rows, columns


def _interpolate(points: tuple[np.ndarray, np.ndarray], lengths: np.ndarray) -> np.ndarray:
    """Interpolate linearly; past the last point, with the slope from the middle one to it."""
    timed_lengths, mean_ms = points
    out = np.interp(lengths, timed_lengths, mean_ms)
    if len(timed_lengths) > 1:
        middle = min(len(timed_lengths) // 2, len(timed_lengths) - 2)
        slope = (mean_ms[-1] - mean_ms[middle]) / (timed_lengths[-1] - timed_lengths[middle])
        beyond = lengths > timed_lengths[-1]
        out[beyond] = mean_ms[-1] + max(slope, 0.0) * (lengths[beyond] - timed_lengths[-1])
    return out
