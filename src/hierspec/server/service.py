"""Between the web's event loop and the engine's thread: requests go in, progress comes out."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from typing import Any, TypeVar

import hierspec
from hierspec.api import Hierarchy
from hierspec.drafters.prediction import Prediction
from hierspec.engine.engine import EngineSettings
from hierspec.engine.loop import EngineLoop
from hierspec.engine.request import DeadlineError, Progress, Request
from hierspec.engine.results import TokenEvent
from hierspec.engine.runner import ServingRunner
from hierspec.engine.waiting import QueueFullError
from hierspec.errors import HierspecError, best_effort
from hierspec.utils.files import json_digest, without_folders

from .grammar import Grammars
from .loading import default_cache_tokens
from .logs import add_end
from .metrics import ServerMetrics
from .settings import ServeSettings
from .tracing import SpanTracing

T = TypeVar("T")


class Service:
    """The loaded hierarchies and the engine that serves them.

    Args:
        hierarchies: by name; the first is for requests that name none.

    Attributes:
        model: the model's name in requests and answers.
        created: when the service was made, in seconds since 1970.
    """

    def __init__(self, settings: ServeSettings, hierarchies: Mapping[str, Hierarchy]) -> None:
        self.settings, self.hierarchies = settings, dict(hierarchies)
        self.default = next(iter(self.hierarchies))
        first = self.hierarchies[self.default]
        self.tokenizer = first.tokenizer
        self.model = settings.served_model_name or without_folders(first.config.target.model)
        self.max_length: int = first.root.model.max_length
        self.vocab_size: int = first.root.model.vocab_size
        self.created = int(time.time())
        runners = {
            name: ServingRunner(
                h.root,
                h.tokenizer,
                controller=h.controller,
                lock=h.lock,
                display_name=without_folders,
                predictor=Prediction(),
                adapt_to_load=settings.adapt_to_load,
            )
            for name, h in self.hierarchies.items()
        }
        self.engine = EngineLoop(
            runners,
            EngineSettings(
                max_num_seqs=settings.max_num_seqs,
                max_cache_tokens=settings.max_cache_tokens or default_cache_tokens(first),
                max_queue=settings.max_queue,
                prefill_chunk=settings.prefill_chunk,
                prefix_caching=settings.prefix_caching,
                threads=settings.threads,
                stall_timeout=settings.stall_timeout,
            ),
        )
        identity = [hierspec.__version__, self.model, first.config.to_dict()]
        self.fingerprint = f"fp_{json_digest(identity)[:10]}"
        self.metrics = ServerMetrics(self.engine, self.model)
        self.tracing: SpanTracing | None = None
        if settings.otlp_endpoint is not None:
            self.tracing = SpanTracing(settings.otlp_endpoint, self.model)
        # One thread: tokenizers are not safe in several at once.
        self._background = ThreadPoolExecutor(1, "hierspec-prepare")
        self._preparing: set[Future[Any]] = set()

    def submit(self, requests: Sequence[Request]) -> Streams:
        """Queue the sequences of one request, all or none; call it on the event loop.

        Raises:
            RefusedError: the queue is full, or the service is shutting down.
            HierspecError: a request that can never be served.
        """
        streams = Streams(requests, self.engine.abort, self._record)
        self.engine.add(requests)
        return streams

    def _record(self, ended: Request) -> None:
        with best_effort("counting a request that has ended"):
            self.metrics.record(ended)
        if self.tracing is not None:
            with best_effort("tracing a request that has ended"):
                self.tracing.record(ended)

    async def in_background(
        self,
        work: Callable[..., T],
        *arguments: Any,
        deadline: float | None = None,
        num_queued: int = 0,
    ) -> T:
        """Run slow work (a long prompt's tokens, a large grammar) off the event loop.

        Work whose caller has left still counts until the thread has done it, or has seen that its
        deadline has passed: so its queue is bounded, too.

        Args:
            deadline: by ``time.monotonic``.
            num_queued: requests that are already in the engine, if what is prepared will follow.

        Raises:
            QueueFullError: there are as many requests as may run and wait.
            DeadlineError: the work was not done by the deadline.
        """
        count = len(self._preparing) + num_queued
        most = self.settings.max_num_seqs + self.settings.max_queue
        if count >= most:
            raise QueueFullError(
                f"there are {count} requests, with those being prepared, and {most} are allowed: "
                "try again later",
                retry_after=self.engine.waiting.retry_after(),
            )

        def run() -> T:
            if deadline is not None and time.monotonic() >= deadline:
                raise DeadlineError("out of time")
            return work(*arguments)

        future = self._background.submit(run)
        self._preparing.add(future)
        future.add_done_callback(self._preparing.discard)
        result = asyncio.wrap_future(future)
        result.add_done_callback(lambda done: done.cancelled() or done.exception())  # seen, if late
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        if not (await asyncio.wait({result}, timeout=left))[0]:
            raise DeadlineError("out of time")
        return result.result()

    @cached_property
    def grammars(self) -> Grammars:
        """The grammars over the model's tokens; made in a second when first used.

        Raises:
            HierspecError: no tokenizer, or no grammar library.
        """
        if self.tokenizer is None:
            raise HierspecError("a response format needs a tokenizer, which this model lacks")
        eos = self.hierarchies[self.default].eos_token_ids()
        return Grammars(self.tokenizer, self.vocab_size, eos)

    def close(self, grace: float = 0.0) -> None:
        """Stop the engine, giving running requests some seconds to finish."""
        self.engine.close(grace)
        self._background.shutdown(wait=False, cancel_futures=True)
        if self.tracing is not None:
            self.tracing.close()


class Streams:
    """The sequences of one request while they are written.

    Iteration yields ``(index, progress)`` as the engine reports it, until all have ended.

    Args:
        on_end: called in the engine's thread with every sequence that has ended.
    """

    def __init__(
        self,
        requests: Sequence[Request],
        abort: Callable[[Sequence[Request]], None],
        on_end: Callable[[Request], None],
    ) -> None:
        self.requests, self._abort, self._on_end = requests, abort, on_end
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[tuple[int, Progress]] = asyncio.Queue()
        self._num_live = len(requests)
        for i, request in enumerate(requests):
            request.sink = self._sink(i)

    def _sink(self, index: int) -> Callable[[Progress], None]:
        has_ended = False  # an end may be reported again: where this fails after it was taken

        def sink(progress: Progress) -> None:
            nonlocal has_ended
            if has_ended:
                return
            # A request may write only so much: an unbounded queue costs a slow reader little
            # memory, and the engine never waits for one.
            if progress.ended is None or not self._loop.is_closed():  # else nobody reads it
                self._loop.call_soon_threadsafe(self._queue.put_nowait, (index, progress))
            has_ended = progress.ended is not None
            # After that, so that nothing keeps the client waiting.
            if progress.ended is not None:
                with best_effort("recording a request that has ended"):
                    self._on_end(progress.ended)

        return sink

    def close(self) -> None:
        """Cancel the sequences that have not ended; their resources are free within a round."""
        self._abort(self.requests)

    async def __aiter__(self) -> AsyncIterator[tuple[int, Progress]]:
        while self._num_live:
            index, progress = await self._queue.get()
            if progress.ended is not None:
                self._num_live -= 1
                add_end(progress.ended)
            yield index, progress

    async def finish(self) -> list[tuple[Request, list[TokenEvent]]]:
        """Wait for all sequences, and return them with the events of their tokens.

        Raises:
            Exception: the first error of any sequence.
        """
        events: list[list[TokenEvent]] = [[] for _ in self.requests]
        async for index, progress in self:
            events[index] += progress.events
            if progress.ended is not None and progress.ended.error is not None:
                raise progress.ended.error
        return list(zip(self.requests, events, strict=True))
