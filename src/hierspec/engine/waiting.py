"""The queue of waiting requests: bounded, and ordered by priority, then arrival."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable

from hierspec.errors import HierspecError

from .request import Request


class RefusedError(Exception):
    """A request was refused for now, and may be sent again later."""

    def __init__(self, message: str, retry_after: int) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class QueueFullError(RefusedError):
    """The queue of waiting requests is full."""


class DrainingError(RefusedError):
    """The service is shutting down."""


class WaitingQueue:
    """Waiting requests. Any thread may push; the engine's thread removes, and reads without the
    lock: a list is read in one step, and what arrives meanwhile is seen by the next.

    Args:
        max_served: how many are served at once, to estimate how long one waits.

    Attributes:
        items: the first one first; never changed in place.
        changed: notified when requests arrive, and when the queue is closed.
    """

    def __init__(self, max_waiting: int, max_served: int) -> None:
        self.max_waiting, self.max_served = max_waiting, max_served
        self.changed = threading.Condition()
        self.closed = False
        self.items: list[Request] = []
        self._mean_seconds = 1.0  # from the first round of a request to its end

    def __len__(self) -> int:
        return len(self.items)

    def push(self, requests: list[Request]) -> None:
        """Queue these requests, all or none.

        Raises:
            DrainingError: the queue is closed.
            HierspecError: they will never find room.
            QueueFullError: there is no room for all of them.
        """
        with self.changed:
            if self.closed:
                raise DrainingError("the service is shutting down: try again later", 5)
            if len(requests) > self.max_waiting:
                raise HierspecError(
                    f"{len(requests)} sequences are asked for at once, and {self.max_waiting} may "
                    "wait: ask for fewer, or raise max_queue"
                )
            if len(self.items) + len(requests) > self.max_waiting:
                raise QueueFullError(
                    f"{len(self.items)} requests are waiting, and {self.max_waiting} are allowed: "
                    "try again later",
                    self.retry_after(),
                )
            self.items = sorted([*self.items, *requests], key=lambda queued: queued.order)
            self.changed.notify_all()

    def first(self) -> Request | None:
        return next(iter(self.items), None)

    def remove(self, condition: Callable[[Request], bool]) -> None:
        with self.changed:
            self.items = [item for item in self.items if not condition(item)]

    def close(self) -> None:
        with self.changed:
            self.closed = True
            self.changed.notify_all()

    def record_service_time(self, seconds: float) -> None:
        self._mean_seconds += 0.1 * (seconds - self._mean_seconds)

    def retry_after(self) -> int:
        """Estimate the seconds, 1 to 60, until about half of the queue has been served."""
        seconds = self._mean_seconds * len(self.items) / (2 * self.max_served)
        return max(1, min(60, math.ceil(seconds)))
