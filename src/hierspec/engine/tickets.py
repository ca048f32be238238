"""A request in the engine's loop, its progress, and what its caller receives."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hierspec.sampling.parameters import SamplingParams

from .metrics import LevelStats
from .output import Output
from .results import TokenEvent
from .stopping import StopConditions


class RequestCancelledError(Exception):
    """The caller cancelled the request, or the loop is shutting down."""


class DeadlineError(Exception):
    """The request was not finished by its deadline."""


@dataclass(frozen=True, slots=True, eq=False)
class EngineRequest:
    """A request for one sequence.

    Attributes:
        prompt: token ids, at least one.
        seed: of all its randomness; ``place``: its index among the sequences with that seed.
        stop: when it ends; ``max_new_tokens`` is set.
        logprobs: report the raw target's log-probability of every output token, and of this many
            likeliest ones at its position; ``None``: report none.
        prompt_logprobs: the same for the prompt's tokens.
        lane: name of its hierarchy; empty for the default.
        priority: lower goes first.
        deadline: by ``time.monotonic``; ``None``: there is none.
        tenant: caches are shared among requests of one tenant only.
        speculative: false for plain decoding.
        fixed_plan: whether drafts ignore the load, so that a seeded text is always the same.
        prediction: tokens that the output is expected to repeat.
    """

    prompt: Sequence[int]
    params: SamplingParams
    stop: StopConditions
    seed: int
    place: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    lane: str = ""
    priority: int = 0
    deadline: float | None = None
    tenant: str = ""
    speculative: bool = True
    fixed_plan: bool = False
    prediction: Sequence[int] = ()


class TokenScore(NamedTuple):
    """A token's log-probability under the raw target, and the likeliest tokens at its position."""

    logprob: float
    top_logprobs: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Ended:
    """The result of a request. Times in seconds.

    Attributes:
        error: what failed; ``None`` if the text ended. Else ``finish_reason`` is ``"cancelled"``.
        text: the whole output.
        num_cached_tokens: tokens of the prompt copied from caches of other texts.
        levels: counters of its drafts, smallest level first.
        plans: number of rounds of the target by plan.
        slowdown: as in :class:`~hierspec.engine.results.GenerationResult`.
        prompt_logprobs: of every token of the prompt but the first, if requested.
    """

    finish_reason: str
    error: Exception | None
    text: str
    token_ids: tuple[int, ...]
    num_prompt_tokens: int
    num_cached_tokens: int
    queue_seconds: float
    time_to_first_token: float
    total_seconds: float
    target_calls: int
    mean_acceptance_length: float
    levels: tuple[LevelStats, ...]
    plans: dict[str, int]
    seed: int
    prompt_logprobs: tuple[TokenScore, ...] = ()
    slowdown: float | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """What a sequence's sink receives after a round.

    Attributes:
        level_counts: (level, tokens drafted, tokens kept) of this round, smallest level first.
        plan: of this round, by its name in :attr:`Ended.plans`.
        prompt_logprobs: of every token of the prompt but the first; only in the first progress.
    """

    events: list[TokenEvent]
    level_counts: tuple[tuple[str, int, int], ...] = ()
    ended: Ended | None = None
    prompt_logprobs: tuple[TokenScore, ...] = ()
    plan: str = ""


# One that raises has not taken the progress: its request is cancelled, or the end is told again.
Sink = Callable[[Progress], None]


class Ticket:
    """A request in the loop, from its arrival to its end.

    It waits until it is admitted; is then read until ``joined``, and in rounds until ``ended``.

    Attributes:
        number: unique in the loop.
        max_tokens: of cache: its prompt and the longest output.
        order: lower is served first.
        num_read: tokens of the prompt that are in its caches; ``num_cached``: of these, copied
            from other texts.
        prefix_copied: whether such texts were searched.
        joined: whether it takes part in rounds.
        error: what ends it before its text does.
        ended: whether its end was reported.
        events: of its tokens that are not reported yet.
        level_counts, plan: of the last round, as in :class:`Progress`.
    """

    __slots__ = (
        "arrival_time",
        "cancelled",
        "ended",
        "error",
        "events",
        "joined",
        "level_counts",
        "max_tokens",
        "num_cached",
        "num_read",
        "number",
        "order",
        "output",
        "plan",
        "prefix_copied",
        "prompt_logprobs",
        "request",
        "rounds_by_plan",
        "sink",
        "start_time",
    )

    def __init__(self, request: EngineRequest, sink: Sink, number: int, max_tokens: int) -> None:
        self.request, self.sink, self.number = request, sink, number
        self.max_tokens = max_tokens
        self.order = (request.priority, number)
        self.arrival_time = time.monotonic()
        self.start_time = 0.0
        self.cancelled = self.prefix_copied = self.joined = self.ended = False
        self.error: BaseException | None = None
        self.output: Output | None = None
        self.events: list[TokenEvent] = []
        self.level_counts: tuple[tuple[str, int, int], ...] = ()
        self.plan = ""
        self.num_read = self.num_cached = 0
        self.rounds_by_plan: dict[str, int] = {}
        self.prompt_logprobs: list[TokenScore] = []

    def cancel(self) -> None:
        """End the request within one round; safe from any thread, at any time, and twice."""
        self.cancelled = True

    @property
    def num_unread(self) -> int:
        return len(self.request.prompt) - self.num_read

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to do but to report its end."""
        has_finished = self.output is not None and self.output.finish_reason is not None
        return self.ended or self.error is not None or has_finished

    def progress(self, ended: Ended | None) -> Progress:
        """Return what its sink has not received yet."""
        is_first = self.output is not None and len(self.output.emitted) == 1
        logprobs = tuple(self.prompt_logprobs) if is_first else ()
        return Progress(self.events, self.level_counts, ended, logprobs, self.plan)
