"""A fixed set of requests, run by whoever asks for its events.

Nothing is printed: callers get :class:`TokenEvent` values, and :class:`GenerationResult` values at
the end.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterable, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch

from hierspec.core.nodes import walk
from hierspec.core.proposals import Verdict
from hierspec.errors import HierspecError
from hierspec.lm.base import ModelVerify

from .control import Controller
from .engine import Engine, EngineSettings
from .observers import Observer
from .prefixes import share_prefixes
from .request import Request
from .results import GenerationResult, TokenEvent
from .runner import Runner
from .trace import Tracer, Tracing

# All are admitted at once, and prefill their prompts in their first round.
_FIXED_SET = EngineSettings(
    max_num_seqs=sys.maxsize,
    max_cache_tokens=sys.maxsize,
    max_queue=sys.maxsize,
    prefill_chunk=sys.maxsize,
    prefix_caching=False,
)


@contextmanager
def _explain_out_of_memory(num_texts: int) -> Generator[None]:
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


class Generation(Engine):
    """An engine with a fixed set of requests. Iterate it for events; then call ``results()``, also
    if cut short. The first request that fails ends it.

    Args:
        lock: held during each round, so that threads may share the models.
        tracer: gets an event for every draft, every check with its verdict, and every row.
        observers: see every round (:class:`~hierspec.engine.observers.Observer`).
        controller: chooses the plan of every request's next round; ``None``: always ``root``.

    Attributes:
        requests: in order; ``id`` is their place.
        names: of the levels, by node index.

    Raises:
        HierspecError: the controller belongs to another hierarchy, or a request cannot be run.
    """

    def __init__(
        self,
        root: ModelVerify,
        requests: Sequence[Request],
        *,
        tokenizer: Any = None,
        lock: AbstractContextManager[Any] | None = None,
        tracer: Tracer | None = None,
        observers: Iterable[Observer] = (),
        controller: Controller | None = None,
    ) -> None:
        runner = Runner(root, tokenizer, controller=controller, lock=lock)
        for observer in observers if tracer is None else (Tracing(tracer), *observers):
            runner.runtime.observe(observer)
        super().__init__({"": runner}, _FIXED_SET)
        self.root, self.runtime, self.names = runner.root, runner.runtime, runner.names
        self.requests = requests
        self._settled: list[tuple[Request, Verdict]] = []
        self._iterated = False
        self.add(requests)
        self._admit_requests()
        self._raise_failure()

    def __iter__(self) -> Generator[TokenEvent, None, None]:
        if self._iterated:
            raise HierspecError("a generation runs once: call start(...) again, or ask results()")
        self._iterated = True
        return self._run()

    def _run(self) -> Generator[TokenEvent, None, None]:
        try:
            for request in self.requests:
                if request.cache is not None:
                    request.adopt(request.cache)
            if len(self.requests) > 1:
                fresh = [request for request in self.requests if not request.slots]
                with self.runners[""].lock, _explain_out_of_memory(len(self.requests)):
                    share_prefixes(fresh)
            is_first = True
            while self.live:
                self.step()
                self._raise_failure()
                if is_first:
                    self.runtime.metrics.reset()
                    is_first = False
                settled, self._settled = self._settled, []
                for request, verdict in settled:
                    yield from request.commit(verdict)
        finally:
            for request in self.requests:
                request.close()

    def _settle(self, runner: Runner, request: Request, verdict: Verdict) -> None:
        """Keep a round's tokens until they are asked for: one that is never seen is not written."""
        self._settled.append((request, verdict))

    def _raise_failure(self) -> None:
        for request in self.requests:
            if request.failure is not None:
                with _explain_out_of_memory(len(self.requests)):
                    raise request.failure

    @property
    def seed(self) -> int:
        """The first request's: of all of them, where they share one."""
        return self.requests[0].seed if self.requests else 0

    @property
    def continues_prompts(self) -> bool:
        """Whether texts continue their prompts; false where an encoder reads the prompts."""
        return not any(request.source for request in self.requests)

    def results(self) -> list[GenerationResult]:
        stats = self.runtime.metrics.levels
        levels = tuple(
            stats[node.index].to_dict() for node in walk(self.root) if node is not self.root
        )
        return [
            GenerationResult(
                text=request.text,
                token_ids=tuple(request.token_ids),
                finish_reason=request.finish_reason or "cancelled",
                seed=request.seed,
                num_prompt_tokens=request.num_prompt_tokens,
                time_to_first_token=request.time_to_first_token,
                decode_seconds=request.last_round_time - request.first_round_time,
                target_calls=request.target_calls,
                mean_acceptance_length=request.mean_acceptance_length,
                levels=levels,
                target=stats[self.root.index].to_dict(),
                logprobs=tuple(request.logprobs),
                top_logprobs=tuple(request.top_logprobs),
                batch_size=len(self.requests),
                control=None if request.steering is None else request.steering.to_dict(),
                slowdown=request.slowdown,
            )
            for request in self.requests
        ]
