"""The engine of a service: its steps are taken in a thread of its own.

A step that fails is taken again, and where it goes on failing, all requests end with its error.
Nothing ends the thread but closing the loop; :attr:`EngineLoop.problem` says what is wrong with it.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Mapping, Sequence

import torch

from hierspec.errors import best_effort
from hierspec.utils.machine import give_back_memory

from .engine import Engine, EngineSettings
from .request import Request, RequestCancelledError
from .runner import Runner

# Freed memory goes back to the system after this many requests, or this many seconds without work:
# caches have many sizes, and the heap would grow by fragmentation.
_REQUESTS_PER_TRIM, _IDLE_SECONDS = 256, 0.2
# A step that fails is taken again after a pause, doubled each time; after so many in a row all
# requests end with the error.
_MAX_FAILED_STEPS, _FIRST_PAUSE, _LONGEST_PAUSE = 3, 0.01, 1.0

log = logging.getLogger(__name__)


class EngineLoop(Engine):
    """An engine and its thread, which the first request starts."""

    def __init__(
        self, runners: Mapping[str, Runner], settings: EngineSettings | None = None
    ) -> None:
        super().__init__(runners, settings)
        self.last_step_time = time.monotonic()
        self._num_untrimmed = 0
        self._num_failed_steps = 0  # in a row
        self._error: BaseException | None = None  # of the last step that failed
        self._deadline: float | None = None
        self._thread: threading.Thread | None = None

    # --- for callers, from any thread

    def add(self, requests: Sequence[Request]) -> None:
        if not self.has_work:
            self.last_step_time = time.monotonic()
        super().add(requests)
        try:
            self._start()
        except BaseException:  # no thread: the caller is told, so nobody waits for these
            self.waiting.remove(lambda queued: queued in requests)
            raise

    def drain(self, grace: float) -> None:
        """Refuse new requests, and cancel those that have not ended in ``grace`` seconds."""
        self._deadline = time.monotonic() + grace
        self.waiting.close()

    def close(self, grace: float = 0.0) -> None:
        """Drain, and wait for the thread to end, but not for a step that hangs. Safe to call
        twice."""
        self.drain(grace)
        if self._thread is not None:
            stall_timeout = self.settings.stall_timeout
            self._thread.join(grace + stall_timeout if stall_timeout > 0 else None)
            if self._thread.is_alive():  # it holds locks, and ends with the process
                log.error("closed while the engine is still in a step")
                return
        for runner in self.runners.values():
            with best_effort("freeing the caches of ended texts"), runner.lock:
                runner.prefixes.limit_tokens(-1)

    def wait(self, seconds: float) -> None:
        """Wait until the last request has ended after :meth:`drain`, at most ``seconds``."""
        if self._thread is not None:
            self._thread.join(seconds)

    @property
    def accepts_requests(self) -> bool:
        return not self.waiting.closed

    @property
    def seconds_since_step(self) -> float:
        """Seconds since the last step began, or work came; 0 without work."""
        return time.monotonic() - self.last_step_time if self.has_work else 0.0

    @property
    def problem(self) -> str | None:
        """Why requests make no progress; ``None`` if they do, or if there are none."""
        thread, seconds = self._thread, self.seconds_since_step
        is_over = self.waiting.closed and not self.has_work
        if thread is not None and not thread.is_alive() and not is_over:
            return "the engine's thread has ended"
        if self._num_failed_steps >= _MAX_FAILED_STEPS:
            return f"the last {self._num_failed_steps} steps failed: {self._error!r}"
        if 0 < self.settings.stall_timeout < seconds:
            return f"the engine has been in one step for {seconds:.0f} s"
        return None

    # --- the thread

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
            self.last_step_time = time.monotonic()
            self.step()
            if self._num_untrimmed >= _REQUESTS_PER_TRIM:
                self._trim_memory()
            self._num_failed_steps, self._error = 0, None

    def _recover(self, error: BaseException) -> None:
        if self._num_failed_steps >= _MAX_FAILED_STEPS:
            self._end_all(error)
        with best_effort("reporting a failed step"):
            log.error("a step of the engine failed", exc_info=error)
        time.sleep(min(_LONGEST_PAUSE, _FIRST_PAUSE * 2**self._num_failed_steps))

    def _end_all(self, error: BaseException) -> None:
        for request in self._all_requests():
            request.fail(error)
            if not request.ended:
                with best_effort("ending a request"):
                    self._end(request)

    def _wait_for_work(self) -> bool:
        """Sleep until there is work → false if the loop is closed and there is none left."""
        with self.waiting.changed:
            while not self.has_work:
                if self.waiting.closed:
                    return False
                if not self.waiting.changed.wait(_IDLE_SECONDS if self._num_untrimmed else None):
                    self._trim_memory()
        return True

    def _trim_memory(self) -> None:
        self._num_untrimmed = 0
        with best_effort("giving memory back"):
            give_back_memory()

    def _drop_requests(self) -> None:
        if self._deadline is not None and time.monotonic() >= self._deadline:
            for request in self._all_requests():
                request.fail(RequestCancelledError("the service is shutting down"))
        super()._drop_requests()

    def _end(self, request: Request) -> None:
        super()._end(request)
        self._num_untrimmed += 1
