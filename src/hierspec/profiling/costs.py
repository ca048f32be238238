"""What a token costs outside the rounds: text, stop conditions, events.

What calls cost, measured inside real rounds: laws, draws and verification included.

A call is dearer after another model has had the caches of the processor, a check of n tokens is
dearer than one of a single token, and an early exit is cheaper above another exit of its trunk.
So every pair of models is timed as a two-level hierarchy with budgets of several lengths, all
pairs and lengths in turns, and means are taken; samples past twice the median are left out.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from hierspec.core.nodes import Concatenate, Draft, Verify, initial_states
from hierspec.core.proposals import Verdict
from hierspec.core.requests import Check
from hierspec.core.rng import PhiloxRng
from hierspec.engine.generation import Generation
from hierspec.engine.observers import Observer
from hierspec.engine.runtime import Runtime
from hierspec.engine.sequences import LiveSequence, Task
from hierspec.engine.stopping import StopConditions
from hierspec.sampling.parameters import SamplingParams
from hierspec.verifiers import registry as verifiers

from .candidates import Pool
from .rates import rewind

TOKENS = 24


def token_ms(pool: Pool, prompt: Sequence[int], temperature: float) -> float:
    """Milliseconds a token, from a short plain generation."""
    model = pool.entrants[-1].model
    root = Verify(0, "target", model, 1, verifiers.get("block"), None)
    generation = Generation(
        root,
        [list(prompt)],
        tokenizer=pool.tokenizer,
        params=[SamplingParams(temperature=temperature)],
        stop=StopConditions(
            eos_token_ids=frozenset(),
            ignore_eos=True,
            stop=(),
            max_new_tokens=TOKENS,
            max_length=model.max_length,
            include_stop_str=False,
        ),
        seed=0,
        want_logprobs=False,
        lock=contextlib.nullcontext(),
    )
    rounds = _InRounds()
    generation.runtime.observe(rounds)
    began = time.perf_counter()
    written = sum(1 for _ in generation)  # fewer where the context is full
    return max(1e3 * (time.perf_counter() - began - rounds.seconds) / max(written, 1), 0.0)


class _InRounds(Observer):
    """Adds up the seconds that rounds take."""

    def __init__(self) -> None:
        self.seconds, self._began = 0.0, 0.0

    def round_began(self, sequences: Sequence[LiveSequence]) -> None:
        self._began = time.perf_counter()

    def round_ended(self, sequences: Sequence[LiveSequence], verdicts: Sequence[Verdict]) -> None:
        self.seconds += time.perf_counter() - self._began


WARM, TIMED = 1, 2  # rounds of a turn
Samples = dict[int, list[float]]  # by number of tokens: milliseconds


@dataclass(slots=True, eq=False)
class PairTimes:
    """Milliseconds of a pair's calls, by length of the draft.

    Attributes:
        draft: of the drafter for n tokens, from its first step after the verifier's call.
        check: of the verifier's call on n tokens, its share of the engine's own work included.
    """

    draft: Samples = field(default_factory=lambda: defaultdict(list))
    check: Samples = field(default_factory=lambda: defaultdict(list))


class _Clock(Observer):
    """Notes what every request took: whether it was a check, its tokens, seconds."""

    def __init__(self) -> None:
        self.calls: list[tuple[bool, int, float]] = []

    def answered(
        self, tasks: Sequence[Task], answers: Sequence[Any], began: float, seconds: float
    ) -> None:
        request = tasks[0].request
        assert not isinstance(request.node, Concatenate)
        _synchronise(request.node.model)
        seconds = time.perf_counter() - began
        check = isinstance(request, Check)
        tokens = len(request.draft) if check else len(answers[0][0])
        self.calls.append((check, tokens, seconds))


class Stopwatch:
    """Times pairs on one growing text, which is wound back after every turn.

    Args:
        tokens: the text that calls are conditioned on.
    """

    def __init__(
        self, pool: Pool, tokens: Sequence[int], temperature: float, seed: int = 0
    ) -> None:
        self.pool, self.base = pool, len(tokens)
        self.roots: dict[tuple[int | None, int, int], Verify] = {}
        root = self._root(None, len(pool.entrants) - 1, 0)
        self.sequence = LiveSequence(
            id=0,
            root=root,
            tokens=list(tokens),
            params=SamplingParams(temperature=temperature),
            rng=PhiloxRng(seed),
            wanted=1 << 30,
        )

    def close(self) -> None:
        self.sequence.close()

    def turn(self, drafter: int | None, verifier: int, budget: int, times: PairTimes) -> None:
        """A few rounds of one pair; the first are not counted, since the caches were another's."""
        sequence = self.sequence
        sequence.root = self._root(drafter, verifier, budget)
        sequence.states = initial_states(sequence.root)
        runtime, clock = Runtime(sequence.root, self.pool.vocab_size), _Clock()
        runtime.observe(clock)
        for number in range(WARM + TIMED):
            clock.calls.clear()
            began = time.perf_counter()
            (verdict,) = runtime.round([sequence])
            own = time.perf_counter() - began - sum(seconds for *_, seconds in clock.calls)
            sequence.tokens.extend(verdict.emitted.tokens)
            if number < WARM:
                continue
            for check, tokens, seconds in clock.calls:
                if check:
                    times.check[tokens].append(1e3 * (seconds + own))
                else:
                    times.draft[tokens].append(1e3 * seconds)
        # Wound back, for the same tokens again would cost nothing.
        rewind(sequence, self.base)

    def _root(self, drafter: int | None, verifier: int, budget: int) -> Verify:
        key = (drafter, verifier, budget)
        if key not in self.roots:
            top = self.pool.entrants[verifier]
            below = None
            if drafter is not None:
                low = self.pool.entrants[drafter]
                below = Draft(0, low.name, low.model, budget, low.window, low.temperature)
            rule = verifiers.get("block")
            at = 0 if below is None else 1
            self.roots[key] = Verify(
                at, top.name, top.model, 1, rule, below, temperature=top.temperature
            )
        return self.roots[key]


