"""Costs of calls, measured inside real rounds: distributions, draws and verification included.

A call costs more after another model has used the processor's caches, a check of n tokens costs
more than one of a single token, and an early exit is cheaper above another exit of its trunk.
So every pair of models is timed as a two-level hierarchy with several budgets, taking turns, and
samples are averaged; those past twice the median are left out.

Outside the rounds, a token costs its text, stop conditions and event: :func:`token_ms`.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from hierspec.core.context import Context
from hierspec.core.nodes import Draft, Verify, initial_states
from hierspec.core.proposals import Verdict
from hierspec.core.requests import Check
from hierspec.core.rng import PhiloxRng
from hierspec.drafters.base import LookUp
from hierspec.engine.generation import Generation
from hierspec.engine.observers import Observer
from hierspec.engine.request import Request
from hierspec.engine.runtime import Runtime
from hierspec.engine.sequences import LiveSequence, Task
from hierspec.engine.stopping import StopConditions
from hierspec.lm.trunk.trunk import ExitModel
from hierspec.sampling.parameters import SamplingParams
from hierspec.utils.graphs import RUNS_BEFORE_REPLAY

from .candidates import CandidatePool
from .rounds import build_levels, distributions_after, open_sequence, rewind
from .schema import CallSamples, MeasuredCost, TimeSummary

WARM, TIMED = 1, 2  # rounds before timing, and timed, in each turn of a pair
_MIN_SAMPLES = 4
_MAX_ERROR = 0.025  # of a call's median, relative: about its interquartile range / √samples
_LEAST_MS = 1e-5  # of a call, by however coarse a clock: costs are divided by
TOKENS = 12  # generated to measure what a token costs outside the rounds

ModelPair = tuple[int | None, int]  # drafter, verifier; None: a call without a draft
TimedCall = tuple[int | None, int, int]  # the same, and the length of the draft


def token_ms(pool: CandidatePool, prompt: Sequence[int], temperature: float) -> float:
    """Measure milliseconds per token outside the rounds, in a short plain generation."""
    rounds = _RoundSeconds()
    stop = StopConditions(
        ignore_eos=True, max_new_tokens=TOKENS, max_length=pool.members[-1].model.max_length
    )
    params = SamplingParams(temperature=temperature)
    request = Request(prompt=prompt, params=params, stop=stop)
    generation = Generation(
        build_levels(pool), [request], tokenizer=pool.tokenizer, observers=(rounds,)
    )
    tokens = iter(generation)
    next(tokens, None)  # it reads the prompt
    began, before, outside = time.perf_counter(), rounds.seconds, list[float]()
    for _ in tokens:
        ended = time.perf_counter()
        outside.append(ended - began - (rounds.seconds - before))
        began, before = ended, rounds.seconds
    # The median: the machine may have stood still at one. None where the context is full.
    return max(1e3 * float(np.median(outside)), 0.0) if outside else 0.0


class _RoundSeconds(Observer):
    """Adds up the seconds that rounds take."""

    def __init__(self) -> None:
        self.seconds, self._began = 0.0, 0.0

    def on_round_begin(self, sequences: Sequence[LiveSequence]) -> None:
        self._began = time.perf_counter()

    def on_round_end(self, sequences: Sequence[LiveSequence], verdicts: Sequence[Verdict]) -> None:
        self.seconds += time.perf_counter() - self._began


def entry(samples: CallSamples) -> MeasuredCost:
    """Return the times of a pair's calls as the profile keeps them."""
    draft, check = summary(samples.draft), summary(samples.check)
    return MeasuredCost(
        drafter=samples.drafter, verifier=samples.verifier, draft=draft, check=check
    )


class _Clock(Observer):
    """Records every request: whether it was a check, its number of tokens, its seconds.

    Args:
        budget: the number of tokens to record if drafts are trees, which have no single length.
    """

    def __init__(self, budget: int | None = None) -> None:
        self.budget = budget
        self.calls: list[tuple[bool, int, float]] = []

    def on_answer(
        self, tasks: Sequence[Task], answers: Sequence[Any], began: float, seconds: float
    ) -> None:
        request = tasks[0].request
        assert isinstance(request.node, Draft | Verify)
        _synchronise(request.node.model)
        check = isinstance(request, Check)
        tokens = len(request.draft) if check else len(answers[0][0])
        self.calls.append((check, self.budget or tokens, time.perf_counter() - began))


class PairTimer:
    """Times pairs in rounds on one text, which is rewound after every turn."""

    def __init__(
        self, pool: CandidatePool, tokens: Sequence[int], temperature: float, seed: int = 0
    ) -> None:
        self.pool, self.base = pool, len(tokens)
        self.roots: dict[TimedCall, Verify] = {}
        self.sequence = open_sequence(build_levels(pool), 0, tokens, temperature, PhiloxRng(seed))
        # A copy on the target's cache then reads what the target has read, as when it drafts.
        distributions_after(pool, len(pool.members) - 1, [self.sequence], [Context(tokens)], [0])

    def close(self) -> None:
        self.sequence.close()

    def turn(self, drafter: int | None, verifier: int, budget: int, times: CallSamples) -> None:
        """Time a few rounds of a pair, after one that warms the processor's caches for it.

        Calls that a GPU records are recorded before, at the first turn.
        """
        sequence, key = self.sequence, (drafter, verifier, budget)
        is_new = key not in self.roots
        if is_new:
            self.roots[key] = build_levels(self.pool, verifier, drafter, budget)
        sequence.root = self.roots[key]
        sequence.states = initial_states(sequence.root)
        has_several = drafter is not None and self.pool.members[drafter].num_drafts > 1
        runtime = Runtime(sequence.root, self.pool.vocab_size)
        clock = _Clock(budget if has_several else None)
        runtime.observe(clock)
        is_recorded = self.pool.members[verifier].model.graphs is not None
        num_warm = WARM + RUNS_BEFORE_REPLAY if is_recorded and is_new else WARM
        for number in range(num_warm + TIMED):
            clock.calls.clear()
            began = time.perf_counter()
            (verdict,) = runtime.round([sequence])
            overhead = time.perf_counter() - began - sum(seconds for *_, seconds in clock.calls)
            sequence.tokens.extend(verdict.emitted.tokens)
            if number < num_warm:
                continue
            for check, tokens, seconds in clock.calls:
                if check:
                    times.check.setdefault(tokens, []).append(1e3 * (seconds + overhead))
                else:
                    times.draft.setdefault(tokens, []).append(1e3 * seconds)
        # Caches too: those left from this turn would spare the next one its work.
        rewind(sequence, self.base)


