"""One sequence's output: the tokens that rounds emit become text and events, one by one.

An end-of-text token, a stop string or a limit inside a draft ends the output exactly there. It
serves fixed batches (:mod:`hierspec.engine.generation`) and services (:mod:`hierspec.engine.loop`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from hierspec.core.proposals import TokenLogprobs, Verdict
from hierspec.lm.base import ModelVerify

from .control import Steering
from .results import TokenEvent
from .sequences import LiveSequence
from .stopping import TextStream


@dataclass(slots=True, eq=False)
class Output:
    """One sequence's output so far.

    Attributes:
        names: of the levels, by node index.
        limit: the most output tokens.
        until: called ``until(sequence, tokens so far)`` after every token; true ends the output.
        steered: whether steering chose the plan of the round in progress.
        first_round_time: when the first round ended, in seconds of the caller's clock;
            ``last_round_time``: when the latest one did.
    """

    sequence: LiveSequence
    text: TextStream
    limit: int
    names: Mapping[int, str]
    steering: Steering | None = None
    until: Callable[[int, Sequence[int]], bool] | None = None
    emitted: list[int] = field(default_factory=list[int])
    logprobs: list[float] = field(default_factory=list[float])
    top_logprobs: list[TokenLogprobs] = field(default_factory=list[TokenLogprobs])
    seed: int = 0
    finish_reason: str | None = None
    steered: bool = False
    first_round_time: float = 0.0
    last_round_time: float = 0.0

    @property
    def started(self) -> bool:
        """Whether the first round, which reads the prompt, has ended."""
        return bool(self.emitted)

    def prepare_round(self, plan: ModelVerify | None = None) -> None:
        """Set how many tokens the next round may emit, and its plan.

        Args:
            plan: replaces the choice of steering, which then does not learn from the round.
        """
        # The first token needs no draft: the forward that reads the prompt gives it.
        self.sequence.num_remaining_tokens = self.limit - len(self.emitted) if self.started else 1
        self.steered = plan is None and self.steering is not None
        if plan is not None:
            self.sequence.root = plan
        elif self.steering is not None:
            self.sequence.root = self.steering.plan()

    def record_round(self, verdict: Verdict, now: float) -> None:
        """Record the end of a round, before its tokens are committed."""
        self.last_round_time = now
        if not self.started:
            self.first_round_time = now
            self.sequence.target_calls = 0
        elif self.steered and self.steering is not None:
            sequence = self.sequence
            sequence.states = self.steering.record_round(len(verdict.emitted), sequence.states)

    def commit(self, verdict: Verdict) -> Iterator[TokenEvent]:
        """Append a round's tokens, one by one, up to the first that ends the sequence."""
        for i, token in enumerate(verdict.emitted.tokens):
            self.emitted.append(token)
            self.sequence.tokens.append(token)
            text, reason = self.text.feed(token)
            if reason is None and self.until and self.until(self.sequence.id, self.sequence.tokens):
                reason = "stop"
                text += self.text.finish()
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
                index=len(self.emitted) - 1,
                level=self.names[verdict.emitted.origins[i]],
                logprob=logprob,
                sequence=self.sequence.id,
                finish_reason=reason,
                top_logprobs=best,
            )
            if reason is not None:
                return

    def close(self) -> None:
        """Free the caches; an output that is cut short here keeps the text that was held back.

        Safe to call twice.
        """
        try:
            if self.finish_reason is None:
                self.finish_reason = "cancelled"
                self.text.finish()
        finally:
            self.sequence.close()

    def mean_acceptance_length(self) -> float:
        """Return the tokens after the first per call of the target."""
        calls = self.sequence.target_calls
        return (len(self.emitted) - 1) / calls if calls else 0.0
