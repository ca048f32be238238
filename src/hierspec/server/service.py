"""Between the web's event loop and the engine's thread: requests go in, progress comes out."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import hierspec
from hierspec.api import Hierarchy
from hierspec.engine.lanes import Lane
from hierspec.engine.loop import EngineLoop, LoopSettings
from hierspec.engine.results import TokenEvent
from hierspec.engine.tickets import Ended, EngineRequest, Progress, Ticket
from hierspec.errors import HierspecError
from hierspec.utils.files import json_digest

from .grammar import Grammars
from .loading import cache_tokens
from .metrics import ServerMetrics
from .settings import ServeSettings
from .tracing import SpanTracing

T = TypeVar("T")


class Service:
    """The loaded hierarchies and the engine that serves them.

    Args:
        hierarchies: by name; requests that name none get the first.

    Attributes:
        model: the model's name in requests and answers.
        created: when it was made, in seconds since 1970.
    """

    def __init__(self, settings: ServeSettings, hierarchies: Mapping[str, Hierarchy]) -> None:
        self.settings, self.hierarchies = settings, dict(hierarchies)
        self.default = next(iter(self.hierarchies))
        first = self.hierarchies[self.default]
        self.tokenizer = first.tokenizer
        self.model = settings.served_model_name or _shown(first.config.target.model)
        self.max_length: int = first.root.model.max_length
        self.vocab_size: int = first.root.model.vocab_size
        self.created = int(time.time())
        lanes = {
            name: Lane(each.root, each.tokenizer, each.controller, each.lock, _shown)
            for name, each in self.hierarchies.items()
        }
        self.engine = EngineLoop(
            lanes,
            LoopSettings(
                max_num_seqs=settings.max_num_seqs,
                max_cache_tokens=settings.max_cache_tokens or cache_tokens(first),
                max_queue=settings.max_queue,
                prefill_chunk=settings.prefill_chunk,
                prefix_caching=settings.prefix_caching,
                adapt_to_load=settings.adapt_to_load,
                threads=settings.threads,
            ),
        )
        what = [hierspec.__version__, self.model, first.config.to_dict()]
        self.fingerprint = f"fp_{json_digest(what)[:10]}"
        self.metrics = ServerMetrics(self.engine, self.model)
        self.tracing: SpanTracing | None = None
        if settings.otlp_endpoint is not None:
            self.tracing = SpanTracing(settings.otlp_endpoint, self.model)
        # Tokenizers are not made for several threads at once.
        self._background = ThreadPoolExecutor(1, "hierspec-prepare")
        self._grammars: Grammars | None = None

    def submit(self, requests: Sequence[EngineRequest]) -> Streams:
        """Queue the sequences of one request, all or none; call it on the event loop.

        Raises:
            RefusedError: the queue is full, or the service is shutting down.
            HierspecError: a request that can never be served.
        """
        streams = Streams(len(requests), self._ended)
        streams.tickets = self.engine.submit(
            [(request, streams.sink(i)) for i, request in enumerate(requests)]
        )
        return streams

    def _ended(self, ended: Ended) -> None:
        self.metrics.ended(ended)
        if self.tracing is not None:
            self.tracing.ended(ended)

    async def in_background(self, work: Callable[..., T], *arguments: Any) -> T:
        """Run slow work (a long prompt's tokens, a large grammar) off the event loop."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._background, work, *arguments)

    def grammars(self) -> Grammars:
        """Return the grammars over the model's tokens, made on first use, which takes a second.

        Raises:
            HierspecError: no tokenizer, or no grammar library.
        """
        if self._grammars is None:
            if self.tokenizer is None:
                raise HierspecError("a response format needs a tokenizer, which this model lacks")
            eos = self.hierarchies[self.default].eos_token_ids()
            self._grammars = Grammars(self.tokenizer, self.vocab_size, eos)
        return self._grammars

    def close(self, grace: float = 0.0) -> None:
        """Stop the engine, giving running requests some seconds to finish."""
        self.engine.close(grace)
        self._background.shutdown(wait=False, cancel_futures=True)
        if self.tracing is not None:
            self.tracing.close()


@dataclass(slots=True)
class Written:
    """Everything that one sequence has written.

    Attributes:
        error: the error that ended it early.
    """

    events: list[TokenEvent] = field(default_factory=list)
    ended: Ended | None = None

    @property
    def text(self) -> str:
        assert self.ended is not None
        return self.ended.text


class Streams:
    """The sequences of one request while they are written: ``(which, progress)`` as they come.

    Ended by :meth:`cancel` at the latest: use it as a context manager.
    """

    def __init__(self, count: int, ended: Callable[[Ended], None]) -> None:
        self._ended = ended
        self.tickets: list[Ticket] = []
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[tuple[int, Progress]] = asyncio.Queue()
        self._open = count

    def sink(self, which: int) -> Any:
        def tell(progress: Progress) -> None:
            if progress.ended is not None:
                self._ended(progress.ended)
            # What waits here is bounded by what a request may write, so a slow reader costs little
            # memory and holds up nobody.
            self._loop.call_soon_threadsafe(self._queue.put_nowait, (which, progress))

        return tell

    def __enter__(self) -> Streams:
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()

    def cancel(self) -> None:
        """Cancel all sequences; their resources are free within a round."""
        for ticket in self.tickets:
            ticket.cancel()

    async def __aiter__(self) -> AsyncIterator[tuple[int, Progress]]:
        while self._open:
            which, progress = await self._queue.get()
            self._open -= progress.ended is not None
            yield which, progress

    async def all(self) -> list[Written]:
        """Wait for all sequences.

        Raises:
            Exception: the first error of any sequence; the others are cancelled.
        """
        found = [Written() for _ in self.tickets]
        async for which, progress in self:
            found[which].events += progress.events
            if progress.ended is not None:
                found[which].ended = progress.ended
                if progress.ended.error is not None:
                    raise progress.ended.error
        return found


def _shown(name: str) -> str:
    """Strip a level's name of its model's folders, which clients must not see.

    What a level makes of a model stands behind it: ``@layer``, ``:int8``, ``~layers kept/depth``.
    """
    for end in (len(name), *(i for i in range(len(name) - 1, 0, -1) if name[i] in "@:~")):
        path = Path(name[:end])
        if path.exists():
            return path.name + name[end:]
    return name
