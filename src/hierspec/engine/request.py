"""A request: one sequence from what is asked, over the rounds that write it, to its result.

An engine (:mod:`hierspec.engine.engine`) moves it on; its caller reads what it became. The tokens
that rounds emit become text and events one by one, so an end-of-text token, a stop string or a
limit inside a draft ends the output exactly there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from hierspec.core.proposals import TokenLogprobs, Verdict
from hierspec.core.rng import PhiloxRng
from hierspec.errors import as_exception
from hierspec.lm.base import ModelVerify

from .caches import SessionCache
from .control import Steering
from .results import LevelStats, TokenEvent
from .sequences import LiveSequence
from .stopping import StopConditions, TextStream


class RequestCancelledError(Exception):
    """The caller cancelled the request, or the service is shutting down."""


class DeadlineError(Exception):
    """The request was not finished by its deadline."""


class TokenScore(NamedTuple):
    """A token's log-probability under the raw target, and the likeliest tokens at its position."""

    logprob: float
    top_logprobs: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Progress:
    """What a request's sink receives after a round.

    Attributes:
        level_counts: (level, tokens drafted, tokens accepted) of this round, smallest level first.
        plan: of this round, by its name in :attr:`Request.plans`.
        prompt_logprobs: of every token of the prompt but the first; only in the first progress.
        ended: the request, in its last progress.
    """

    events: list[TokenEvent]
    level_counts: tuple[tuple[str, int, int], ...] = ()
    plan: str = ""
    prompt_logprobs: tuple[TokenScore, ...] = ()
    ended: Request | None = None


# One that raises has not taken the progress: its request is cancelled, or the end is told again.
Sink = Callable[[Progress], None]


