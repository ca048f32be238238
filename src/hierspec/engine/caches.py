"""Caches that outlive a generation, so that a prefix which two texts share is prefilled once.

A slot knows which tokens it holds, and rewinds to the prefix that it shares with the next text
(:meth:`hierspec.lm.base.Slot.overlap`). So a session cache is nothing but slots that were not
closed.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from hierspec.errors import HierspecError
from hierspec.lm.base import CacheOwner, Slot

# (id of the owner, number of the draft) → the owner, and a slot in its cache
Slots = dict[tuple[int, int], tuple[CacheOwner, Any]]


class SessionCache:
    """One sequence's slots in the caches of all models, kept from one generation to the next.

    The text of a generation is the same as without the cache, up to rounding: a prefix that was
    read in other chunks differs by some 2e-6 in float32. Slots of look-ups are not kept, since
    what one learnt from a text would affect the drafts for the next.

    A generation takes the slots when it starts and gives them back when it ends, also when it was
    abandoned. One cache serves one sequence at a time.
    """

    def __init__(self) -> None:
        self._slots: Slots = {}
        self._lock = threading.Lock()
        self.in_use = False  # by a generation

    def take(self) -> Slots:
        """Take the slots, for one sequence alone until :meth:`give_back`.

        Raises:
            HierspecError: another sequence has them.
        """
        with self._lock:
            if self.in_use:
                raise HierspecError(
                    "this cache is in use by a generation: wait until that has ended, or use a "
                    "cache (a session) for each text at work"
                )
            self.in_use = True
            slots, self._slots = self._slots, {}
        for _, slot in slots.values():
            slot.forget_committed()
        return slots

    def give_back(self, slots: Slots) -> None:
        """Keep the slots of models and close those of look-ups."""
        models = {key: pair for key, pair in slots.items() if isinstance(pair[1], Slot)}
        self._slots.update(models)
        try:
            close_slots({key: pair for key, pair in slots.items() if key not in models})
        finally:
            with self._lock:
                self.in_use = False

    def overlap(self, owner: CacheOwner, tokens: list[int]) -> int:
        """Count the leading ``tokens`` that the cache of ``owner`` holds already."""
        _, slot = self._slots.get((id(owner), 0), (owner, None))
        return common_prefix_length(slot.tokens, tokens) if isinstance(slot, Slot) else 0

    def close(self) -> None:
        """Free the memory; the cache may be used again, as an empty one.

        Raises:
            HierspecError: a generation is using it.
        """
        slots = self.take()
        try:
            close_slots(slots)
        finally:
            self.give_back({})


def close_slots(slots: Slots) -> None:
    """Close all slots and empty ``slots``; one that fails to close does not keep the others open.

    Raises:
        BaseException: the first error.
    """
    first: BaseException | None = None
    while slots:
        owner, slot = slots.popitem()[1]
        try:
            owner.close(slot)
        except BaseException as error:
            first = first or error
    if first is not None:
        raise first


def common_prefix_length(a: Sequence[int], b: Sequence[int]) -> int:
    """Count the leading tokens that two lists share, by comparing halves: no loop over tokens."""
    low, high = 0, min(len(a), len(b))
    if a[:high] == b[:high]:
        return high
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