def _synchronise(model: Any) -> None:
    device = getattr(model, "device", None)
    if device is not None and device.type == "cuda":
        torch.cuda.synchronize(device)


@dataclass(frozen=True, slots=True)
class Turn:
    """What is timed in one go; ``drafter`` is ``None`` for a call without a draft."""

    drafter: int | None
    verifier: int
    budget: int


def time_pairs(
    pool: Pool,
    pairs: Sequence[tuple[int | None, int]],
    tokens: Sequence[int],
    *,
    budgets: Sequence[int],
    repeats: int,
    temperature: float,
    seed: int = 0,
    done: Callable[[], None] = lambda: None,
) -> dict[tuple[int | None, int], PairTimes]:
    """Time all pairs and budgets, in a new random order every time around.

    A pair ``(None, k)`` is model k called without a draft: plain decoding by it.
    """
    turns = [Turn(i, k, n) for i, k in pairs for n in ((0,) if i is None else budgets)]
    times: dict[tuple[int | None, int], PairTimes] = {pair: PairTimes() for pair in pairs}
    shuffle = random.Random(seed)
    watch = Stopwatch(pool, tokens, temperature, seed)
    try:
        for _ in range(repeats):
            shuffle.shuffle(turns)
            for turn in turns:
                pair = (turn.drafter, turn.verifier)
                watch.turn(turn.drafter, turn.verifier, turn.budget, times[pair])
                done()
    finally:
        watch.close()
    return times


def summary(samples: Samples) -> dict[str, dict[str, float]]:
    """Per length: mean, median, quartiles and number of the samples, in milliseconds.

    The mean is what a long run costs a call; it leaves out samples past twice the median, which are
    other programs' doing.
    """
    out = {}
    for n in sorted(samples):
        low, middle, high = np.percentile(samples[n], [25, 50, 75])
        usual = [value for value in samples[n] if value <= 2 * middle]
        out[str(n)] = {
            "mean": round(float(np.mean(usual)), 5),
            "median": round(float(middle), 5),
            "low": round(float(low), 5),
            "high": round(float(high), 5),
            "count": len(samples[n]),
        }
    return out


def alone(pool: Pool, tokens: Sequence[int], temperature: float, repeats: int = 5) -> list[float]:
    """Milliseconds of a call without a draft, of every entrant; 0 for what is no model."""
    scoring: list[tuple[int | None, int]] = [
        (None, k) for k, entrant in enumerate(pool.entrants) if entrant.scores
    ]
    times = time_pairs(pool, scoring, tokens, budgets=(), repeats=repeats, temperature=temperature)
    return [
        float(np.median(times[None, k].check[0])) if entrant.scores else 0.0
        for k, entrant in enumerate(pool.entrants)
    ]


def order(pool: Pool, milliseconds: Sequence[float]) -> list[int]:
    """The entrants from the cheapest call to the dearest; the target stays last.

    Exits of one trunk stand in the order of their layers, whatever the noise.
    """
    *numbers, target = range(len(pool.entrants))
    layers = {i: getattr(pool.entrants[i].model, "exit_layer", 0) for i in numbers}
    owners = {i: pool.entrants[i].owner for i in numbers}
    floor = {
        i: max(
            milliseconds[j]
            for j in numbers
            if j == i or (owners[j] == owners[i] and layers[j] < layers[i])
        )
        for i in numbers
    }
    return [*sorted(numbers, key=lambda i: (floor[i], layers[i])), target]
