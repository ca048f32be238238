"""From prompts to token events: rounds, until every sequence has ended.

A round's tokens are committed one at a time (:mod:`hierspec.engine.output`). Nothing is printed:
callers get :class:`TokenEvent` values, and :class:`GenerationResult` values at the end.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch

from hierspec.core.nodes import walk
from hierspec.core.rng import PhiloxRng
from hierspec.errors import HierspecError
from hierspec.lm.base import ModelVerify
from hierspec.lm.encoder_decoder import split_prompt
from hierspec.sampling.parameters import SamplingParams

from .caches import KeptCache
from .control import Controller, Steering, initial_window_states
from .observers import Observer
from .output import Output
from .prefixes import share_beginnings
from .results import GenerationResult, TokenEvent
from .runtime import Runtime
from .sequences import LiveSequence
from .stopping import StopConditions, TextStream
from .trace import Tracer, Tracing


@contextmanager
def _explain_out_of_memory(num_texts: int) -> Generator[None]:
    """Turn errors about memory into a :class:`HierspecError` that says what to do."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        # On a CPU torch raises a plain RuntimeError.
        out_of_memory = isinstance(error, MemoryError | torch.OutOfMemoryError)
        if not (out_of_memory or "can't allocate memory" in str(error)):
            raise
        raise HierspecError(
            f"out of memory with {num_texts} text{'s' * (num_texts > 1)} at once: give fewer or "
            "shorter prompts at a time, or ask for fewer samples or tokens"
        ) from error


class Generation:
    """A batch in progress. Iterate it for events; then call ``results()``, also if cut short.

    Args:
        root: the hierarchy.
        prompts: token ids, at least one each.
        params: one for each prompt.
        stop: one for all prompts, or one for each.
        seeds: (seed, index) of each prompt's randomness; default: ``seed`` and its own index.
        caches: kept from an earlier generation, one for each prompt or ``None``.
        lock: held during each round, so that threads may share the models.
        until: called ``until(sequence, tokens so far)`` after every token; true ends the output.
        tracer: gets an event for every draft, every check with its verdict, and every row.
        observers: see every round (:class:`~hierspec.engine.observers.Observer`).
        controller: chooses the plan of every sequence's next round; ``None``: always ``root``.

    Attributes:
        streams: the output of each prompt, in order.

    Raises:
        HierspecError: the controller belongs to another hierarchy.
    """

    def __init__(
        self,
        root: ModelVerify,
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
        observers: Iterable[Observer] = (),
        controller: Controller | None = None,
    ) -> None:
        if controller is not None:
            if controller.root.model is not root.model:
                raise HierspecError(
                    "the controller was made for another hierarchy: make it from this one's root"
                )
            root = controller.root
        self.root, self.seed, self.lock = root, seed, lock
        self.runtime = Runtime(root, root.model.vocab_size)
        for observer in observers if tracer is None else (Tracing(tracer), *observers):
            self.runtime.observe(observer)
        self.names = {node.index: node.name for node in walk(root)}
        self.streams: list[Output] = []
        self.caches = [None] * len(prompts) if caches is None else list(caches)
        stops = [stop] * len(prompts) if isinstance(stop, StopConditions) else stop
        seeds = [(seed, i) for i in range(len(prompts))] if seeds is None else seeds
        inputs = zip(prompts, params, stops, seeds, strict=True)
        for i, (prompt, sampling, conditions, (own_seed, index)) in enumerate(inputs):
            tokens, source = split_prompt(root.model, prompt)
            limit = conditions.max_output_tokens(len(tokens))
            assert limit is not None, (
                "there is always a limit: max_new_tokens, or the context's length"
            )
            sequence = LiveSequence(
                id=i,
                root=root,
                tokens=tokens,
                source=source,
                params=sampling,
                rng=PhiloxRng(own_seed, index),
                num_remaining_tokens=limit,
                want_logprobs=want_logprobs,
                num_top_logprobs=num_top_logprobs,
                states=initial_window_states(root, controller),
            )
            steering = None if controller is None else Steering(controller, len(tokens), limit)
            text = TextStream(tokenizer, conditions, tokens)
            output = Output(sequence, text, limit, self.names, steering, until, seed=own_seed)
            self.streams.append(output)
        self.began = time.perf_counter()
        self.started = False

    def __iter__(self) -> Generator[TokenEvent, None, None]:
        if self.started:
            raise HierspecError("a generation runs once: call start(...) again, or ask results()")
        self.started = True
        return self._run()

    def _run(self) -> Generator[TokenEvent, None, None]:
        live = list(self.streams)
        try:
            for output, kept in zip(live, self.caches, strict=True):
                if kept is not None:
                    output.sequence.adopt(kept)
            if len(live) > 1:
                fresh = [output.sequence for output in live if not output.sequence.slots]
                with self.lock, _explain_out_of_memory(len(live)):
                    share_beginnings(fresh)
            prefill = True
            while live:
                for output in live:
                    output.prepare_round()
                with self.lock, _explain_out_of_memory(len(live)):
                    verdicts = self.runtime.round([output.sequence for output in live])
                if prefill:
                    self.runtime.metrics.reset()
                now = time.perf_counter()
                for output, verdict in zip(live, verdicts, strict=True):
                    output.record_round(verdict, now)
                    yield from output.commit(verdict)
                    if output.finish_reason is not None:
                        output.close()
                live = [output for output in live if output.finish_reason is None]
                prefill = False
        finally:
            for output in self.streams:
                output.close()

    @property
    def continues_prompts(self) -> bool:
        """Whether texts continue their prompts; false where an encoder reads the prompts."""
        return not any(output.sequence.source for output in self.streams)

    def results(self) -> list[GenerationResult]:
        """Return a result for every sequence, in the order of the prompts."""
        stats = self.runtime.metrics.levels
        levels = tuple(
            stats[node.index].to_dict() for node in walk(self.root) if node is not self.root
        )
        return [
            GenerationResult(
                text=output.text.text,
                token_ids=tuple(output.emitted),
                finish_reason=output.finish_reason or "cancelled",
                seed=output.seed,
                num_prompt_tokens=output.sequence.num_prompt_tokens,
                time_to_first_token=max(output.first_round_time - self.began, 0.0),
                decode_seconds=output.last_round_time - output.first_round_time,
                target_calls=output.sequence.target_calls,
                mean_acceptance_length=output.mean_acceptance_length(),
                levels=levels,
                target=stats[self.root.index].to_dict(),
                logprobs=tuple(output.logprobs),
                top_logprobs=tuple(output.top_logprobs),
                batch_size=len(self.streams),
                control=None if output.steering is None else output.steering.to_dict(),
                slowdown=self.runtime.paces.slowdown(output.sequence),
            )
            for output in self.streams
        ]
