"""The queue of waiting requests: bounded, and ordered by priority, then arrival."""

from __future__ import annotations

import bisect
import math
import threading
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar


class RefusedError(Exception):
    """A request was refused for now, and may be sent again later.

    Attributes:
        retry_after: seconds after which to try again.
    """

    def __init__(self, message: str, retry_after: int) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class QueueFullError(RefusedError):
    """The queue of waiting requests is full."""


class DrainingError(RefusedError):
    """The service is shutting down."""


class Queued(Protocol):
    """An item of the queue; the lowest ``order`` goes first."""

    @property
    def order(self) -> tuple[int, int]: ...


T = TypeVar("T", bound=Queued)


class WaitingQueue(Generic[T]):
    """The queue. Any thread may push; the engine's thread removes, and reads without the lock: a
    list is read in one step, and what arrives meanwhile is seen by the next.

    Args:
        max_waiting: how many items may wait.
        max_served: how many are served at once, to estimate how long an item waits.

    Attributes:
        changed: notified when items arrive, and when the queue is closed.
    """

    def __init__(self, max_waiting: int, max_served: int) -> None:
        self.max_waiting, self.max_served = max_waiting, max_served
        self.changed = threading.Condition()
        self.closed = False
        self._items: list[T] = []
        self._mean_seconds = 1.0  # from the first round of a request to its end

    def __len__(self) -> int:
        return len(self._items)

    def push(self, items: list[T]) -> None:
        """Queue these items, all or none.

        Raises:
            DrainingError: the queue is closed.
            QueueFullError: there is no room for all of them.
        """
        with self.changed:
            if self.closed:
                raise DrainingError("the service is shutting down: try again later", 5)
            if len(self._items) + len(items) > self.max_waiting:
                raise QueueFullError(
                    f"{len(self._items)} requests are waiting, and {self.max_waiting} are allowed: "
                    "try again later",
                    self.retry_after(),
                )
            for item in items:
                bisect.insort(self._items, item, key=lambda queued: queued.order)
            self.changed.notify_all()

    def first(self) -> T | None:
        """Return the first item without removing it; ``None`` if there is none."""
        return next(iter(self._items), None)

    def items(self) -> list[T]:
        """Return all items, the first one first, without removing them."""
        return list(self._items)

    def remove(self, condition: Callable[[T], bool]) -> list[T]:
        """Remove and return the items for which ``condition`` holds."""
        with self.changed:
            removed = [item for item in self._items if condition(item)]
            if removed:
                self._items = [item for item in self._items if item not in removed]
            return removed

    def close(self) -> None:
        """Refuse new items."""
        with self.changed:
            self.closed = True
            self.changed.notify_all()

    def record_service_time(self, seconds: float) -> None:
        """Record that an item was served for ``seconds``."""
        self._mean_seconds += 0.1 * (seconds - self._mean_seconds)

    def retry_after(self) -> int:
        """Estimate the seconds, 1 to 60, until about half of the queue has been served."""
        seconds = self._mean_seconds * len(self._items) / (2 * self.max_served)
        return max(1, min(60, math.ceil(seconds)))
