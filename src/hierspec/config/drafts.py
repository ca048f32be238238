"""The argument ``drafts=[small, "ngram"]``: a list of drafters as the levels of a hierarchy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from hierspec.errors import HierspecError
from hierspec.utils.schema import short_repr

from . import methods
from .in_memory import ModelInMemory, is_model

_ONLY_BUDGET, _LOWEST_BUDGET, _HIGHER_BUDGET = 8, 3, 12  # tokens; as in the preset hierarchy


def levels(drafts: Any) -> list[Mapping[str, Any]]:
    """Return levels for a hierarchy file, smallest first, each verified by block.

    Args:
        drafts: smallest first: loaded models, their names or paths, short forms of methods
            (``ngram``, ``exit:LAYER``; a method's ``from_short`` reads them), or levels as in a
            hierarchy file. Levels that copy text cost next to nothing and are put lowest, wherever
            they are in the list.

    Raises:
        HierspecError: a draft is none of these.
    """
    if isinstance(drafts, str | Mapping) or is_model(drafts) or not isinstance(drafts, Iterable):
        drafts = [drafts]
    chain = [to_level(draft) for draft in drafts]
    chain.sort(key=lambda level: not _copies(level.get("method")))  # stable
    return [_with_defaults(level, index, len(chain)) for index, level in enumerate(chain)]


def to_level(draft: Any) -> dict[str, Any]:
    """Return the level of one draft; a name that is no method's is a model's."""
    if isinstance(draft, Mapping):
        return dict(draft)
    named = isinstance(draft, str) and not isinstance(draft, ModelInMemory)
    if named and (level := methods.from_short(draft)) is not None:
        return level
    if isinstance(draft, str) or hasattr(draft, "__fspath__") or is_model(draft):
        return {"method": "draft_model", "model": draft}
    names = ", ".join(methods.short_forms())
    raise HierspecError(
        f"drafts must hold models, loaded or by name, {names}, or levels of a hierarchy file; not "
        f"{short_repr(draft)}"
    )


def _copies(method: Any) -> bool:
    level = methods.find(method) if isinstance(method, str) else None
    return level is not None and level.capabilities.copies


def is_method(draft: str) -> bool:
    """Return whether a draft is a method (``ngram``, ``exit:4``, …) and not a model's name."""
    return not isinstance(draft, ModelInMemory) and methods.from_short(draft) is not None


def _with_defaults(level: dict[str, Any], index: int, num_levels: int) -> dict[str, Any]:
    if level.get("method") == methods.CONCATENATE:
        return level
    higher = _HIGHER_BUDGET if index > 0 else _LOWEST_BUDGET
    budget = _ONLY_BUDGET if num_levels == 1 else higher
    rule = {"verify": "block"} if index > 0 else {}
    return {"num_speculative_tokens": budget, **rule, **level}
