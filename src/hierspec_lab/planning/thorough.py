"""``hierspec profile``: what ``auto`` measures of a few models, measured of all, with real drafts.

No model is left out, every pair is timed at all lengths, acceptance is measured on the prompts,
too, and calls are timed in a long context: plans can then be compared for texts of any length
(:func:`in_context`) and under another rule (:func:`under_tokenwise`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import numpy as np

from hierspec.profiling import agreement, costs, rates
from hierspec.profiling.candidates import possible_pairs
from hierspec.profiling.measure import measure as measure_stages
from hierspec.profiling.profile import Profile
from hierspec.profiling.schema import (
    AtTemperature,
    CallSamples,
    ContextSlope,
    FollowedPair,
    JointSurvival,
    MeasuredClass,
    MeasuredContext,
    MeasuredCost,
    MeasuredPair,
    PairAgreement,
    TimeSummary,
)
from hierspec.profiling.stages import ROWS_OF_MANY, RunStage, Stages, max_tokens_of_turn

LONG_CONTEXT = 1024  # tokens; costs are timed there too, to see what the context costs
_CHECKED = 8  # length of the drafts whose checks are timed there
_LONG = "costs in a long context"  # the stage, as reported

Times = Mapping[costs.ModelPair, Mapping[int, Sequence[float]]]  # checks' samples by tokens


class ThoroughStages(Stages):
    """The measurements on one set of models and prompts, with none left out."""

    slow_ms, least_repeats = math.inf, 2

    def expect(self, allowed: Sequence[tuple[int, int]], calls: Sequence[costs.TimedCall]) -> None:
        super().expect(allowed, calls)
        used = [k for _, k in self.single_calls(allowed)]
        self.expected[_LONG] = sum(self.call_ms[k] for k in used) * LONG_CONTEXT / ROWS_OF_MANY

    def on_texts(self, i: int) -> bool:
        """Return whether a drafter is followed along the texts: look-ups alone are.

        Drafts from all tokens of a text cost them nothing, and what they find is too uneven for a
        few places.
        """
        return super().on_texts(i) and not self.pool.members[i].scores

    def pairs(self, agreed: Mapping[str, PairAgreement]) -> list[tuple[int, int]]:
        return possible_pairs(self.pool.candidates, self.call_ms, self.settings.min_ratio)

    def agreements(
        self, texts: list[list[int]], drafting: rates.DraftingSettings
    ) -> tuple[dict[str, PairAgreement], list[list[int]], list[FollowedPair]]:
        entries, classes, followed = super().agreements(texts, drafting)
        begins = [len(prompt) for prompt in self.prompts]
        found, *_ = agreement.agreements(self.pool, texts, [1] * len(texts), begins, drafting)
        on_prompts = {f"{i} {k}": alike.acceptance for (i, k), alike in found.items()}
        entries = {
            pair: alike.model_copy(update={"acceptance_on_prompts": on_prompts[pair]})
            for pair, alike in entries.items()
        }
        return entries, classes, followed

    def timed_calls(self, pairs: Sequence[tuple[int, int]]) -> list[costs.TimedCall]:
        single = costs.timed_calls(self.single_calls(pairs), ())
        return [*single, *costs.timed_calls(pairs, self.settings.budgets())]

    def time_calls(
        self, calls: Sequence[costs.TimedCall], text: list[int], temperature: float, stage: RunStage
    ) -> Iterator[list[MeasuredCost]]:
        *_, timed = super().time_calls(calls, text, temperature, stage)
        yield timed

    def measure(self, temperature: float, stage: RunStage) -> Iterator[AtTemperature]:
        for measured in super().measure(temperature, stage):
            if measured.priors:
                yield measured
                continue
            work = partial(self.time_long_context, measured, temperature)
            context = stage("context", MeasuredContext, work)
            yield measured.model_copy(update={"context": context})

    def time_long_context(self, measured: AtTemperature, temperature: float) -> MeasuredContext:
        """Measure what calls cost in a long context, as a slope in the tokens before them."""
        members, short = self.pool.members, measured.context.tokens
        single = self.single_calls([(pair.drafter, pair.verifier) for pair in measured.pairs])
        long = min(LONG_CONTEXT, self.longest - max_tokens_of_turn(_CHECKED))
        if long < 2 * short:
            return measured.context
        self.report_share(_LONG)
        first = next((k for _, k in single if members[k].num_drafts == 1), single[0][1])
        verifying = [k for k, one in enumerate(self.pool.candidates) if one.can_verify]
        later = [k for _, k in single if k > first and k in (*verifying, len(members) - 1)]
        wanted = [*single, *((first, k) for k in later)]
        calls = costs.timed_calls(wanted, (_CHECKED,))

        def time(length: int) -> Times:
            times = costs.time_calls(
                self.pool, calls, self.text_of(length), temperature=temperature, repeats=3
            )
            return _checks(times)

        before = {(cost.drafter, cost.verifier): cost.check for cost in measured.costs}
        low: Times = {
            pair: {n: [times.median] for n, times in before.get(pair, {}).items()}
            for pair in wanted
        }
        if not all((0 if pair[0] is None else _CHECKED) in low[pair] for pair in wanted):
            low = time(short)
        high = time(long)

        def slope(pair: costs.ModelPair, tokens: int) -> float:
            short_ms, long_ms = (np.median(times[pair][tokens]) for times in (low, high))
            return float(long_ms - short_ms) / (long - short)

        slopes: list[ContextSlope] = []
        for _, k in single:
            plain = slope((None, k), 0)
            checked = slope((first, k), _CHECKED) if (first, k) in low else plain
            slopes.append(ContextSlope(model=k, ms_per_token_0=plain, ms_per_token_8=checked))
        return MeasuredContext(tokens=short, long=long, slopes=slopes)


measure = partial(measure_stages, stages=ThoroughStages)


def _checks(times: Mapping[costs.ModelPair, CallSamples]) -> Times:
    return {pair: found.check for pair, found in times.items()}


def under_tokenwise(profile: Profile) -> Profile:
    """Return a profile as if ``block`` kept what the rule ``tokenwise`` keeps."""

    def class_of(curves: MeasuredClass) -> MeasuredClass:
        update = {"block": curves.tokenwise, "joint": _of_tokenwise(curves)}
        return curves.model_copy(update=update)

    def pair_of(pair: MeasuredPair) -> MeasuredPair:
        survival = pair.survival.model_copy(update={"block": pair.survival.tokenwise})
        classes = [class_of(curves) for curves in pair.classes]
        update = {"survival": survival, "classes": classes, "joint": _of_tokenwise(pair)}
        return pair.model_copy(update=update)

    temperatures = {
        label: measured.model_copy(update={"pairs": [pair_of(pair) for pair in measured.pairs]})
        for label, measured in profile.temperatures.items()
    }
    return profile.model_copy(update={"temperatures": temperatures})


def _of_tokenwise(curves: MeasuredClass | MeasuredPair) -> dict[str, JointSurvival]:
    return {"block": curves.joint["tokenwise"]} if curves.joint else {}


def in_context(profile: Profile, context: float) -> Profile:
    """Return a profile as if its calls had been timed after so many tokens.

    Times grow linearly with the context. Measured slopes are noisy, so they are clipped between 0
    and the slope at which a call without a context would take no time.

    Args:
        context: tokens before a call, prompt and output.
    """
    temperatures = {
        label: measured.model_copy(update={"costs": _costs_in_context(measured, context)})
        for label, measured in profile.temperatures.items()
    }
    return profile.model_copy(update={"temperatures": temperatures})


def _costs_in_context(measured: AtTemperature, context: float) -> list[MeasuredCost]:
    tokens = measured.context.tokens
    slopes: dict[int | None, tuple[float, float]] = {
        row.model: (row.ms_per_token_0, row.ms_per_token_8) for row in measured.context.slopes
    }

    def shifted(times: TimeSummary, slope: float) -> TimeSummary:
        slope = min(max(slope, 0.0), max(times.mean, 0.0) / tokens)
        mean = times.mean + (max(context, 0.0) - tokens) * slope
        return times.model_copy(update={"mean": mean})

    out = []
    for cost in measured.costs:
        step, _ = slopes.get(cost.drafter, (0.0, 0.0))
        zero, eight = slopes.get(cost.verifier, (0.0, 0.0))
        draft = {n: shifted(times, n * step) for n, times in cost.draft.items()}
        check = {
            n: shifted(times, zero + n / _CHECKED * (eight - zero))
            for n, times in cost.check.items()
        }
        out.append(cost.model_copy(update={"draft": draft, "check": check}))
    return out
