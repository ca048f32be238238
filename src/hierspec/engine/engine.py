"""The engine: requests join, are prefilled, share rounds, and leave.

Each step drops requests that were cancelled or are late, admits waiting ones, reads a chunk of the
new prompts, and runs one round of each hierarchy for all requests whose prompts are prefilled. A
long prompt is prefilled in chunks between rounds, so that the other requests' next tokens need not
wait for it. A service takes steps in a thread (:mod:`hierspec.engine.loop`); a fixed set of
requests takes them as its events are asked for (:mod:`hierspec.engine.generation`).

No request depends on the others: its random numbers are keyed by (seed, place in its batch), and a
call that fails is repeated for each request alone
(:meth:`~hierspec.engine.runtime.Runtime.try_round`).

Nothing is lost when something fails. A request waits in the queue or is one of the ``live`` ones
until its end is reported, and what has to be done for it follows from its own state. Where that
fails, the request alone is over, with the error. A round that fails as a whole is run for each
request alone, from where it was.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hierspec.core.proposals import Verdict
from hierspec.errors import FAILURES, HierspecError, best_effort

from .request import DeadlineError, Request, RequestCancelledError
from .runner import Runner
from .sequences import Snapshot
from .waiting import WaitingQueue

_MAX_TRIES = 3  # to free the caches of a text, and to report its end

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Limits of an engine.

    Attributes:
        max_num_seqs: the most requests served at once.
        max_cache_tokens: the most tokens of cache, those of cached texts included; a request counts
            with its prompt and its longest output.
        max_queue: the most requests that may wait.
        prefill_chunk: about how many prompt tokens are prefilled between two rounds.
        prefix_caching: keep the caches of ended texts for new ones with the same prefix.
        threads: of torch, in a service; ``None``: torch's own default.
        stall_timeout: seconds that a service's step may take before it counts as a problem; 0: no
            limit.
    """

    max_num_seqs: int = 64
    max_cache_tokens: int = 65_536
    max_queue: int = 256
    prefill_chunk: int = 256
    prefix_caching: bool = True
    threads: int | None = None
    stall_timeout: float = 120.0


