"""The loop of a service: many requests share the rounds of one hierarchy, in a thread of its own.

Each step of the loop drops requests that were cancelled or are late, admits waiting ones, reads a
chunk of the new prompts, and runs one round for all sequences whose prompts are read. A long prompt
is read in chunks between rounds, so that the other sequences' next tokens need not wait for it.

No sequence depends on the others: its random numbers are keyed by (seed, place in its
request), and a call that fails is repeated for each sequence alone
(:meth:`~hierspec.engine.runtime.Runtime.round_apart`).

Nothing is lost when something fails. A request waits in the queue or is one of the loop's ``live``
ones until its end is reported, and what has to be done for it follows from its own state. Where
that fails, the request alone is over, with the error. A round that fails as a whole is run for each
request alone, from where it was. A step that fails beyond that is taken again, and where it goes
on failing, all requests end with its error. Nothing ends the thread but closing the loop;
:attr:`EngineLoop.problem` says what is wrong with it.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from hierspec.core.proposals import Verdict
from hierspec.errors import HierspecError, as_exception
from hierspec.utils.best_effort import best_effort
from hierspec.utils.machine import give_back_memory

from .lanes import Lane, ServedLane
from .metrics import LevelStats
from .output import Output
from .sequences import LiveSequence, Snapshot
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
# A step that fails is taken again after a pause, doubled each time; after so many in a row all
# requests end with the error.
_MAX_FAILED_STEPS, _FIRST_PAUSE, _LONGEST_PAUSE = 3, 0.01, 1.0
_MAX_TRIES = 3  # to report an end

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
        stall_timeout: seconds after which a step that has not ended is a problem; 0: none is.
    """

    max_num_seqs: int = 64
    max_cache_tokens: int = 65_536
    max_queue: int = 256
    prefill_chunk: int = 256
    adapt_to_load: bool = True
    prefix_caching: bool = True
    threads: int | None = None
    stall_timeout: float = 120.0


