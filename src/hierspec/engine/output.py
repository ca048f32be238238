"""One sequence's output: what a round emitted becomes tokens, text and an end, one by one.

An end-of-text token, a stop string or a limit inside a draft ends the output exactly there. A
fixed batch (:mod:`hierspec.engine.generation`) and a service (:mod:`hierspec.engine.loop`) write
their sequences through this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from hierspec.core.nodes import Verify
from hierspec.core.proposals import TokenLogprobs, Verdict

from .control import Steering
from .results import TokenEvent
from .sequences import LiveSequence
from .stopping import TextStream


@dataclass(slots=True, eq=False)
class Output:
    """One sequence being written.

    Attributes:
        names: of the levels, by node index.
        limit: output tokens at most.
        until: asked ``until(sequence, tokens so far)`` after every token; true ends the output.
        steered: whether steering chose the plan of the round in progress.
        first_at: when the first round ended, in seconds of the caller's clock; ``last_at``: the
            latest one.
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
    first_at: float = 0.0
    last_at: float = 0.0

    @property
    def started(self) -> bool:
        """Whether the prompt's own forward is behind it."""
        return bool(self.emitted)

    def prepare(self, plan: Verify | None = None) -> None:
        """Set how many tokens the next round may emit, and its plan.

        Args:
            plan: instead of what steering would choose, which does not learn from that round.
        """
        # The first token needs no draft: the prompt's own forward gives it.
        self.sequence.wanted = self.limit - len(self.emitted) if self.started else 1
        self.steered = plan is None and self.steering is not None
        if plan is not None:
            self.sequence.root = plan
        elif self.steering is not None:
            self.sequence.root = self.steering.plan()

    def ended_round(self, verdict: Verdict, now: float) -> None:
        """Record the end of a round, before its tokens are committed."""
        self.last_at = now
        if not self.started:
            self.first_at = now
            self.sequence.target_calls = 0
        elif self.steered and self.steering is not None:
            sequence = self.sequence
            sequence.states = self.steering.ended(len(verdict.emitted), sequence.states)

    def commit(self, verdict: Verdict) -> Iterator[TokenEvent]:
        """Append a round's tokens, one by one, up to whatever ends the sequence."""
        for i, token in enumerate(verdict.emitted.tokens):
            self.emitted.append(token)
            self.sequence.tokens.append(token)
            text, reason = self.text.feed(token)
            if reason is None and self._ended_by_caller():
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

    def close(self) -> str:
        """Free the caches; cut short, the text that was held back. Safe to call twice."""
        rest = ""
        if self.finish_reason is None:
            self.finish_reason = "cancelled"
            rest = self.text.finish()  # what was held back belongs to the text so far
        self.sequence.close()
        return rest

    def mean_acceptance_length(self) -> float:
        """Return the tokens after the first per call of the target."""
        calls = self.sequence.target_calls
        return (len(self.emitted) - 1) / calls if calls else 0.0

    def _ended_by_caller(self) -> bool:
        sequence = self.sequence
        return self.until is not None and self.until(sequence.id, sequence.tokens)
