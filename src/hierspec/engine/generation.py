"""From prompts to token events: rounds, until every sequence has met its own end.

The loop commits what a round emitted one token at a time, so that an end-of-text token, a stop
string or a limit inside a draft ends the output exactly there. It prints nothing: callers get
:class:`TokenEvent` values, and :class:`GenerationResult` when all is done.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from hierspec.core.nodes import Node, Verify, walk
from hierspec.core.proposals import TokenLogprobs, Verdict
from hierspec.core.rng import PhiloxRng
from hierspec.errors import HierspecError
from hierspec.sampling.parameters import SamplingParams

from .caches import KeptCache
from .control import Controller, Steering, initial_window_states
from .results import GenerationResult, TokenEvent
from .runtime import Runtime
from .sequences import LiveSequence
from .stopping import StopConditions, TextStream
from .trace import Tracer, Tracing


@dataclass(slots=True, eq=False)
class _Stream:
    """One sequence being written."""

    sequence: LiveSequence
    text: TextStream
    limit: int
    steering: Steering | None = None
    emitted: list[int] = field(default_factory=list[int])
    logprobs: list[float] = field(default_factory=list[float])
    top_logprobs: list[TokenLogprobs] = field(default_factory=list[TokenLogprobs])
    seed: int = 0
    finish_reason: str | None = None
    first_at: float = 0.0
    last_at: float = 0.0


class Generation:
    """A batch in progress. Iterate it for events; ``results()`` afterwards, also when cut short.

    Args:
        root: the hierarchy.
        prompts: token ids, at least one each.
        params: one for each prompt.
        stop: for all, or one for each prompt.
        seeds: (seed, place) of each prompt's randomness; default: ``seed`` and its own place.
        caches: where each prompt's places in models' caches come from and go to; ``None``: fresh.
        lock: held for the length of a round, so that threads may share the models.
        tracer: gets an event for every request but draws.
        controller: chooses the plan of every sequence's next round; ``None``: always ``root``.

    Raises:
        HierspecError: the controller belongs to another hierarchy.
    """

    def __init__(
        self,
        root: Verify,
        prompts: Sequence[Sequence[int]],
        *,
        tokenizer: Any,
        params: Sequence[SamplingParams],
        stop: StopConditions | Sequence[StopConditions],
        seed: int,
        want_logprobs: bool,
        num_top_logprobs: int = 0,
        seeds: Sequence[tuple[int, int]] | None = None,
        caches: Sequence[KeptCache | None] | None = None,
        lock: AbstractContextManager[Any],
        until: Callable[[int, Sequence[int]], bool] | None = None,
        tracer: Tracer | None = None,
        controller: Controller | None = None,
    ) -> None:
        if controller is not None:
            if controller.root.model is not root.model:
                raise HierspecError(
                    "the controller was made for another hierarchy: make it from this one's root"
                )
            root = controller.root
        self.root, self.seed, self.lock, self.until = root, seed, lock, until
        self.runtime = Runtime(root, root.model.vocab_size)
        if tracer is not None:
            self.runtime.observe(Tracing(tracer))
        self.names = {node.index: node.name for node in walk(root)}
        self.streams: list[_Stream] = []
        self.caches = [None] * len(prompts) if caches is None else list(caches)
        stops = [stop] * len(prompts) if isinstance(stop, StopConditions) else stop
        seeds = [(seed, i) for i in range(len(prompts))] if seeds is None else seeds
        each = zip(prompts, params, stops, seeds, strict=True)
        for i, (prompt, sampling, ends, own) in enumerate(each):
            limit = ends.budget(len(prompt))
            assert limit is not None, "max_new_tokens is always set"
            sequence = LiveSequence(
                id=i,
                root=root,
                tokens=list(prompt),
                params=sampling,
                rng=PhiloxRng(*own),
                wanted=limit,
                want_logprobs=want_logprobs,
                num_top_logprobs=num_top_logprobs,
                states=initial_window_states(root, controller),
            )
            steering = None if controller is None else Steering(controller, len(prompt), limit)
            text = TextStream(tokenizer, ends, prompt)
            self.streams.append(_Stream(sequence, text, limit, steering, seed=own[0]))
        self.began = time.perf_counter()
        self.started = False

    def __iter__(self) -> Iterator[TokenEvent]:
        if self.started:
            raise HierspecError("a generation runs once: call start(...) anew, or ask results()")
        self.started = True
        return self._run()

    def _run(self) -> Iterator[TokenEvent]:
        live = list(self.streams)
        try:
            for stream, kept in zip(live, self.caches, strict=True):
                if kept is not None:
                    stream.sequence.adopt(kept)
            prefill = True
            while live:
                for stream in live:
                    # The first token needs no draft: the prompt's own forward gives it.
                    left = stream.limit - len(stream.emitted)
                    stream.sequence.wanted = 1 if prefill else left
                    if stream.steering is not None:
                        stream.sequence.root = stream.steering.plan()
                with self.lock:
                    verdicts = self.runtime.round([stream.sequence for stream in live])
                if prefill:
                    self.runtime.metrics.reset()
                now = time.perf_counter()
                for stream, verdict in zip(live, verdicts, strict=True):
                    stream.last_at = now
                    if prefill:
                        stream.first_at = now
                        stream.sequence.target_calls = 0
                    elif stream.steering is not None:
                        sequence = stream.sequence
                        emitted = len(verdict.emitted)
                        sequence.states = stream.steering.ended(emitted, sequence.states)
                    yield from self._commit(stream, verdict)
                    if stream.finish_reason is not None:
                        stream.sequence.close()
                live = [stream for stream in live if stream.finish_reason is None]
                prefill = False
        finally:
            for stream in self.streams:
                if stream.finish_reason is None:
                    stream.finish_reason = "cancelled"
                    stream.text.finish()  # what was held back belongs to the text so far
                stream.sequence.close()

    def _commit(self, stream: _Stream, verdict: Verdict) -> Iterator[TokenEvent]:
        """Append a round's tokens, one by one, up to whatever ends the sequence."""
        for i, token in enumerate(verdict.emitted.tokens):
            stream.emitted.append(token)
            stream.sequence.tokens.append(token)
            text, reason = stream.text.feed(token)
            if reason is None and self._ended_by_caller(stream):
                reason = "stop"
                text += stream.text.finish()
            logprob = verdict.logprobs[i] if verdict.logprobs else None
            if logprob is not None:
                stream.logprobs.append(logprob)
            best = verdict.top_logprobs[i] if verdict.top_logprobs else ()
            if best:
                stream.top_logprobs.append(best)
            stream.finish_reason = reason
            yield TokenEvent(
                token_id=token,
                text=text,
                index=len(stream.emitted) - 1,
                level=self.names[verdict.emitted.origins[i]],
                logprob=logprob,
                sequence=stream.sequence.id,
                finish_reason=reason,
                top_logprobs=best,
            )
            if reason is not None:
                return

    def _ended_by_caller(self, stream: _Stream) -> bool:
        sequence = stream.sequence
        return self.until is not None and self.until(sequence.id, sequence.tokens)

    def results(self) -> list[GenerationResult]:
        """A result for every sequence, in the order of the prompts."""
        stats = self.runtime.metrics.levels
        leaves: list[Node] = [node for node in walk(self.root) if node is not self.root]
        levels = tuple(stats[node.index].to_dict() for node in leaves)
        return [
            GenerationResult(
                text=stream.text.text,
                token_ids=tuple(stream.emitted),
                finish_reason=stream.finish_reason or "cancelled",
                seed=stream.seed,
                num_prompt_tokens=stream.sequence.num_prompt,
                time_to_first_token=max(stream.first_at - self.began, 0.0),
                decode_seconds=stream.last_at - stream.first_at,
                target_calls=stream.sequence.target_calls,
                mean_acceptance_length=_per_call(stream),
                levels=levels,
                target=stats[self.root.index].to_dict(),
                logprobs=tuple(stream.logprobs),
                top_logprobs=tuple(stream.top_logprobs),
                batch_size=len(self.streams),
                control=None if stream.steering is None else stream.steering.to_dict(),
            )
            for stream in self.streams
        ]


def _per_call(stream: _Stream) -> float:
    """Tokens after the first per call of the target."""
    calls = stream.sequence.target_calls
    return (len(stream.emitted) - 1) / calls if calls else 0.0
