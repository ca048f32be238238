"""Everything that proposes: language models, several drafts at once, look-ups."""

from __future__ import annotations

from hierspec.core.nodes import Draft
from hierspec.lm.adaptive_exit import AdaptiveExit

from .base import Drafter, LookUp, LookUpDrafter
from .declining import DecliningDrafter
from .model import ModelDrafter
from .multi_draft import MultiDrafter
from .skip_search import SearchedSkip, SearchingDrafter


def drafter_of(node: Draft) -> Drafter:
    """Return the drafter that runs a leaf."""
    if isinstance(node.model, LookUp):
        return LookUpDrafter(node, node.model)
    if isinstance(node.model, SearchedSkip):
        return SearchingDrafter(node)
    if isinstance(node.model, AdaptiveExit) and node.model.declines:
        return DecliningDrafter(node)
    return MultiDrafter(node) if node.num_drafts > 1 else ModelDrafter(node)
