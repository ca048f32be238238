"""Everything that proposes: language models, several drafts at once, look-ups."""

from __future__ import annotations

from typing import cast

from hierspec.core.nodes import Draft
from hierspec.lm.base import LanguageModel, ModelDraft

from .base import Drafter
from .model import ModelDrafter
from .multi_draft import MultiDrafter


def drafter_of(node: ModelDraft) -> Drafter:
    """Return the drafter that runs a leaf: one that its model makes, or that of any model."""
    if (make := getattr(node.model, "make_drafter", None)) is not None:
        return make(node)
    leaf = cast("Draft[LanguageModel]", node)  # a look-up makes its own
    return MultiDrafter(leaf) if node.num_drafts > 1 else ModelDrafter(leaf)
