"""Requests that wait for their turn: a bounded queue by priority, then arrival."""

from __future__ import annotations

import bisect
import math
import threading
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar


class RefusedError(Exception):
    """A request that was not taken; the same request may be welcome later.

    Attributes:
        retry_after: seconds after which to try again.
    """

    def __init__(self, message: str, retry_after: int) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class QueueFullError(RefusedError):
    """There are as many waiting as there may be."""


class DrainingError(RefusedError):
    """The service is shutting down."""


class Queued(Protocol):
    """What waits: the lowest ``order`` goes first."""

    @property
    def order(self) -> tuple[int, int]: ...


T = TypeVar("T", bound=Queued)


class Waiting(Generic[T]):
    """The queue. Any thread may push; the engine's own takes.

    Args:
        longest: how many may wait.
        streams: how many are served at once, for the guess of how long a newcomer waits.
    """

    def __init__(self, longest: int, streams: int) -> None:
        self.longest, self.streams = longest, streams
        self.changed = threading.Condition()
        self.closed = False
        self._items: list[T] = []
        self._mean_seconds = 1.0  # from the first round of a request to its end

    def __len__(self) -> int:
        return len(self._items)

    def push(self, items: list[T]) -> None:
        """Queue these, all or none.

        Raises:
            DrainingError: no more are taken.
            QueueFullError: there is no room for them all.
        """
        with self.changed:
            if self.closed:
                raise DrainingError("the service is shutting down: send this to another one", 5)
            if len(self._items) + len(items) > self.longest:
                raise QueueFullError(
                    f"{len(self._items)} requests are waiting already and at most {self.longest} "
                    "may: try again later",
                    self.retry_after(),
                )
            for item in items:
                bisect.insort(self._items, item, key=lambda other: other.order)
            self.changed.notify_all()

    def first(self) -> T | None:
        """Return the next item and leave it in its place."""
        with self.changed:
            return self._items[0] if self._items else None

    def remove(self, unwanted: Callable[[T], bool]) -> list[T]:
        """Remove and return the items for which ``unwanted`` holds."""
        with self.changed:
            out = [item for item in self._items if unwanted(item)]
            if out:
                self._items = [item for item in self._items if item not in out]
            return out

    def close(self) -> None:
        """Take no more."""
        with self.changed:
            self.closed = True
            self.changed.notify_all()

    def served(self, seconds: float) -> None:
        """Record that an item was served for ``seconds``."""
        self._mean_seconds += 0.1 * (seconds - self._mean_seconds)

    def retry_after(self) -> int:
        """Estimate the seconds, 1 to 60, until about half of the queue has been served."""
        guess = self._mean_seconds * len(self._items) / (2 * self.streams)
        return max(1, min(60, math.ceil(guess)))
