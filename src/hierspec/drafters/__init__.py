"""Everything that proposes: language models, several drafts at once, look-ups."""

from __future__ import annotations

from hierspec.core.nodes import Draft

from .base import Drafter, LookUp, LookUpDrafter
from .model import ModelDrafter
from .multi_draft import MultiDrafter


def drafter_of(node: Draft) -> Drafter:
    """The drafter at work in a leaf."""
    if isinstance(node.model, LookUp):
        return LookUpDrafter(node, node.model)
    return MultiDrafter(node) if node.num_drafts > 1 else ModelDrafter(node)
