"""Caches that outlive a generation, so that what two texts share is read once.

A slot knows which tokens it holds, and rewinds to what it shares with the text it is asked about
next (:meth:`hierspec.lm.base.Slot.overlap`). So a kept cache is nothing but slots that were not
closed: whoever holds one chooses the texts, and nothing else in the engine knows of it.
"""

from __future__ import annotations

import threading
from typing import Any

from hierspec.errors import HierspecError
from hierspec.lm.base import CacheOwner, Slot

# (id of the owner, number of the draft) → the owner, and a place in its cache
Slots = dict[tuple[int, int], tuple[CacheOwner, Any]]


class KeptCache:
    """One sequence's places in the caches of all models, from one generation to the next.

    The text of a generation is that of a cold one, up to the rounding of sums: a prefix that was
    read in other portions differs by some 2e-6 in float32. Look-ups keep no place, since what one
    learnt from a text would show in the drafts for the next.

    A generation takes the places when it starts and gives them back when it ends, also when it was
    abandoned. One cache serves one sequence at a time.
    """

    def __init__(self) -> None:
        self._slots: Slots = {}
        self._lock = threading.Lock()
        self._taken = False

    def take(self) -> Slots:
        """Take the places, for one sequence alone until :meth:`give_back`.

        Raises:
            HierspecError: another sequence has them.
        """
        with self._lock:
            if self._taken:
                raise HierspecError(
                    "this cache is in use by a generation: wait until that has ended, or use a "
                    "cache (a session) for each text at work"
                )
            self._taken = True
            slots, self._slots = self._slots, {}
        for _, slot in slots.values():
            slot.forget_committed()
        return slots

    def give_back(self, slots: Slots) -> None:
        """Keep the places that models gave; close the others."""
        for key, (owner, slot) in slots.items():
            if isinstance(slot, Slot):
                self._slots[key] = (owner, slot)
            else:
                owner.close(slot)
        with self._lock:
            self._taken = False

    @property
    def taken(self) -> bool:
        """Whether a generation is using it."""
        return self._taken

    def overlap(self, owner: CacheOwner, tokens: list[int]) -> int:
        """Count the leading ``tokens`` that the cache of ``owner`` holds already."""
        _, slot = self._slots.get((id(owner), 0), (owner, None))
        if not isinstance(slot, Slot):
            return 0
        pairs = zip(slot.tokens, tokens, strict=False)
        shared = min(len(slot.tokens), len(tokens))
        return next((i for i, (held, token) in enumerate(pairs) if held != token), shared)

    def close(self) -> None:
        """Give the memory back; the cache may be used again, as an empty one.

        Raises:
            HierspecError: a generation is using it.
        """
        for owner, slot in self.take().values():
            owner.close(slot)
        self.give_back({})
