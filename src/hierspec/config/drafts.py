"""The argument ``drafts=[small, "ngram"]``: a list of drafters as the levels of a hierarchy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from hierspec.errors import HierspecError
from hierspec.utils.schema import short_repr
from hierspec.zoo import registry, trained

from . import methods
from .in_memory import ModelInMemory, is_model

LOOK_UPS = {
    "ngram": "prompt_lookup",
    "prompt-lookup": "prompt_lookup",
    "prompt_lookup": "prompt_lookup",
    "ngram-pool": "ngram_pool",
    "suffix": "suffix",
}
_QUANTIZED, _EAGLE3, TABLE = "quantized", "eagle3", "ngram_table"
NAMES = "exit:LAYER, eagle3:FOLDER, ngram, ngram:TABLE, prompt-lookup, suffix, quantized"
_ONLY_BUDGET, _LOWEST_BUDGET, _HIGHER_BUDGET = 8, 3, 12  # tokens; as in the preset hierarchy


def levels(drafts: Any) -> list[Mapping[str, Any]]:
    """Return levels for a hierarchy file, smallest first, each verified by block.

    Args:
        drafts: smallest first: loaded models, their names or paths, ``exit:LAYER`` (the target's
            own first layers), ``eagle3:FOLDER``, ``ngram`` (copies what followed the same words
            earlier in the text; also called ``prompt-lookup``), ``ngram:TABLE`` (a file of
            ``hierspec ngram build``), ``ngram-pool``, ``suffix``, ``quantized`` (the target's own
            weights in int8; ``quantized:6`` in 6 bits, 5 or 4), a registered method by its name
            (``NAME:VALUE`` with its first option), or a level as in a hierarchy file. Levels that
            copy text cost next to nothing and are put lowest, wherever they are in the list.

    Raises:
        HierspecError: a draft is none of these.
    """
    if isinstance(drafts, str | Mapping) or is_model(drafts) or not isinstance(drafts, Iterable):
        drafts = [drafts]
    chain = [_to_level(draft) for draft in drafts]
    look_ups = set(LOOK_UPS.values())
    chain.sort(  # stable
        key=lambda level: (
            level.get("method") not in look_ups and not methods.copies(level.get("method"))
        )
    )
    return [_with_defaults(level, index, len(chain)) for index, level in enumerate(chain)]


def _to_level(draft: Any) -> dict[str, Any]:
    if isinstance(draft, Mapping):
        return dict(draft)
    if isinstance(draft, str) and not isinstance(draft, ModelInMemory):
        return parse_method(draft) or {"method": "draft_model", "model": draft}
    if hasattr(draft, "__fspath__") or is_model(draft):
        return {"method": "draft_model", "model": draft}
    raise HierspecError(
        f"drafts must hold models, loaded or by name, {NAMES}, or levels of a hierarchy file; not "
        f"{short_repr(draft)}"
    )


def parse_method(draft: str) -> dict[str, Any] | None:
    """Return the level of ``ngram``, ``exit:4``, …; ``None`` for the name of a model.

    Raises:
        HierspecError: an exit without its layer, or bits that no copy has.
    """
    kind, colon, detail = draft.partition(":")
    if draft in LOOK_UPS:
        return {"method": LOOK_UPS[draft]}
    if kind == _QUANTIZED:
        if detail not in ("", "4", "5", "6", "8"):
            raise HierspecError(
                f"draft {draft!r}: write quantized, for 8 bits, or quantized:4, :5 or :6"
            )
        return {"method": _QUANTIZED, **({"bits": int(detail)} if detail else {})}
    if kind == "exit" and colon:
        if not detail.isdecimal():
            raise HierspecError(f"draft {draft!r}: write exit:LAYER, as in exit:4")
        return {"method": "early_exit", "exit_layer": int(detail)}
    if kind in ("ngram", TABLE):
        return {"method": TABLE, **({"table": detail} if detail else {})}
    if kind == _EAGLE3:
        return {"method": _EAGLE3, "model": detail or registry.SMOLLM2_EAGLE3}
    if (level := methods.parse_short(kind, detail if colon else None)) is not None:
        return level
    if trained.kind(draft) == trained.EAGLE3_KIND:
        return {"method": _EAGLE3, "model": draft}
    return None


def is_method(draft: str) -> bool:
    """Return whether a draft is a method (``ngram``, ``exit:4``, …) and not a model's name."""
    return not isinstance(draft, ModelInMemory) and parse_method(draft) is not None


def _with_defaults(level: dict[str, Any], index: int, num_levels: int) -> dict[str, Any]:
    if level.get("method") == "concatenate":
        return level
    higher = _HIGHER_BUDGET if index > 0 else _LOWEST_BUDGET
    budget = _ONLY_BUDGET if num_levels == 1 else higher
    rule = {"verify": "block"} if index > 0 else {}
    return {"num_speculative_tokens": budget, **rule, **level}
