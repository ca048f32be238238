"""A request in the engine's loop: what is asked, its progress, and what its caller receives."""

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
    """The caller has gone, or the loop is ending."""


class DeadlineError(Exception):
    """The request took longer than it was given."""


@dataclass(frozen=True, slots=True, eq=False)
class EngineRequest:
    """One sequence to be written.

    Attributes:
        prompt: token ids, at least one.
        seed: of all its randomness; ``place``: which of the sequences with that seed it is.
        stop: its limits; ``max_new_tokens`` is set.
        logprobs: report the raw target's log-probability of every token written, and those of so
            many likeliest ones; ``None``: none.
        prompt_logprobs: the same for the prompt's own tokens.
        lane: which hierarchy.
        priority: lower goes first.
        deadline: by ``time.monotonic``; ``None``: there is none.
        tenant: whose it is; caches are shared among a tenant's requests only.
        speculative: false: plain decoding.
        fixed_plan: drafts do not follow the load, so that a seeded text is always the same.
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
    """A token's log-probability under the raw target, and the likeliest tokens in its place."""

    logprob: float
    top_logprobs: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Ended:
    """How a sequence came to its end. Times in seconds.

    Attributes:
        error: why, if it is no end of a text: then ``finish_reason`` is ``"cancelled"``.
        text: all of it.
        num_cached_tokens: of the prompt, taken from kept caches.
        levels: what became of its drafts, smallest level first.
        plans: rounds of the target by what drafted for them.
        prompt_logprobs: of every token of the prompt but the first, where asked for.
        rest: text that was held back for a stop string, where it was cut short.
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
    rest: str = ""


@dataclass(frozen=True, slots=True)
class Progress:
    """What a sequence's sink receives after a round.

    Attributes:
        drafts: (level, tokens drafted, tokens kept) of this round, smallest level first.
        prompt_logprobs: of every token of the prompt but the first: with the first progress.
    """

    events: list[TokenEvent]
    drafts: tuple[tuple[str, int, int], ...] = ()
    ended: Ended | None = None
    prompt_logprobs: tuple[TokenScore, ...] = ()


Sink = Callable[[Progress], None]


class Ticket:
    """A request in the loop. ``cancel`` may be called from any thread, any time, twice."""

    __slots__ = (
        "arrived",
        "cached",
        "cancelled",
        "joined",
        "looked",
        "number",
        "order",
        "output",
        "plans",
        "read",
        "request",
        "scores",
        "sink",
        "size",
    )

    def __init__(self, request: EngineRequest, sink: Sink, number: int, size: int) -> None:
        self.request, self.sink, self.number, self.size = request, sink, number, size
        self.order = (request.priority, number)
        self.arrived = time.monotonic()
        self.joined = 0.0
        self.cancelled = self.looked = False
        self.output: Output | None = None
        self.read = self.cached = 0
        self.plans: dict[str, int] = {}
        self.scores: list[TokenScore] = []

    def cancel(self) -> None:
        """End the request within one round; its sink gets the end."""
        self.cancelled = True

    @property
    def unread(self) -> int:
        return len(self.request.prompt) - self.read
