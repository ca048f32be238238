"""The loop of a service: many requests share the rounds of one hierarchy, in a thread of its own.

Each step of the loop drops requests that were cancelled or are late, admits waiting ones, reads a
chunk of the new prompts, and runs one round for all sequences whose prompts are read. A long prompt
is read in chunks between rounds, so that the other sequences' next tokens need not wait for it.

No sequence depends on the others: its random numbers are keyed by (seed, place in its
request), and a call that fails is repeated for each sequence alone
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
from .waiting import WaitingQueue

# Freed memory goes back to the system after this many requests, or this many seconds without work:
# caches have many sizes, and the heap would grow by fragmentation.
_REQUESTS_PER_TRIM, _IDLE_SECONDS = 256, 0.2

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LoopSettings:
    """Limits of a loop.

    Attributes:
        max_num_seqs: the most sequences served at once.
        max_cache_tokens: the most tokens of cache, those of kept texts included; a request counts
            with its prompt and its longest output.
        max_queue: the most requests that may wait.
        prefill_chunk: about how many prompt tokens are read between two rounds.
        adapt_to_load: let drafts follow the load (:mod:`hierspec.engine.load`).
        prefix_caching: keep the caches of ended texts for new ones with the same prefix.
        threads: of torch; ``None``: torch's own default.
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
        lanes: the served hierarchies, by name.
        reading: requests whose prompts are being read; ``running``: requests in rounds.
    """

    def __init__(self, lanes: Mapping[str, Lane], settings: LoopSettings | None = None) -> None:
        self.settings = settings or LoopSettings()
        adapt = self.settings.adapt_to_load
        self.lanes = {name: ServedLane(lane, adapt) for name, lane in lanes.items()}
        self.default = next(iter(self.lanes))
        self.waiting = WaitingQueue[Ticket](self.settings.max_queue, self.settings.max_num_seqs)
        self.reading: list[Ticket] = []
        self.running: list[Ticket] = []
        self.last_step_time = time.monotonic()
        self._numbers = itertools.count()
        self._num_steps = self._num_untrimmed = 0
        self._deadline: float | None = None
        self._thread: threading.Thread | None = None

    # --- for callers, from any thread

    def submit(self, requests: Sequence[tuple[EngineRequest, Sink]]) -> list[Ticket]:
        """Queue requests, all or none. Sinks are called in the loop's thread and must be quick.

        Raises:
            RefusedError: the queue is full, or the loop is shutting down.
            HierspecError: a request needs more cache than there is.
        """
        tickets: list[Ticket] = []
        for request, sink in requests:
            max_tokens = len(request.prompt) + (self._output_limit(request) or 0)
            if max_tokens > self.settings.max_cache_tokens:
                raise HierspecError(
                    f"the prompt and its output may take {max_tokens} tokens of cache and there "
                    f"are {self.settings.max_cache_tokens}: shorten the prompt or ask for fewer "
                    "tokens"
                )
            tickets.append(Ticket(request, sink, next(self._numbers), max_tokens))
        self.waiting.push(tickets)
        self._start()
        return tickets

    def num_cache_tokens(self) -> int:
        """Count the tokens of cache in use or reserved, those of kept texts included."""
        return self._num_live_tokens() + self._num_kept_tokens()

    def drain(self, grace: float) -> None:
        """Refuse new requests, and cancel those that have not ended in ``grace`` seconds."""
        self._deadline = time.monotonic() + grace
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
        """Wait until the last request has ended after :meth:`drain`, at most ``seconds``."""
        if self._thread is not None:
            self._thread.join(seconds)

    @property
    def accepts_requests(self) -> bool:
        """Whether new requests are accepted."""
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
        while self._wait_for_work():
            try:
                self.step()
            except Exception as error:
                log.exception("a step of the engine failed")
                for ticket in [*self.reading, *self.running]:
                    self._finish(ticket, error)

    def _wait_for_work(self) -> bool:
        """Sleep until there is work → false if the loop is closed and there is none left."""
        with self.waiting.changed:
            while not (self.reading or self.running or len(self.waiting)):
                if self.waiting.closed:
                    return False
                if not self.waiting.changed.wait(_IDLE_SECONDS if self._num_untrimmed else None):
                    self._trim_memory()
        return True

    def _trim_memory(self) -> None:
        self._num_untrimmed = 0
        give_back_memory()

    def step(self) -> None:
        """Drop, admit and read requests, then run one round of all that are read."""
        self.last_step_time = time.monotonic()
        self._drop_requests()
        self._admit_requests()
        self.running += self._read_prompts()
        for lane in self.lanes.values():
            tickets = [ticket for ticket in self.running if self._lane_of(ticket) is lane]
            if tickets:
                self._run_round(lane, tickets)
        if self._num_untrimmed >= _REQUESTS_PER_TRIM:
            self._trim_memory()

    def _drop_requests(self) -> None:
        """Finish requests that were cancelled or are late; all of them when draining is over."""
        now = time.monotonic()
        if self._deadline is not None and now >= self._deadline:
            for ticket in [*self.reading, *self.running, *self.waiting.remove(lambda _: True)]:
                self._finish(ticket, RequestCancelledError("the service is shutting down"))
            return

        def is_over(ticket: Ticket) -> bool:
            deadline = ticket.request.deadline
            return ticket.cancelled or (deadline is not None and now >= deadline)

        over = [t for t in [*self.reading, *self.running] if is_over(t)]
        for ticket in [*over, *self.waiting.remove(is_over)]:
            cancelled = RequestCancelledError("cancelled")
            self._finish(ticket, cancelled if ticket.cancelled else DeadlineError("out of time"))

    def _admit_requests(self) -> None:
        settings = self.settings
        while (ticket := self.waiting.first()) is not None:
            if len(self.reading) + len(self.running) >= settings.max_num_seqs:
                return
            room = settings.max_cache_tokens - self._num_live_tokens() - ticket.max_tokens
            if room < 0:
                return
            self._limit_kept_tokens(room)
            self.waiting.remove(lambda queued, first=ticket: queued is first)
            ticket.start_time = time.monotonic()
            try:
                limit = self._output_limit(ticket.request)
                assert limit is not None, "max_new_tokens is always set"
                self._lane_of(ticket).create_output(ticket, limit)
            except Exception as error:
                self._finish(ticket, error)
                continue
            self.reading.append(ticket)

    def _read_prompts(self) -> list[Ticket]:
        """Read about a chunk of prompts; return the requests that join the next round.

        What little is left of their prompts is not read here but by that round. It counts as part
        of the chunk, which a step may exceed by up to half. The oldest prompt and the shortest take
        turns, so that a short one never waits for all of a long one, nor a long one for ever.
        """
        self._num_steps += 1
        left, joining = self.settings.prefill_chunk, list[Ticket]()
        while self.reading and left > 0:
            ticket = self.reading[0]
            if self._num_steps % 2:
                ticket = min(self.reading, key=lambda t: (t.num_unread, t.order))
            wants_logprobs = ticket.request.prompt_logprobs is not None
            if self.settings.prefix_caching and not (ticket.prefix_copied or wants_logprobs):
                lane = self._lane_of(ticket)
                live = [t for t in [*self.reading, *self.running] if self._lane_of(t) is lane]
                lane.copy_prefix(ticket, live)
            short = ticket.num_unread <= max(left, self.settings.prefill_chunk // 2)
            if short and not wants_logprobs:
                self.reading.remove(ticket)
                joining.append(ticket)
                left -= ticket.num_unread
                continue
            if left < self.settings.prefill_chunk:
                break  # whole chunks, so that a prompt is split the same whatever else is served
            try:
                end = min(ticket.num_read + left, len(ticket.request.prompt))
                self._lane_of(ticket).read_prompt(ticket, end)
            except Exception as error:
                self._finish(ticket, error)
            if wants_logprobs and not ticket.num_unread:
                self.reading.remove(ticket)
                joining.append(ticket)
            break
        return joining

    def _run_round(self, lane: ServedLane, tickets: list[Ticket]) -> None:
        outputs = [ticket.output for ticket in tickets if ticket.output is not None]
        # Requests whose prompts are being read will join soon.
        num_streams = len(tickets) + sum(self._lane_of(ticket) is lane for ticket in self.reading)
        verdicts, now = lane.run_round(tickets, num_streams), time.monotonic()
        for ticket, output, verdict in zip(tickets, outputs, verdicts, strict=True):
            if isinstance(verdict, Exception):
                self._finish(ticket, verdict)
                continue
            try:
                output.record_round(verdict, now)
                events = list(output.commit(verdict))
            except Exception as error:
                self._finish(ticket, error)
                continue
            level_counts = lane.sequence_metrics.round_counts(output.sequence)
            if output.finish_reason is None:
                logprobs = tuple(ticket.prompt_logprobs) if len(output.emitted) == 1 else ()
                self._report(ticket, Progress(events, level_counts, prompt_logprobs=logprobs))
            else:
                self._finish(ticket, None, events, level_counts)

    def _finish(
        self,
        ticket: Ticket,
        error: Exception | None,
        events: Sequence[TokenEvent] = (),
        level_counts: tuple[tuple[str, int, int], ...] = (),
    ) -> None:
        """Free a request's caches and report its end; ``error`` is the exception that ended it."""
        for tickets in (self.reading, self.running):
            if ticket in tickets:
                tickets.remove(ticket)
        now, output, request = time.monotonic(), ticket.output, ticket.request
        levels = tuple[LevelStats, ...]()
        self._num_untrimmed += 1
        if output is not None:
            lane = self._lane_of(ticket)
            levels = lane.sequence_metrics.forget(output.sequence)
            with lane.lock:
                if error is None and self.settings.prefix_caching:
                    room = self.settings.max_cache_tokens - self._num_live_tokens()
                    lane.prefixes.keep(output.sequence, request.tenant, room)
                output.close()
            if output.started:
                self.waiting.record_service_time(now - ticket.start_time)
        first = output.first_round_time if output is not None and output.started else now
        ended = Ended(
            finish_reason="cancelled" if error or output is None else output.finish_reason or "",
            error=error,
            text="" if output is None else output.text.text,
            token_ids=() if output is None else tuple(output.emitted),
            num_prompt_tokens=len(request.prompt),
            num_cached_tokens=ticket.num_cached,
            queue_seconds=(ticket.start_time or now) - ticket.arrival_time,
            time_to_first_token=first - ticket.arrival_time,
            total_seconds=now - ticket.arrival_time,
            target_calls=0 if output is None else output.sequence.target_calls,
            mean_acceptance_length=0.0 if output is None else output.mean_acceptance_length(),
            levels=levels,
            plans=dict(ticket.rounds_by_plan),
            seed=request.seed,
            prompt_logprobs=tuple(ticket.prompt_logprobs),
        )
        in_first_round = output is not None and len(output.emitted) == 1
        logprobs = tuple(ticket.prompt_logprobs) if in_first_round else ()
        self._report(ticket, Progress(list(events), level_counts, ended, logprobs))

    def _report(self, ticket: Ticket, progress: Progress) -> None:
        try:
            ticket.sink(progress)
        except Exception:  # for example, the client has disconnected
            log.debug("a sink failed", exc_info=True)
            ticket.cancelled = True

    def _limit_kept_tokens(self, limit: int) -> None:
        """Drop kept texts until those of all lanes hold at most ``limit`` tokens."""
        for lane in self.lanes.values():
            excess = self._num_kept_tokens() - limit
            if excess <= 0:
                return
            with lane.lock:
                lane.prefixes.limit_tokens(max(0, lane.prefixes.num_tokens - excess))

    def _num_live_tokens(self) -> int:
        return sum(ticket.max_tokens for ticket in [*self.reading, *self.running])

    def _num_kept_tokens(self) -> int:
        return sum(lane.prefixes.num_tokens for lane in self.lanes.values())

    def _lane_of(self, ticket: Ticket) -> ServedLane:
        return self.lanes[ticket.request.lane or self.default]

    def _output_limit(self, request: EngineRequest) -> int | None:
        return request.stop.max_output_tokens(len(request.prompt))