class EngineLoop:
    """The loop and its thread, which the first request starts.

    Args:
        lanes: hierarchies by name; the first is the default.

    Attributes:
        lanes: the served hierarchies, by name.
        waiting: requests that are not admitted yet.
        live: requests that are admitted and have not ended, the oldest first.
    """

    def __init__(self, lanes: Mapping[str, Lane], settings: LoopSettings | None = None) -> None:
        self.settings = settings or LoopSettings()
        adapt = self.settings.adapt_to_load
        self.lanes = {name: ServedLane(lane, adapt) for name, lane in lanes.items()}
        self.default = next(iter(self.lanes))
        self.waiting = WaitingQueue[Ticket](self.settings.max_queue, self.settings.max_num_seqs)
        self.live: list[Ticket] = []
        self.last_step_time = time.monotonic()
        self._numbers = itertools.count()
        self._num_steps = self._num_untrimmed = 0
        self._num_failed_steps = 0  # in a row
        self._error: BaseException | None = None  # of the last step that failed
        self._deadline: float | None = None
        self._thread: threading.Thread | None = None

    # --- for callers, from any thread

    def submit(self, requests: Sequence[tuple[EngineRequest, Sink]]) -> list[Ticket]:
        """Queue requests, all or none. Sinks are called in the loop's thread and must be quick.

        Raises:
            RefusedError: the queue is full, or the loop is shutting down.
            HierspecError: a request needs more cache than there is, or names a lane that there is
                not.
        """
        tickets: list[Ticket] = []
        for request, sink in requests:
            if request.lane and request.lane not in self.lanes:
                names = ", ".join(self.lanes)
                raise HierspecError(f"there is no lane {request.lane!r}; there are: {names}")
            max_tokens = len(request.prompt) + (self._output_limit(request) or 0)
            if max_tokens > self.settings.max_cache_tokens:
                raise HierspecError(
                    f"the prompt and its output may take {max_tokens} tokens of cache and there "
                    f"are {self.settings.max_cache_tokens}: shorten the prompt or ask for fewer "
                    "tokens"
                )
            tickets.append(Ticket(request, sink, next(self._numbers), max_tokens))
        if not self._has_work:
            self.last_step_time = time.monotonic()
        self.waiting.push(tickets)
        try:
            self._start()
        except BaseException:  # no thread: the caller is told, so nobody waits for these
            self.waiting.remove(lambda queued: queued in tickets)
            raise
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
            with best_effort("freeing the caches of ended texts"), lane.lock:
                lane.prefixes.clear()

    def wait(self, seconds: float) -> None:
        """Wait until the last request has ended after :meth:`drain`, at most ``seconds``."""
        if self._thread is not None:
            self._thread.join(seconds)

    @property
    def accepts_requests(self) -> bool:
        """Whether new requests are accepted."""
        return not self.waiting.closed

    @property
    def num_requests(self) -> int:
        """Requests that have not ended, waiting ones included."""
        return len(self._all_requests())

    @property
    def reading(self) -> list[Ticket]:
        """Requests whose prompts are being read."""
        return [ticket for ticket in self.live if not (ticket.joined or ticket.is_over)]

    @property
    def running(self) -> list[Ticket]:
        """Requests in rounds."""
        return [ticket for ticket in self.live if ticket.joined and not ticket.is_over]

    @property
    def seconds_since_step(self) -> float:
        """Seconds since the last step began, or work came; 0 without work."""
        return time.monotonic() - self.last_step_time if self._has_work else 0.0

    @property
    def problem(self) -> str | None:
        """Why requests make no progress; ``None`` if they do, or if there are none."""
        thread, seconds = self._thread, self.seconds_since_step
        is_over = self.waiting.closed and not self._has_work
        if thread is not None and not thread.is_alive() and not is_over:
            return "the engine's thread has ended"
        if self._num_failed_steps >= _MAX_FAILED_STEPS:
            return f"the last {self._num_failed_steps} steps failed: {self._error!r}"
        if 0 < self.settings.stall_timeout < seconds:
            return f"the engine has been in one step for {seconds:.0f} s"
        return None

    @property
    def _has_work(self) -> bool:
        return bool(self.live) or len(self.waiting) > 0

    # --- the loop's own thread

    def _start(self) -> None:
        with self.waiting.changed:
            if self._thread is None or not self._thread.is_alive():
                thread = threading.Thread(target=self._run, name="hierspec", daemon=True)
                thread.start()
                self._thread = thread

    def _run(self) -> None:
        error: BaseException = RuntimeError("the engine's thread has ended")
        try:
            while True:
                try:
                    # A thread inherits whatever count was in force when it first used torch.
                    torch.set_num_threads(self.settings.threads or torch.get_num_threads())
                    self._run_steps()
                    return
                except BaseException as failure:
                    error = self._error = failure
                    self._num_failed_steps += 1
                with contextlib.suppress(BaseException):
                    self._recover(error)
        finally:
            self._end_all(error)  # nothing is left, unless the thread was ended by force

    def _run_steps(self) -> None:
        while self._wait_for_work():
            self.step()
            self._num_failed_steps, self._error = 0, None

    def _recover(self, error: BaseException) -> None:
        """Pause after a failed step, before another; if several failed, end all requests."""
        if self._num_failed_steps >= _MAX_FAILED_STEPS:
            self._end_all(error)
        with best_effort("reporting a failed step"):
            log.error("a step of the engine failed", exc_info=error)
        time.sleep(min(_LONGEST_PAUSE, _FIRST_PAUSE * 2**self._num_failed_steps))

    def _end_all(self, error: BaseException) -> None:
        for ticket in self._all_requests():
            ticket.error = ticket.error or error
            with best_effort("ending a request"):
                self._end(ticket)

    def _wait_for_work(self) -> bool:
        """Sleep until there is work → false if the loop is closed and there is none left."""
        with self.waiting.changed:
            while not self._has_work:
                if self.waiting.closed:
                    return False
                if not self.waiting.changed.wait(_IDLE_SECONDS if self._num_untrimmed else None):
                    self._trim_memory()
        return True

    def _trim_memory(self) -> None:
        self._num_untrimmed = 0
        with best_effort("giving memory back"):
            give_back_memory()

    def step(self) -> None:
        """Drop, admit and read requests, then run one round of all that are read."""
        self.last_step_time = time.monotonic()
        self._drop_requests()
        self._end_requests()
        self._admit_requests()
        self._read_prompts()
        running = self.running
        for lane in self.lanes.values():
            tickets = [ticket for ticket in running if self._lane_of(ticket) is lane]
            if tickets:
                self._run_round(lane, tickets)
                self._end_requests()
        if self._num_untrimmed >= _REQUESTS_PER_TRIM:
            self._trim_memory()

    def _drop_requests(self) -> None:
        """Let requests be over that were cancelled or are late; all of them when draining is."""
        now = time.monotonic()
        is_closed = self._deadline is not None and now >= self._deadline
        for ticket in self._all_requests():
            try:
                deadline = ticket.request.deadline
                if is_closed:
                    raise RequestCancelledError("the service is shutting down")
                if ticket.cancelled:
                    raise RequestCancelledError("cancelled")
                if deadline is not None and now >= deadline:
                    raise DeadlineError("out of time")
            except BaseException as error:
                ticket.error = ticket.error or error

    def _end_requests(self) -> None:
        """End the requests that are over, also those whose end was interrupted."""
        for ticket in self._all_requests():
            if ticket.ended:
                self._remove(ticket)
            elif ticket.is_over:
                self._end(ticket)

    def _admit_requests(self) -> None:
        settings = self.settings
        while (ticket := self.waiting.first()) is not None:
            if not (ticket.ended or ticket in self.live):  # else a step was interrupted
                if len(self.live) >= settings.max_num_seqs:
                    break
                room = settings.max_cache_tokens - self._num_live_tokens() - ticket.max_tokens
                if room < 0:
                    break
                with best_effort("freeing the caches of ended texts"):
                    self._limit_kept_tokens(room)
                self.live.append(ticket)
            self.waiting.remove(lambda queued, first=ticket: queued is first)
        for ticket in [ticket for ticket in self.reading if not ticket.start_time]:
            began = time.monotonic()
            try:
                limit = self._output_limit(ticket.request)
                assert limit is not None, "max_new_tokens is always set"
                self._lane_of(ticket).create_output(ticket, limit)
                ticket.start_time = began
            except BaseException as error:
                ticket.error = error

    def _read_prompts(self) -> None:
        """Read about a chunk of prompts; those that are read join the next round.

        What little is left of their prompts is not read here but by that round. It counts as part
        of the chunk, which a step may exceed by up to half. The oldest prompt and the shortest take
        turns, so that a short one never waits for all of a long one, nor a long one for ever.
        """
        self._num_steps += 1
        left = self.settings.prefill_chunk
        while left > 0 and (reading := self.reading):
            ticket = reading[0]
            if self._num_steps % 2:
                ticket = min(reading, key=lambda t: (t.num_unread, t.order))
            try:
                left -= self._read_some(ticket, left)
            except BaseException as error:
                ticket.error = error
                continue
            if not ticket.joined:
                return  # as much was read as a step may read

    def _read_some(self, ticket: Ticket, left: int) -> int:
        """Let a request join the next round, or read a chunk of its prompt, if a step may still
        read that much → how many tokens of it the round will read."""
        lane, chunk = self._lane_of(ticket), self.settings.prefill_chunk
        wants_logprobs = ticket.request.prompt_logprobs is not None
        if self.settings.prefix_caching and not (ticket.prefix_copied or wants_logprobs):
            lane.copy_prefix(ticket, [live for live in self.live if self._lane_of(live) is lane])
        if not wants_logprobs and ticket.num_unread <= max(left, chunk // 2):
            ticket.joined = True
            return ticket.num_unread
        # Whole chunks, so that a prompt is split the same whatever else is served.
        if left == chunk:
            lane.read_prompt(ticket, min(ticket.num_read + left, len(ticket.request.prompt)))
            if wants_logprobs and not ticket.num_unread:
                ticket.joined = True
                return left
        return 0

    def _run_round(self, lane: ServedLane, tickets: list[Ticket]) -> None:
        """Run a round; if it fails as a whole, run it for each request alone."""
        # Requests whose prompts are being read will join soon.
        num_streams = sum(self._lane_of(ticket) is lane for ticket in self.live)
        unsettled: dict[Ticket, tuple[LiveSequence, Snapshot]] = {}
        for ticket in tickets:
            try:
                assert ticket.output is not None
                sequence = ticket.output.sequence
                unsettled[ticket] = sequence, sequence.snapshot()
            except BaseException as error:
                ticket.error = error
        try:
            self._settle_round(lane, list(unsettled), num_streams, unsettled)
        except BaseException as error:
            for ticket, (sequence, snapshot) in list(unsettled.items()):
                try:
                    sequence.restore(snapshot)
                    self._settle_round(lane, [ticket], num_streams, unsettled)
                except BaseException as own_error:
                    ticket.error = own_error
            with best_effort("reporting a failed round"):
                log.error("a round failed, and was run for each request alone", exc_info=error)

    def _settle_round(
        self,
        lane: ServedLane,
        tickets: list[Ticket],
        num_streams: int,
        unsettled: dict[Ticket, tuple[LiveSequence, Snapshot]],
    ) -> None:
        """Run a round and record it; requests that it counts for are no longer ``unsettled``."""
        verdicts, now = lane.run_round(tickets, num_streams), time.monotonic()
        for ticket, verdict in zip(tickets, verdicts, strict=True):
            try:
                del unsettled[ticket]
                if isinstance(verdict, Exception):
                    ticket.error = verdict
                else:
                    self._record_round(lane, ticket, verdict, now)
            except BaseException as error:
                ticket.error = error

    def _record_round(self, lane: ServedLane, ticket: Ticket, verdict: Verdict, now: float) -> None:
        """Commit a round's tokens, and report them unless they are the last."""
        output = ticket.output
        assert output is not None
        plan = ticket.plan = lane.plan_name(output.sequence.root)
        if output.started:
            ticket.rounds_by_plan[plan] = ticket.rounds_by_plan.get(plan, 0) + 1
        output.record_round(verdict, now)
        ticket.events.extend(output.commit(verdict))  # up to where that fails
        ticket.level_counts = lane.sequence_metrics.round_counts(output.sequence)
        if output.finish_reason is None:
            progress = ticket.progress(None)
            try:
                ticket.sink(progress)
                ticket.events, ticket.level_counts = [], ()
            except BaseException:  # for example, the client has disconnected
                ticket.cancelled = True

    def _end(self, ticket: Ticket) -> None:
        """Free the caches of a request that is over, and report its end, once.

        What fails meanwhile is logged. Where the report fails, it is made again: by
        :meth:`_end_requests`, if this is interrupted.
        """
        if ticket.ended:
            return
        output, drafts = ticket.output, _DraftSummary()
        if output is not None:
            drafts = self._free(ticket, output)
        progress: Progress | None = None
        for _ in range(_MAX_TRIES):
            try:
                if progress is None:
                    progress = ticket.progress(_ended(ticket, output, drafts))
                self._remove(ticket)
                ticket.sink(progress)
                break
            except BaseException as error:
                if progress is None:  # its result failed, so tell less
                    output, ticket.error = None, ticket.error or error
                with best_effort("reporting that an end was not taken"):
                    log.debug("a request's end was not taken", exc_info=error)
        ticket.ended, ticket.output = True, None
        self._num_untrimmed += 1

    def _free(self, ticket: Ticket, output: Output) -> _DraftSummary:
        """Free what a request holds, as far as that goes → what became of its drafts."""
        lane, drafts = self._lane_of(ticket), _DraftSummary()
        with best_effort("counting a request's drafts"):
            levels = lane.sequence_metrics.forget(output.sequence)
            drafts = _DraftSummary(levels, lane.runtime.paces.slowdown(output.sequence))
        if ticket.error is None and self.settings.prefix_caching:
            with best_effort("keeping the caches of a text"), lane.lock:
                room = self.settings.max_cache_tokens - self._num_live_tokens() + ticket.max_tokens
                lane.prefixes.keep(output.sequence, ticket.request.tenant, room)
        with best_effort("freeing the caches of a text"), lane.lock:
            output.close()
        if output.started:
            with best_effort("measuring how long a request took"):
                self.waiting.record_service_time(time.monotonic() - ticket.start_time)
        return drafts

    def _remove(self, ticket: Ticket) -> None:
        """Take a request out of all lists; what fails here is made up for by a step."""
        with best_effort("leaving the live requests"):
            self.live = [live for live in self.live if live is not ticket]
        with best_effort("leaving the queue"):
            self.waiting.remove(lambda queued: queued is ticket)

    def _all_requests(self) -> list[Ticket]:
        return [*self.live, *self.waiting.items()]

    def _limit_kept_tokens(self, limit: int) -> None:
        """Drop kept texts until those of all lanes hold at most ``limit`` tokens."""
        for lane in self.lanes.values():
            excess = self._num_kept_tokens() - limit
            if excess <= 0:
                return
            with lane.lock:
                lane.prefixes.limit_tokens(max(0, lane.prefixes.num_tokens - excess))

    def _num_live_tokens(self) -> int:
        return sum(ticket.max_tokens for ticket in self.live)

    def _num_kept_tokens(self) -> int:
        return sum(lane.prefixes.num_tokens for lane in self.lanes.values())

    def _lane_of(self, ticket: Ticket) -> ServedLane:
        return self.lanes[ticket.request.lane or self.default]

    def _output_limit(self, request: EngineRequest) -> int | None:
        return request.stop.max_output_tokens(len(request.prompt))


class _DraftSummary(NamedTuple):
    """What became of a request's drafts, as in :class:`Ended`."""

    levels: tuple[LevelStats, ...] = ()
    slowdown: float | None = None


def _ended(ticket: Ticket, output: Output | None, drafts: _DraftSummary) -> Ended:
    """Return a request's result; without an output, that of one that wrote nothing."""
    now, request, error = time.monotonic(), ticket.request, ticket.error
    first = output.first_round_time if output is not None and output.started else now
    return Ended(
        finish_reason="cancelled" if error or output is None else output.finish_reason or "",
        error=None if error is None else as_exception(error),
        text="" if output is None else output.text.text,
        token_ids=() if output is None else tuple(output.emitted),
        num_prompt_tokens=len(request.prompt),
        num_cached_tokens=ticket.num_cached,
        queue_seconds=(ticket.start_time or now) - ticket.arrival_time,
        time_to_first_token=first - ticket.arrival_time,
        total_seconds=now - ticket.arrival_time,
        target_calls=0 if output is None else output.sequence.target_calls,
        mean_acceptance_length=0.0 if output is None else output.mean_acceptance_length(),
        levels=drafts.levels,
        plans=dict(ticket.rounds_by_plan),
        seed=request.seed,
        prompt_logprobs=tuple(ticket.prompt_logprobs),
        slowdown=drafts.slowdown,
    )
