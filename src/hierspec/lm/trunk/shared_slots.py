"""Language models that cache what they need of a sequence in the slots of the target's trunk."""

from __future__ import annotations

from hierspec.lm.base import Slot
from hierspec.utils.graphs import Graphs

from .trunk import Trunk


class SharesSlots:
    """A language model on a trunk's slots, which the target may use as well.

    Attributes:
        trunk: the owner of the slots.
    """

    trunk: Trunk

    @property
    def cache_owner(self) -> Trunk:
        return self.trunk

    @property
    def graphs(self) -> Graphs | None:
        """``None``: it records nothing, on any device."""
        return None

    def open(self) -> Slot:
        """Return a new slot of the trunk."""
        return self.trunk.open()

    def close(self, slot: Slot) -> None:
        self.trunk.close(slot)
