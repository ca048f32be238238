"""Language models that take a trunk's slots, and keep what they need of a sequence there."""

from __future__ import annotations

from hierspec.lm.base import Slot
from hierspec.utils.graphs import Graphs

from .trunk import Trunk


class SharesSlots:
    """A language model that lives on a trunk's slots, and records nothing.

    Attributes:
        trunk: whose slots it takes: the target may use them, too.
    """

    trunk: Trunk

    @property
    def cache_owner(self) -> Trunk:
        return self.trunk

    @property
    def graphs(self) -> Graphs | None:
        """It records nothing, on any device."""
        return None

    def open(self) -> Slot:
        """A fresh slot, the trunk's."""
        return self.trunk.open()

    def close(self, slot: Slot) -> None:
        """Give a slot's memory back."""
        self.trunk.close(slot)
