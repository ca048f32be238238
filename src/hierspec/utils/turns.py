"""A lock by which threads take turns, and which no thread can make wait for itself."""

from __future__ import annotations

import threading

from hierspec.errors import HierspecError


class TurnLock:
    """A lock; a thread that holds it and asks for it once more gets an error, not a wait for ever.

    Args:
        refusal: the error's text.
    """

    def __init__(self, refusal: str) -> None:
        self._lock, self._refusal = threading.Lock(), refusal
        self._holder: int | None = None  # only its own thread can find its own number here

    def acquire(self, timeout: float = -1) -> bool:
        """Wait for the turn, for ``timeout`` seconds at most (-1: for ever) → whether it came.

        Raises:
            HierspecError: this thread has it already.
        """
        if self._holder == threading.get_ident():
            raise HierspecError(self._refusal)
        if not self._lock.acquire(timeout=timeout):
            return False
        self._holder = threading.get_ident()
        return True

    def release(self) -> None:
        """Give the turn to a thread that waits for it."""
        self._holder = None
        self._lock.release()

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()
