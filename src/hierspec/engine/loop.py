"""Many requests share one hierarchy: rounds in a thread of their own, joined and left between them.

Each step of the loop drops what was cancelled or is late, admits what waits, reads a piece of the
prompts that are new, and runs one round for all sequences whose prompts are read. A long prompt is
read piece by piece beside running streams, so that nobody's next token waits for all of it.

Nothing of a sequence depends on its company: its random numbers are keyed by (seed, place in its
request), and a call that fails is made again for each sequence alone
(:meth:`~hierspec.engine.runtime.Runtime.round_apart`).
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from hierspec.errors import HierspecError
from hierspec.lm.lean.linear import give_back_memory

from .lanes import Lane, ServedLane
from .metrics import LevelStats
from .results import TokenEvent
from .tickets import (
    DeadlineError,
    Ended,
    EngineRequest,
    Progress,
    RequestCancelledError,
    Sink,
    Ticket,
)
from .waiting import Waiting

# Freed memory goes back to the system after so many requests, or once nothing was to do for so many
# seconds: caches are of many sizes, and the heap would grow around the holes that they leave.
_TRIM_AFTER, _IDLE = 256, 0.2

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LoopSettings:
    """Limits of a loop.

    Attributes:
        max_num_seqs: sequences in rounds at once.
        max_cache_tokens: tokens of cache, those of kept texts included; a request needs its prompt
            and all it may write.
        max_queue: requests that may wait.
        prefill_chunk: prompt tokens read between two rounds.
        adapt_to_load: let drafts follow the load (:mod:`hierspec.engine.load`).
        prefix_caching: keep the caches of ended texts for those that begin alike.
        threads: of torch; ``None``: as many as it takes.
    """

    max_num_seqs: int = 64
    max_cache_tokens: int = 65_536
    max_queue: int = 256
    prefill_chunk: int = 256
    adapt_to_load: bool = True
    prefix_caching: bool = True
    threads: int | None = None


class EngineLoop:
    """The loop and its thread, which the first request starts.

    Args:
        lanes: hierarchies by name; the first is the default.

    Attributes:
        lanes: hierarchies at work, by name.
        reading: requests whose prompts are being read; ``running``: those in rounds.
    """

    def __init__(self, lanes: Mapping[str, Lane], settings: LoopSettings | None = None) -> None:
        self.settings = settings or LoopSettings()
        adapt = self.settings.adapt_to_load
        self.lanes = {name: ServedLane(lane, adapt) for name, lane in lanes.items()}
        self.default = next(iter(self.lanes))
        self.waiting: Waiting[Ticket] = Waiting(self.settings.max_queue, self.settings.max_num_seqs)
        self.reading: list[Ticket] = []
        self.running: list[Ticket] = []
        self.last_step = time.monotonic()
        self._numbers = itertools.count()
        self._steps = self._ended = 0
        self._end_at: float | None = None
        self._thread: threading.Thread | None = None

    # --- for callers, from any thread

    def submit(self, requests: Sequence[tuple[EngineRequest, Sink]]) -> list[Ticket]:
        """Queue requests, all or none. Sinks are called from the loop's thread: be quick there.

        Raises:
            RefusedError: the queue is full, or the loop is shutting down.
            HierspecError: a request that can never be served.
        """
        tickets: list[Ticket] = []
        for request, sink in requests:
            size = len(request.prompt) + (self._limit(request) or 0)
            if size > self.settings.max_cache_tokens:
                raise HierspecError(
                    f"the prompt and its output may take {size} tokens of cache and there are "
                    f"{self.settings.max_cache_tokens}: shorten the prompt or ask for fewer tokens"
                )
            tickets.append(Ticket(request, sink, next(self._numbers), size))
        self.waiting.push(tickets)
        self._start()
        return tickets

    def num_cache_tokens(self) -> int:
        """Count the tokens of cache in use or promised, those of kept texts included."""
        return self._live_size() + self._kept_size()

    def drain(self, grace: float) -> None:
        """Take no more requests; give those there are ``grace`` seconds to end."""
        self._end_at = time.monotonic() + grace
        self.waiting.close()

    def close(self, grace: float = 0.0) -> None:
        """Drain, and wait for the thread to end. Safe to call twice."""
        self.drain(grace)
        if self._thread is not None:
            self._thread.join()
        for lane in self.lanes.values():
            with lane.lock:
                lane.prefixes.clear()

    def wait(self, seconds: float) -> None:
        """Wait, at most so long, until the last request has ended after :meth:`drain`."""
        if self._thread is not None:
            self._thread.join(seconds)

    @property
    def alive(self) -> bool:
        """Whether requests are taken."""
        return not self.waiting.closed

    # --- the loop's own thread

    def _start(self) -> None:
        with self.waiting.changed:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="hierspec", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        # A thread inherits whatever count was in force when it first used torch.
        torch.set_num_threads(self.settings.threads or torch.get_num_threads())
        while self._wait():
            try:
                self.step()
            except Exception as error:
                log.exception("a step of the engine failed")
                for ticket in [*self.reading, *self.running]:
                    self._end(ticket, error)

    def _wait(self) -> bool:
        """Sleep until there is work → false where the loop is closed and there is none."""
        with self.waiting.changed:
            while not (self.reading or self.running or len(self.waiting)):
                if self.waiting.closed:
                    return False
                if not self.waiting.changed.wait(_IDLE if self._ended else None):
                    self._trim()
        return True

    def _trim(self) -> None:
        self._ended = 0
        give_back_memory()

    def step(self) -> None:
        """Drop, admit and read requests, then run one round of all."""
        self.last_step = time.monotonic()
        self._drop()
        self._admit()
        joining = self._read()
        self.running += joining
        for lane in self.lanes.values():
            mine = [ticket for ticket in self.running if self._lane_of(ticket) is lane]
            if mine:
                self._round(lane, mine)
        if self._ended >= _TRIM_AFTER:
            self._trim()

    def _drop(self) -> None:
        now = time.monotonic()
        if self._end_at is not None and now >= self._end_at:
            for ticket in [*self.reading, *self.running, *self.waiting.remove(lambda _: True)]:
                self._end(ticket, RequestCancelledError("the service is shutting down"))
            return

        def is_over(ticket: Ticket) -> bool:
            deadline = ticket.request.deadline
            return ticket.cancelled or (deadline is not None and now >= deadline)

        gone = [t for t in [*self.reading, *self.running] if is_over(t)]
        for ticket in [*gone, *self.waiting.remove(is_over)]:
            cut = RequestCancelledError("cancelled")
            self._end(ticket, cut if ticket.cancelled else DeadlineError("out of time"))

    def _admit(self) -> None:
        settings = self.settings
        while (ticket := self.waiting.first()) is not None:
            if len(self.reading) + len(self.running) >= settings.max_num_seqs:
                return
            left = settings.max_cache_tokens - self._live_size() - ticket.size
            if left < 0:
                return
            self._make_room(left)
            self.waiting.remove(lambda other, first=ticket: other is first)
            ticket.joined = time.monotonic()
            try:
                limit = self._limit(ticket.request)
                assert limit is not None, "max_new_tokens is always set"
                self._lane_of(ticket).open(ticket, limit)
            except Exception as error:
                self._end(ticket, error)
                continue
            self.reading.append(ticket)

    def _read(self) -> list[Ticket]:
        """Read up to a chunk of prompts → those whose last piece the next round reads itself.

        The oldest prompt and the shortest take turns, so that a short one never waits for all of
        a long one, nor a long one for ever.
        """
        self._steps += 1
        left, joining = self.settings.prefill_chunk, list[Ticket]()
        while self.reading and left > 0:
            ticket = self.reading[0]
            if self._steps % 2:
                ticket = min(self.reading, key=lambda each: (each.unread, each.order))
            scored = ticket.request.prompt_logprobs is not None
            if not ticket.looked and self.settings.prefix_caching and not scored:
                lane = self._lane_of(ticket)
                live = [t for t in [*self.reading, *self.running] if self._lane_of(t) is lane]
                lane.copy_prefix(ticket, live)
            short = ticket.unread <= max(left, self.settings.prefill_chunk // 2)
            if short and not scored:
                self.reading.remove(ticket)
                joining.append(ticket)
                left -= ticket.unread
                continue
            if left < self.settings.prefill_chunk:
                break  # whole pieces, so that a prompt is cut alike in any company
            try:
                end = min(ticket.read + left, len(ticket.request.prompt))
                self._lane_of(ticket).read_prompt(ticket, end)
            except Exception as error:
                self._end(ticket, error)
            if scored and not ticket.unread:
                self.reading.remove(ticket)
                joining.append(ticket)
            break
        return joining

    def _round(self, lane: ServedLane, tickets: list[Ticket]) -> None:
        outputs = [ticket.output for ticket in tickets if ticket.output is not None]
        # Whose prompts are being read will be there in a moment.
        num_streams = len(tickets) + sum(self._lane_of(ticket) is lane for ticket in self.reading)
        verdicts, now = lane.run_round(tickets, num_streams), time.monotonic()
        for ticket, output, verdict in zip(tickets, outputs, verdicts, strict=True):
            if isinstance(verdict, Exception):
                self._end(ticket, verdict)
                continue
            try:
                output.ended_round(verdict, now)
                events = list(output.commit(verdict))
            except Exception as error:
                self._end(ticket, error)
                continue
            drafts = lane.counts.round_of(output.sequence)
            if output.finish_reason is None:
                scores = tuple(ticket.scores) if len(output.emitted) == 1 else ()
                self._report(ticket, Progress(events, drafts, prompt_logprobs=scores))
            else:
                self._end(ticket, None, events, drafts)

    def _end(
        self,
        ticket: Ticket,
        error: Exception | None,
        events: Sequence[TokenEvent] = (),
        drafts: tuple[tuple[str, int, int], ...] = (),
    ) -> None:
        """Free what a request holds and report its end; ``error``: why it did not end by itself."""
        for tickets in (self.reading, self.running):
            if ticket in tickets:
                tickets.remove(ticket)
        now, output, request = time.monotonic(), ticket.output, ticket.request
        levels, rest = tuple[LevelStats, ...](), ""
        self._ended += 1
        if output is not None:
            lane = self._lane_of(ticket)
            levels = lane.counts.forget(output.sequence)
            with lane.lock:
                if error is None and self.settings.prefix_caching:
                    room = self.settings.max_cache_tokens - self._live_size()
                    lane.prefixes.keep(output.sequence, request.tenant, room)
                rest = output.close()
            if output.started:
                self.waiting.served(now - ticket.joined)
        first = output.first_at if output is not None and output.started else now
        ended = Ended(
            finish_reason="cancelled" if error or output is None else output.finish_reason or "",
            error=error,
            text="" if output is None else output.text.text,
            token_ids=() if output is None else tuple(output.emitted),
            num_prompt_tokens=len(request.prompt),
            num_cached_tokens=ticket.cached,
            queue_seconds=(ticket.joined or now) - ticket.arrived,
            time_to_first_token=first - ticket.arrived,
            total_seconds=now - ticket.arrived,
            target_calls=0 if output is None else output.sequence.target_calls,
            mean_acceptance_length=0.0 if output is None else output.mean_acceptance_length(),
            levels=levels,
            plans=dict(ticket.plans),
            seed=request.seed,
            prompt_logprobs=tuple(ticket.scores),
            rest=rest,
        )
        scores = tuple(ticket.scores) if output is not None and len(output.emitted) == 1 else ()
        self._report(ticket, Progress(list(events), drafts, ended, scores))

    def _report(self, ticket: Ticket, progress: Progress) -> None:
        try:
            ticket.sink(progress)
        except Exception:  # a sink whose reader has gone
            log.debug("a sink failed", exc_info=True)
            ticket.cancelled = True

    def _make_room(self, most: int) -> None:
        """Let kept texts hold ``most`` tokens in all."""
        total = self._kept_size()
        for lane in self.lanes.values():
            if total <= most:
                return
            before = lane.prefixes.num_tokens
            with lane.lock:
                lane.prefixes.make_room(max(0, before - (total - most)))
            total -= before - lane.prefixes.num_tokens

    def _live_size(self) -> int:
        return sum(ticket.size for ticket in [*self.reading, *self.running])

    def _kept_size(self) -> int:
        return sum(lane.prefixes.num_tokens for lane in self.lanes.values())

    def _lane_of(self, ticket: Ticket) -> ServedLane:
        return self.lanes[ticket.request.lane or self.default]

    def _limit(self, request: EngineRequest) -> int | None:
        return request.stop.budget(len(request.prompt))