class Engine:
    """Requests, and the rounds that they share.

    Any thread may add and abort requests; one takes the steps.

    Args:
        runners: hierarchies by name; the first is the default.

    Attributes:
        waiting: requests that are not admitted yet.
        live: requests that are admitted and have not ended, the oldest first.
    """

    def __init__(
        self, runners: Mapping[str, Runner], settings: EngineSettings | None = None
    ) -> None:
        self.settings = settings or EngineSettings()
        self.runners = dict(runners)
        self.default = next(iter(self.runners))
        self.waiting = WaitingQueue(self.settings.max_queue, self.settings.max_num_seqs)
        self.live: list[Request] = []
        self._numbers = itertools.count()
        self._num_steps = 0

    def add(self, requests: Sequence[Request]) -> None:
        """Queue new requests, all or none.

        Raises:
            RefusedError: the queue is full, or the engine is shutting down.
            HierspecError: a request needs more cache than there is, or names a hierarchy that
                there is not.
        """
        now = time.perf_counter()
        for request in requests:
            if request.hierarchy and request.hierarchy not in self.runners:
                names = ", ".join(self.runners)
                raise HierspecError(
                    f"there is no hierarchy {request.hierarchy!r}; there are: {names}"
                )
            longest = request.stop.max_output_tokens(len(request.prompt)) or 0
            request.max_tokens = len(request.prompt) + longest
            if request.max_tokens > self.settings.max_cache_tokens:
                raise HierspecError(
                    f"the prompt and its output may take {request.max_tokens} tokens of cache and "
                    f"there are {self.settings.max_cache_tokens}: shorten the prompt or ask for "
                    "fewer tokens"
                )
            request.id, request.arrival_time = next(self._numbers), now
        self.waiting.push(list(requests))

    def abort(self, requests: Sequence[Request]) -> None:
        """End requests within one round; safe at any time, and twice."""
        for request in requests:
            request.cancelled = True

    def num_cache_tokens(self) -> int:
        return self._num_live_tokens() + self._num_cached_tokens()

    @property
    def num_requests(self) -> int:
        return len(self._all_requests())

    @property
    def prefilling(self) -> list[Request]:
        return [request for request in self.live if not (request.prefilled or request.is_over)]

    @property
    def running(self) -> list[Request]:
        return [request for request in self.live if request.prefilled and not request.is_over]

    @property
    def has_work(self) -> bool:
        return bool(self.live) or len(self.waiting) > 0

    def step(self) -> None:
        self._drop_requests()
        self._end_requests()
        self._admit_requests()
        self._prefill()
        running = self.running
        for runner in self.runners.values():
            requests = [request for request in running if self._runner_of(request) is runner]
            if requests:
                self._run_round(runner, requests)
                self._end_requests()

    def _drop_requests(self) -> None:
        now = time.monotonic()
        for request in self._all_requests():
            try:
                if request.cancelled:
                    raise RequestCancelledError("cancelled")
                if request.deadline is not None and now >= request.deadline:
                    raise DeadlineError("out of time")
            except FAILURES as error:
                request.fail(error)

    def _end_requests(self) -> None:
        """End the requests that are over, also those whose end was interrupted."""
        for request in self._all_requests():
            if request.ended:
                self._remove(request)
            elif request.is_over:
                self._end(request)

    def _admit_requests(self) -> None:
        settings = self.settings
        while (request := self.waiting.first()) is not None:
            if not (request.ended or request in self.live):  # else a step was interrupted
                if len(self.live) >= settings.max_num_seqs:
                    break
                room = settings.max_cache_tokens - self._num_live_tokens() - request.max_tokens
                if room < 0:
                    break
                if settings.prefix_caching:
                    with best_effort("freeing the caches of ended texts"):
                        self._limit_cached_tokens(room)
                self.live.append(request)
            self.waiting.remove(lambda queued, first=request: queued is first)
        for request in [new for new in self.live if not (new.start_time or new.is_over)]:
            began = time.perf_counter()
            try:
                self._runner_of(request).begin(request)
                request.start_time = began
            except FAILURES as error:
                request.fail(error)

    def _prefill(self) -> None:
        """Prefill about a chunk of prompts; those that are prefilled join the next round.

        What little is left of their prompts is prefilled by that round. It counts as part of the
        chunk, which a step may exceed by up to half. The oldest prompt and the shortest take turns,
        so that a short one never waits for all of a long one, nor a long one for ever.
        """
        self._num_steps += 1
        left = self.settings.prefill_chunk
        while left > 0 and (prefilling := self.prefilling):
            request = prefilling[0]
            if self._num_steps % 2:
                request = min(prefilling, key=lambda r: (r.num_left, r.order))
            try:
                left -= self._prefill_some(request, left)
            except FAILURES as error:
                request.fail(error)
                continue
            if not request.prefilled:
                return  # as much was prefilled as a step may

    def _prefill_some(self, request: Request, left: int) -> int:
        """Let a request join the next round, or prefill a chunk of its prompt, if a step may still
        prefill that much → how many tokens of it the round will prefill."""
        runner, chunk = self._runner_of(request), self.settings.prefill_chunk
        wants_logprobs = request.num_prompt_logprobs is not None
        if self.settings.prefix_caching and not (request.prefix_searched or wants_logprobs):
            runner.copy_prefix(
                request, [live for live in self.live if self._runner_of(live) is runner]
            )
        if not wants_logprobs and request.num_left <= max(left, chunk // 2):
            request.prefilled = True
            return request.num_left
        # Whole chunks, so that a prompt is split the same whatever else is served.
        if left == chunk:
            runner.prefill(request, min(request.num_prefilled + left, len(request.prompt)))
            if wants_logprobs and not request.num_left:
                request.prefilled = True
                return left
        return 0

    def _run_round(self, runner: Runner, requests: list[Request]) -> None:
        # Requests whose prompts are being prefilled will join soon.
        num_streams = sum(self._runner_of(request) is runner for request in self.live)
        unsettled: dict[Request, Snapshot] = {}
        for request in requests:
            try:
                unsettled[request] = request.snapshot()
            except FAILURES as error:
                request.fail(error)
        try:
            self._settle_round(runner, list(unsettled), num_streams, unsettled)
        except FAILURES as error:
            for request, snapshot in list(unsettled.items()):
                try:
                    request.restore(snapshot)
                    self._settle_round(runner, [request], num_streams, unsettled)
                except FAILURES as own_error:
                    request.fail(own_error)
            with best_effort("reporting a failed round"):
                log.error("a round failed, and was run for each request alone", exc_info=error)

    def _settle_round(
        self,
        runner: Runner,
        requests: list[Request],
        num_streams: int,
        unsettled: dict[Request, Snapshot],
    ) -> None:
        """Run a round and settle it; requests that it counts for are no longer ``unsettled``."""
        verdicts, now = runner.run_round(requests, num_streams), time.perf_counter()
        for request, verdict in zip(requests, verdicts, strict=True):
            try:
                del unsettled[request]
                if isinstance(verdict, BaseException):
                    request.fail(verdict)
                else:
                    runner.record(request, verdict, now)
                    self._settle(runner, request, verdict)
            except FAILURES as error:
                request.fail(error)

    def _settle(self, runner: Runner, request: Request, verdict: Verdict) -> None:
        """Commit a round's tokens, and report them unless they are the last."""
        request.events.extend(request.commit(verdict))  # up to where that fails
        request.count_round()
        if request.finish_reason is None:
            try:
                request.report()
            except FAILURES:  # for example, the client has disconnected
                request.cancelled = True

    def _end(self, request: Request) -> None:
        """Free the caches of a request that is over, and report its end, once.

        What fails meanwhile is logged. Where the report fails, it is made again: by
        :meth:`_end_requests`, if this is interrupted.
        """
        self._free(request)
        request.end_time = request.end_time or time.perf_counter()
        for _ in range(_MAX_TRIES):
            try:
                self._remove(request)
                request.report(end=True)
                break
            except FAILURES as error:
                with best_effort("reporting that an end was not taken"):
                    log.debug("a request's end was not taken", exc_info=error)
        request.ended = True

    def _free(self, request: Request) -> None:
        runner = self._runner_of(request)
        if request.failure is None and self.settings.prefix_caching:
            with best_effort("keeping the caches of a text"), runner.lock:
                room = self.settings.max_cache_tokens - self._num_live_tokens() + request.max_tokens
                runner.prefixes.keep(request, room)
        for _ in range(_MAX_TRIES):
            with best_effort("freeing the caches of a text"), runner.lock:
                request.close()
                break
        if request.started:
            with best_effort("measuring how long a request took"):
                self.waiting.record_service_time(time.perf_counter() - request.start_time)

    def _remove(self, request: Request) -> None:
        """Take a request out of all lists; what fails here is made up for by a step."""
        with best_effort("leaving the live requests"):
            self.live = [live for live in self.live if live is not request]
        with best_effort("leaving the queue"):
            self.waiting.remove(lambda queued: queued is request)

    def _all_requests(self) -> list[Request]:
        return [*self.live, *self.waiting.items]

    def _limit_cached_tokens(self, limit: int) -> None:
        """Drop cached texts until those of all hierarchies hold at most ``limit`` tokens."""
        for runner in self.runners.values():
            excess = self._num_cached_tokens() - limit
            if excess <= 0:
                return
            with runner.lock:
                runner.prefixes.limit_tokens(max(0, runner.prefixes.num_tokens - excess))

    def _num_live_tokens(self) -> int:
        return sum(request.max_tokens for request in self.live)

    def _num_cached_tokens(self) -> int:
        return sum(runner.prefixes.num_tokens for runner in self.runners.values())

    def _runner_of(self, request: Request) -> Runner:
        return self.runners[request.hierarchy or self.default]
