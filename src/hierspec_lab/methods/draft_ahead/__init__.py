"""The key ``ahead`` of ``draft_model``: it drafts on while the target verifies [PEARL]."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from hierspec.errors import HierspecError
from hierspec.methods.draft_model import DraftModelConfig
from hierspec.utils.schema import Boolean, checked_dataclass

if TYPE_CHECKING:
    from hierspec.core.nodes import Verify


@checked_dataclass
class DraftAheadConfig(DraftModelConfig):
    """A draft model that may draft on while the target verifies (:mod:`.drafter`).

    Attributes:
        ahead: it does, and the target adds no bonus tokens; for the only level of a hierarchy.
    """

    only_first = {"ahead": (False, "only the first level drafts ahead; remove it")}  # noqa: RUF012

    ahead: Boolean = False

    def complete(self, root: Verify) -> Verify:
        if not self.ahead:
            return root
        from hierspec.core.nodes import Draft

        from .drafter import AheadDrafter

        leaf, rule = root.below, root.rule.name
        if not isinstance(leaf, Draft):
            raise HierspecError(
                f"level {self.model!r} drafts ahead of the target, so it must be the only level: "
                "remove the others, or ahead"
            )
        if rule not in ("tokenwise", "block"):
            raise HierspecError(
                f"a draft made ahead is verified by 'tokenwise' or 'block', not {rule!r}: change "
                "verify, or remove ahead"
            )
        if not leaf.window.fixed_length or leaf.num_drafts > 1:
            raise HierspecError(
                f"level {leaf.name!r} drafts ahead, so it makes one draft of fixed length: remove "
                "its window and num_drafts, or ahead"
            )
        below = dataclasses.replace(leaf, drafter=AheadDrafter)
        # Without a bonus, a token that the level would not know when it drafts ahead.
        return dataclasses.replace(root, below=below, bonus=False)