@dataclass(slots=True, eq=False, kw_only=True, repr=False)
class Request(LiveSequence):
    """A request for one sequence, and all that becomes of it. Times in seconds.

    It waits until it is admitted, is then prefilled, takes part in rounds until it is over (its
    text has ended, or something failed), and has ended when its caches are free and its caller
    knows. Whose list it is in, and what has to be done for it, follows from that state alone.

    Attributes of what is asked:
        prompt: token ids, at least one.
        seed: of all its randomness; ``place``: its index among the sequences with that seed.
        num_prompt_logprobs: as ``num_logprobs``, of the prompt's tokens.
        hierarchy: name of the hierarchy that runs it; empty for the default.
        priority: lower goes first.
        deadline: by ``time.monotonic``; ``None``: there is none.
        tenant: caches are shared among requests of one tenant only.
        speculative: false for plain decoding.
        fixed_plan: whether drafts ignore the load, so that a seeded text is always the same.
        prediction: tokens that the output is expected to repeat.
        until: called ``until(id, tokens so far)`` after every token; true ends the output.
        cache: of an earlier text, to start from and to give back.
        sink: gets its progress, in the engine's thread, and must be quick.

    Attributes of its state:
        id: unique in its engine, and its place among those of a fixed set.
        max_tokens: of cache: its prompt and the longest output.
        num_prefilled: tokens of the prompt that are in its caches; ``num_cached_tokens``: of
            these, copied from other texts.
        prefix_searched: whether such texts were searched.
        prefilled: whether it takes part in rounds.
        steered: whether steering chose the plan of the round in progress.
        ended: whether its end was reported.

    Attributes of its result:
        finish_reason: ``"stop"``, ``"length"`` or ``"cancelled"``; ``None`` while it is written.
        cut_origins: the levels whose tokens stood behind the end of the text, in its last round.
        level_counts, plan: of the last round, as in :class:`Progress`.
        plans: rounds of the target by plan, where its engine keeps them.
        prompt_logprobs: of every token of the prompt but the first, if requested.
        counted: by level, how many tokens were drafted and accepted up to the last round.
    """

    prompt: Sequence[int]
    stop: StopConditions
    seed: int = 0
    place: int = 0
    num_prompt_logprobs: int | None = None
    hierarchy: str = ""
    priority: int = 0
    deadline: float | None = None
    tenant: str = ""
    speculative: bool = True
    fixed_plan: bool = False
    prediction: Sequence[int] = ()
    until: Callable[[int, Sequence[int]], bool] | None = None
    cache: SessionCache | None = None
    sink: Sink | None = None

    id: int = field(init=False, default=0)
    root: ModelVerify = field(init=False)  # set when it is admitted, like states
    tokens: list[int] = field(init=False)
    rng: PhiloxRng = field(init=False)
    num_remaining_tokens: int = field(init=False, default=1)
    limit: int = field(init=False, default=0)
    max_tokens: int = field(init=False, default=0)
    names: Mapping[int, str] = field(init=False, default_factory=dict[int, str])
    steering: Steering | None = field(init=False, default=None)
    stream: TextStream | None = field(init=False, default=None)
    num_prefilled: int = field(init=False, default=0)
    num_cached_tokens: int = field(init=False, default=0)
    prefix_searched: bool = field(init=False, default=False)
    prefilled: bool = field(init=False, default=False)
    steered: bool = field(init=False, default=False)
    cancelled: bool = field(init=False, default=False)
    failure: BaseException | None = field(init=False, default=None)
    ended: bool = field(init=False, default=False)

    token_ids: list[int] = field(init=False, default_factory=list[int])
    logprobs: list[float] = field(init=False, default_factory=list[float])
    top_logprobs: list[TokenLogprobs] = field(init=False, default_factory=list[TokenLogprobs])
    finish_reason: str | None = field(init=False, default=None)
    cut_origins: tuple[int, ...] = field(init=False, default=())
    events: list[TokenEvent] = field(init=False, default_factory=list[TokenEvent])
    level_counts: tuple[tuple[str, int, int], ...] = field(init=False, default=())
    plan: str = field(init=False, default="")
    plans: dict[str, int] = field(init=False, default_factory=dict[str, int])
    prompt_logprobs: list[TokenScore] = field(init=False, default_factory=list[TokenScore])
    counted: dict[int, tuple[int, int]] = field(
        init=False, default_factory=dict[int, tuple[int, int]]
    )
    arrival_time: float = field(init=False, default=0.0)
    start_time: float = field(init=False, default=0.0)
    first_round_time: float = field(init=False, default=0.0)
    last_round_time: float = field(init=False, default=0.0)
    end_time: float = field(init=False, default=0.0)

    def __post_init__(self) -> None:
        self.tokens, self.rng = list(self.prompt), PhiloxRng(self.seed, self.place)

    def begin(
        self,
        root: ModelVerify,
        limit: int,
        stream: TextStream,
        names: Mapping[int, str],
        steering: Steering | None,
    ) -> None:
        """Get ready for rounds; its ``tokens``, ``source`` and ``states`` are set."""
        self.root, self.limit, self.names, self.steering = root, limit, names, steering
        LiveSequence.__post_init__(self)
        self.stream = stream

    @property
    def order(self) -> tuple[int, int]:
        return self.priority, self.id

    @property
    def num_left(self) -> int:
        return len(self.prompt) - self.num_prefilled

    @property
    def started(self) -> bool:
        """Whether the first round, which prefills the rest of the prompt, has ended."""
        return bool(self.token_ids)

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to do but to report its end."""
        return self.ended or self.failure is not None or self.finish_reason is not None

    def fail(self, error: BaseException) -> None:
        self.failure = self.failure or error

    # --- rounds

    @property
    def end_ids(self) -> frozenset[int]:
        return self.stop.end_ids

    @property
    def max_length(self) -> int:
        return self.prompt_length + self.limit

    def prepare_round(self, plan: ModelVerify | None = None) -> None:
        """Set how many tokens the next round may emit, and its plan.

        Args:
            plan: replaces the choice of steering, which then does not learn from the round.
        """
        # The first token needs no draft: the forward that prefills the prompt gives it.
        self.num_remaining_tokens = self.limit - len(self.token_ids) if self.started else 1
        self.steered = plan is None and self.steering is not None
        if plan is not None:
            self.root = plan
        elif self.steering is not None:
            self.root = self.steering.plan()

    def record_round(self, verdict: Verdict, now: float) -> None:
        self.last_round_time = now
        if not self.started:
            self.first_round_time = now
            self.target_calls = 0
        elif self.steered and self.steering is not None:
            self.states = self.steering.record_round(len(verdict.emitted), self.states)

    def count_round(self) -> None:
        """Set ``level_counts`` to what was drafted and accepted since the last call."""
        counts: list[tuple[str, int, int]] = []
        for index, stats in self.level_stats.items():
            drafted, accepted = self.counted.get(index, (0, 0))
            self.counted[index] = stats.num_draft_tokens, stats.num_accepted_tokens
            if (new := stats.num_draft_tokens - drafted) > 0:
                counts.append((stats.name, new, stats.num_accepted_tokens - accepted))
        self.level_counts = tuple(counts)

    def commit(self, verdict: Verdict) -> Iterator[TokenEvent]:
        """Append a round's tokens, one by one, up to the first that ends the sequence."""
        assert self.stream is not None
        for i, token in enumerate(verdict.emitted.tokens):
            self.token_ids.append(token)
            self.tokens.append(token)
            text, reason = self.stream.feed(token)
            if reason is None and self.until and self.until(self.id, self.tokens):
                reason = "stop"
                text += self.stream.finish()
            logprob = verdict.logprobs[i] if verdict.logprobs else None
            if logprob is not None:
                self.logprobs.append(logprob)
            best = verdict.top_logprobs[i] if verdict.top_logprobs else ()
            if best:
                self.top_logprobs.append(best)
            self.finish_reason = reason
            yield TokenEvent(
                token_id=token,
                text=text,
                index=len(self.token_ids) - 1,
                level=self.names[verdict.emitted.origins[i]],
                logprob=logprob,
                sequence=self.id,
                finish_reason=reason,
                top_logprobs=best,
            )
            if reason is not None:
                self.cut_origins = tuple(verdict.emitted.origins[i + 1 :])
                return

    def report(self, *, end: bool = False) -> None:
        """Give the sink what it has not received yet."""
        if self.sink is not None:
            is_first = len(self.token_ids) == 1
            logprobs = tuple(self.prompt_logprobs) if is_first else ()
            ended = self if end else None
            self.sink(Progress(self.events, self.level_counts, self.plan, logprobs, ended))
        self.events, self.level_counts = [], ()

    def close(self) -> None:
        """Free the caches; a text that is cut short here keeps what was held back.

        Safe to call twice.
        """
        try:
            if self.failure is not None or self.finish_reason is None:
                self.finish_reason = "cancelled"
                if self.stream is not None:
                    self.stream.finish()
        finally:
            LiveSequence.close(self)

    # --- the result

    @property
    def error(self) -> Exception | None:
        """What failed; ``None`` if the text ended."""
        return None if self.failure is None else as_exception(self.failure)

    @property
    def text(self) -> str:
        return "" if self.stream is None else self.stream.text

    @property
    def levels(self) -> tuple[LevelStats, ...]:
        """Counters of its drafts, smallest level first, where its engine keeps them."""
        return tuple(self.level_stats.values())

    @property
    def slowdown(self) -> float | None:
        return self.pace.slowdown

    @property
    def queue_seconds(self) -> float:
        return (self.start_time or self.end_time) - self.arrival_time

    @property
    def time_to_first_token(self) -> float:
        return max((self.first_round_time or self.end_time) - self.arrival_time, 0.0)

    @property
    def total_seconds(self) -> float:
        return self.end_time - self.arrival_time

    @property
    def mean_acceptance_length(self) -> float:
        """The tokens after the first per call of the target."""
        return (len(self.token_ids) - 1) / self.target_calls if self.target_calls else 0.0
