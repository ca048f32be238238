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
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch

from hierspec.core.context import Context
from hierspec.core.nodes import Verify, initial_states
from hierspec.core.rng import PhiloxRng
from hierspec.errors import HierspecError
from hierspec.lm.encoder_decoder import check_decoder_only
from hierspec.lm.lean.linear import give_back_memory
from hierspec.sampling.scores import logprobs, top_logprobs

from .control import Controller, Steering
from .load import LoadControl, Plans, alike, named
from .metrics import LevelStats, PerSequence
from .output import Output
from .prefixes import PrefixCache, read
from .results import TokenEvent
from .runtime import Runtime
from .sequences import LiveSequence
from .stopping import TextStream
from .tickets import (
    DeadlineError,
    Ended,
    EngineRequest,
    Progress,
    RequestCancelledError,
    Sink,
    Ticket,
    TokenScore,
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


@dataclass(frozen=True, slots=True, eq=False)
class Lane:
    """One hierarchy in the loop.

    Attributes:
        lock: held while its models run, for whoever else uses them.
        shown: a level's name → what callers and metrics are told.
    """

    root: Verify
    tokenizer: Any
    controller: Controller | None = None
    lock: AbstractContextManager[Any] = field(default_factory=nullcontext[None])
    shown: Callable[[str], str] = str


class EngineLoop:
    """The loop and its thread, which the first request starts.

    Args:
        lanes: hierarchies by name; the first is the default.

    Attributes:
        runtimes: by lane; their ``metrics`` count all that happened.
        prefixes: by lane.
    """

    def __init__(self, lanes: Mapping[str, Lane], settings: LoopSettings | None = None) -> None:
        self.lanes = dict(lanes)
        self.settings = settings or LoopSettings()
        self.default = next(iter(self.lanes))
        self.runtimes: dict[str, Runtime] = {}
        self.prefixes = {name: PrefixCache() for name in self.lanes}
        self.per_sequence: dict[str, PerSequence] = {}
        self.plans: dict[str, Plans] = {}
        self.loads: dict[str, LoadControl] = {}
        for name, lane in self.lanes.items():
            controller = lane.controller
            root = lane.root if controller is None else controller.root
            check_decoder_only(root.model, "the service")
            plans = Plans(root, controlled=controller is not None, shown=lane.shown)
            self.plans[name] = plans
            self.loads[name] = LoadControl(len(plans.arms), self.settings.adapt_to_load)
            self.runtimes[name] = Runtime(plans.root, lane.root.model.vocab_size)
            self.per_sequence[name] = PerSequence(plans.root)
            self.runtimes[name].observe(self.per_sequence[name])
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
        """Tokens of cache that are spoken for, those of kept texts included."""
        return self._live_size() + sum(each.num_tokens for each in self.prefixes.values())

    def drain(self, grace: float) -> None:
        """Take no more requests; those there are have so many seconds to end."""
        self._end_at = time.monotonic() + grace
        self.waiting.close()

    def close(self, grace: float = 0.0) -> None:
        """Drain, and wait for the thread to end. Safe to call twice."""
        self.drain(grace)
        if self._thread is not None:
            self._thread.join()
        for name, prefixes in self.prefixes.items():
            with self.lanes[name].lock:
                prefixes.clear()

    def wait(self, seconds: float) -> None:
        """Wait so long at most until, after :meth:`drain`, the last request has ended."""
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
        """Sleep until there is something to do; false: nothing ever will be."""
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
        """Drop, admit, read, and one round of everybody."""
        self.last_step = time.monotonic()
        self._drop()
        self._admit()
        joining = self._read()
        self.running += joining
        for name in self.lanes:
            mine = [ticket for ticket in self.running if self._lane(ticket) == name]
            if mine:
                self._round(name, mine)
        if self._ended >= _TRIM_AFTER:
            self._trim()

    def _drop(self) -> None:
        now = time.monotonic()
        if self._end_at is not None and now >= self._end_at:
            for ticket in [*self.reading, *self.running, *self.waiting.remove(lambda _: True)]:
                self._end(ticket, RequestCancelledError("the service is shutting down"))
            return

        def over(ticket: Ticket) -> bool:
            deadline = ticket.request.deadline
            return ticket.cancelled or (deadline is not None and now >= deadline)

        gone = [t for t in [*self.reading, *self.running] if over(t)]
        for ticket in [*gone, *self.waiting.remove(over)]:
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
            self.waiting.remove(lambda one, first=ticket: one is first)
            ticket.joined = time.monotonic()
            try:
                self._open(ticket)
            except Exception as error:
                self._end(ticket, error)
                continue
            self.reading.append(ticket)

    def _open(self, ticket: Ticket) -> None:
        request, name = ticket.request, self._lane(ticket)
        lane = self.lanes[name]
        limit = self._limit(request)
        assert limit is not None, "max_new_tokens is always set"
        plans, prompt = self.plans[name], list(request.prompt)
        sequence = LiveSequence(
            id=ticket.number,
            root=plans.full,
            tokens=prompt,
            params=request.params,
            rng=PhiloxRng(request.seed, request.place),
            wanted=limit,
            private=True,
            want_logprobs=request.logprobs is not None,
            num_top_logprobs=request.logprobs or 0,
            states=initial_states(plans.root),
        )
        steering = None
        if lane.controller is not None:
            steering = Steering(lane.controller, len(prompt), limit)
        text = TextStream(lane.tokenizer, request.stop, prompt)
        ticket.output = Output(sequence, text, limit, plans.names(), steering)
        if request.prediction and plans.prediction is not None:
            sequence.slot(plans.look_up).expect(request.prediction, len(prompt))
        self.per_sequence[name].follow(sequence)

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
                ticket = min(self.reading, key=lambda one: (one.unread, one.order))
            scored = ticket.request.prompt_logprobs is not None
            if not ticket.looked and self.settings.prefix_caching and not scored:
                self._begin(ticket)
            short = ticket.unread <= max(left, self.settings.prefill_chunk // 2)
            if short and not scored:
                self.reading.remove(ticket)
                joining.append(ticket)
                left -= ticket.unread
                continue
            if left < self.settings.prefill_chunk:
                break  # whole pieces, so that a prompt is cut alike in any company
            try:
                self._read_piece(ticket, min(ticket.read + left, len(ticket.request.prompt)))
            except Exception as error:
                self._end(ticket, error)
            if scored and not ticket.unread:
                self.reading.remove(ticket)
                joining.append(ticket)
            break
        return joining

    def _begin(self, ticket: Ticket) -> None:
        """Take what is cached of the prompt's beginning."""
        assert ticket.output is not None
        name = self._lane(ticket)
        live = [
            (one.request.tenant, one.output.sequence)
            for one in [*self.reading, *self.running]
            if one is not ticket and one.output is not None and self._lane(one) == name
        ]
        with self.lanes[name].lock:
            found = self.prefixes[name].begin(ticket.output.sequence, ticket.request.tenant, live)
        ticket.read = ticket.cached = found
        ticket.looked = True

    def _read_piece(self, ticket: Ticket, end: int) -> None:
        """Let every model of the hierarchy read the prompt up to ``end``."""
        assert ticket.output is not None
        sequence = ticket.output.sequence
        scored = ticket.request.prompt_logprobs is not None
        first = ticket.read + 1 if scored else None  # row r scores the token after so many
        with self.lanes[self._lane(ticket)].lock:
            rows = read(sequence, end, first)
        if scored:
            ticket.scores += _scored(rows, sequence.tokens[ticket.read + 1 :], ticket.request)
        ticket.read = end

    def _round(self, name: str, tickets: list[Ticket]) -> None:
        lane, runtime, counts = self.lanes[name], self.runtimes[name], self.per_sequence[name]
        outputs = [ticket.output for ticket in tickets if ticket.output is not None]
        load, arms = self.loads[name], self.plans[name].arms
        # Whose prompts are being read will be there in a moment.
        streams = len(tickets) + sum(self._lane(one) == name for one in self.reading)
        # Requests with plans of their own say nothing of an arm, where they are most of a round.
        tells = 2 * sum(map(_follows_load, tickets)) > len(tickets)
        arm, began = load.choose(streams, tells), time.monotonic()
        tells = tells and alike(streams, len(tickets))
        for ticket, output in zip(tickets, outputs, strict=True):
            output.prepare(self._plan(ticket, output, arms[arm]))
            tells = tells and output.started  # nor does a round that reads a prompt
            if output.started:
                used = named(output.sequence.root)
                ticket.plans[used] = ticket.plans.get(used, 0) + 1
        with lane.lock:
            verdicts = runtime.round_apart([output.sequence for output in outputs])
        now = time.monotonic()
        if tells:
            done = [len(v.emitted) for v in verdicts if not isinstance(v, Exception)]
            load.measured(len(tickets), arm, sum(done), now - began)
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
            drafts = counts.round_of(output.sequence)
            if output.finish_reason is None:
                scores = tuple(ticket.scores) if len(output.emitted) == 1 else ()
                self._tell(ticket, Progress(events, drafts, prompt_logprobs=scores))
            else:
                self._end(ticket, None, events, drafts)

    def _plan(self, ticket: Ticket, output: Output, arm: Verify) -> Verify | None:
        """The plan of a sequence's next round; ``None``: what its steering says."""
        request, plans = ticket.request, self.plans[self._lane(ticket)]
        if not request.speculative:
            return plans.plain
        if request.prediction and plans.prediction is not None and output.started:
            sequence = output.sequence
            slot = sequence.slot(plans.look_up)
            if plans.look_up.propose(Context(sequence.tokens), 1, slot):
                return plans.prediction
        if output.steering is not None:
            return plans.plain if arm is plans.plain and not request.fixed_plan else None
        if request.fixed_plan:
            return plans.full
        # The first token need not wait for drafts, nor the others for those of a first comer.
        return arm if output.started else plans.plain

    def _end(
        self,
        ticket: Ticket,
        error: Exception | None,
        events: Sequence[TokenEvent] = (),
        drafts: tuple[tuple[str, int, int], ...] = (),
    ) -> None:
        """Free what it holds and tell its sink; ``error``: why it did not end by itself."""
        for tickets in (self.reading, self.running):
            if ticket in tickets:
                tickets.remove(ticket)
        now, output, request = time.monotonic(), ticket.output, ticket.request
        name, levels, rest = self._lane(ticket), tuple[LevelStats, ...](), ""
        self._ended += 1
        if output is not None:
            levels = self.per_sequence[name].forget(output.sequence)
            with self.lanes[name].lock:
                if error is None and self.settings.prefix_caching:
                    room = self.settings.max_cache_tokens - self._live_size()
                    self.prefixes[name].keep(output.sequence, request.tenant, room)
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
        self._tell(ticket, Progress(list(events), drafts, ended, scores))

    def _tell(self, ticket: Ticket, progress: Progress) -> None:
        try:
            ticket.sink(progress)
        except Exception:  # a sink whose reader has gone
            log.debug("a sink failed", exc_info=True)
            ticket.cancelled = True

    def _make_room(self, most: int) -> None:
        """Let kept texts hold ``most`` tokens in all."""
        total = sum(each.num_tokens for each in self.prefixes.values())
        for name, prefixes in self.prefixes.items():
            if total <= most:
                return
            before = prefixes.num_tokens
            with self.lanes[name].lock:
                prefixes.make_room(max(0, before - (total - most)))
            total -= before - prefixes.num_tokens

    def _live_size(self) -> int:
        return sum(ticket.size for ticket in [*self.reading, *self.running])

    def _lane(self, ticket: Ticket) -> str:
        return ticket.request.lane or self.default

    def _limit(self, request: EngineRequest) -> int | None:
        return request.stop.budget(len(request.prompt))


def _scored(rows: torch.Tensor, tokens: list[int], request: EngineRequest) -> list[TokenScore]:
    """Raw scores [R, V] of the next tokens; the last row may have none."""
    n = min(len(rows), len(tokens))
    if not n:
        return []
    chosen, k = logprobs(rows[:n], tokens[:n]), request.prompt_logprobs or 0
    tops = top_logprobs(rows[:n], k) if k else [()] * n
    return [TokenScore(*pair) for pair in zip(chosen, tops, strict=True)]


def _follows_load(ticket: Ticket) -> bool:
    """Whether the load decides what drafts for a request."""
    request = ticket.request
    return request.speculative and not request.fixed_plan and not request.prediction