def _synchronise(model: Any) -> None:
    if not isinstance(model, LookUp) and model.device.type == "cuda":
        torch.cuda.synchronize(model.device)


def timed_calls(pairs: Iterable[ModelPair], lengths: Iterable[int]) -> list[TimedCall]:
    """Return the calls of pairs at all lengths of drafts; at 0 where there is no drafter."""
    return [(i, k, n) for i, k in pairs for n in ((0,) if i is None else lengths)]


def time_calls(
    pool: CandidatePool,
    calls: Iterable[TimedCall],
    tokens: Sequence[int],
    *,
    repeats: int,
    temperature: float,
    seed: int = 0,
    known: Iterable[CallSamples] = (),
    on_call: Callable[[TimedCall], None] = lambda call: None,
) -> dict[ModelPair, CallSamples]:
    """Time all calls, in a new random order per repetition, until they have settled.

    A pair ``(None, k)`` is model k called without a draft: plain decoding by it.

    Args:
        known: samples of these pairs from before, which count.
    """
    calls = list(calls)
    times = {(i, k): CallSamples(drafter=i, verifier=k, draft={}, check={}) for i, k, _ in calls}
    for samples in known:
        times[samples.drafter, samples.verifier] = samples.model_copy(deep=True)
    shuffle = random.Random(seed)
    timer = PairTimer(pool, tokens, temperature, seed)
    try:
        for _ in range(repeats):
            shuffle.shuffle(calls)
            for drafter, verifier, budget in calls:
                if not settled(times[drafter, verifier], budget):
                    timer.turn(drafter, verifier, budget, times[drafter, verifier])
                on_call((drafter, verifier, budget))
    finally:
        timer.close()
    return times


def settled(times: CallSamples, budget: int) -> bool:
    """Return whether the medians of a pair's calls at a budget are known to a few percent."""
    check, draft = times.check.get(budget, []), times.draft.get(budget, [])
    kinds = (check, draft) if budget else (check,)
    return all(
        len(times) >= _MIN_SAMPLES and _spread(times) <= _MAX_ERROR * len(times) ** 0.5
        for times in kinds
    )


def _spread(samples: Sequence[float]) -> float:
    low, middle, high = np.percentile(samples, [25, 50, 75])
    return float((high - low) / middle) if middle > 0 else 0.0


def summary(samples: Mapping[int, Sequence[float]]) -> dict[int, TimeSummary]:
    """Return per length the mean, median, quartiles and number of the samples, in milliseconds.

    The mean, a call's cost in a long run, leaves out samples past twice the median, which
    other programs cause. Of an even number the lower of its two counts: were it the mean of two,
    the longer one would never be past its double, even if the machine stood still for an hour.
    """
    out: dict[int, TimeSummary] = {}
    for n in sorted(samples):
        low, middle, high = (float(x) for x in np.percentile(samples[n], [25, 50, 75]))
        lower = np.percentile(samples[n], 50, method="lower")
        typical = [value for value in samples[n] if value <= 2 * lower]
        out[n] = TimeSummary(
            mean=max(round(float(np.mean(typical)), 5), _LEAST_MS),
            median=round(middle, 5),
            low=round(low, 5),
            high=round(high, 5),
            count=len(samples[n]),
        )
    return out


def single_calls(
    pool: CandidatePool, tokens: Sequence[int], temperature: float, repeats: int = 5
) -> list[float]:
    """Measure milliseconds of each member's call without a draft; 0 for look-ups."""
    scoring = [(None, k, 0) for k, member in enumerate(pool.members) if member.scores]
    times = time_calls(pool, scoring, tokens, repeats=repeats, temperature=temperature)
    return [
        max(float(np.median(times[None, k].check[0])), _LEAST_MS) if member.scores else 0.0
        for k, member in enumerate(pool.members)
    ]


def order(pool: CandidatePool, milliseconds: Sequence[float]) -> list[int]:
    """Sort the members from the cheapest call to the most expensive; the target stays last.

    Exits of one trunk stay in the order of their layers, whatever the noise.
    """
    *numbers, target = range(len(pool.members))
    models = [member.model for member in pool.members]
    layers = [model.exit_layer if isinstance(model, ExitModel) else 0 for model in models]
    owners = [member.owner for member in pool.members]

    def monotone_ms(i: int) -> float:
        lower = [j for j in numbers if owners[j] == owners[i] and layers[j] < layers[i]]
        return max(milliseconds[j] for j in (i, *lower))

    return [*sorted(numbers, key=lambda i: (monotone_ms(i), layers[i])), target]
