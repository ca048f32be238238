"""``drafts=[small, "ngram"]``: what a list of drafters means as the levels of a hierarchy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from hierspec.errors import HierspecError
from hierspec.utils.schema import short_repr
from hierspec.zoo import registry, trained

from .in_memory import ModelInMemory, is_model

LOOK_UPS = {
    "ngram": "prompt_lookup",
    "prompt-lookup": "prompt_lookup",
    "prompt_lookup": "prompt_lookup",
    "ngram-pool": "ngram_pool",
    "suffix": "suffix",
}
QUANTIZED, EAGLE3, TABLE = "quantized", "eagle3", "ngram_table"
NAMES = "exit:LAYER, eagle3:FOLDER, ngram, ngram:TABLE, prompt-lookup, suffix, quantized"
ALONE, LOWEST, HIGHER = 8, 3, 12  # tokens; as in the preset hierarchy


def levels(drafts: Any) -> list[Mapping[str, Any]]:
    """Return levels for a hierarchy file, smallest first, each verified by block.

    Args:
        drafts: smallest first: loaded models, their names or paths, ``exit:LAYER`` (the target's
            own first layers), ``eagle3:FOLDER``, ``ngram`` (copies what followed the same words
            earlier in the text; also called ``prompt-lookup``), ``ngram:TABLE`` (a file of
            ``hierspec ngram build``), ``ngram-pool``, ``suffix``, ``quantized`` (the target's own
            weights in int8; ``quantized:4`` in 4 bits), or a level as in a hierarchy file. What
            copies costs next to nothing and stands lowest, wherever it is named.

    Raises:
        HierspecError: something else.
    """
    if isinstance(drafts, str | Mapping) or is_model(drafts) or not isinstance(drafts, Iterable):
        drafts = [drafts]
    found = [_level(draft) for draft in drafts]
    copies = set(LOOK_UPS.values())
    found.sort(key=lambda level: level.get("method") not in copies)  # stable
    return [_placed(level, place, len(found)) for place, level in enumerate(found)]


def _level(draft: Any) -> dict[str, Any]:
    if isinstance(draft, Mapping):
        return dict(draft)
    if isinstance(draft, str) and not isinstance(draft, ModelInMemory):
        return named(draft) or {"method": "draft_model", "model": draft}
    if hasattr(draft, "__fspath__") or is_model(draft):
        return {"method": "draft_model", "model": draft}
    raise HierspecError(
        f"drafts must hold models, loaded or by name, {NAMES}, or levels of a hierarchy file; not "
        f"{short_repr(draft)}"
    )


def named(draft: str) -> dict[str, Any] | None:
    """Return the level that a name means; ``None``: it names a model.

    Raises:
        HierspecError: an exit without its layer, other bits than 4 and 8.
    """
    kind, colon, detail = draft.partition(":")
    if draft in LOOK_UPS:
        return {"method": LOOK_UPS[draft]}
    if kind == QUANTIZED:
        if detail not in ("", "4", "8"):
            raise HierspecError(f"draft {draft!r}: say quantized, in 8 bits, or quantized:4")
        return {"method": QUANTIZED, **({"bits": int(detail)} if detail else {})}
    if kind == "exit" and colon:
        if not detail.isdecimal():
            raise HierspecError(f"draft {draft!r}: say exit:LAYER, as in exit:4")
        return {"method": "early_exit", "exit_layer": int(detail)}
    if kind in ("ngram", TABLE):
        return {"method": TABLE, **({"table": detail} if detail else {})}
    if kind == EAGLE3:
        return {"method": EAGLE3, "model": detail or registry.EAGLE3}
    if trained.kind(draft) == trained.EAGLE3:
        return {"method": EAGLE3, "model": draft}
    return None


def is_method(draft: str) -> bool:
    """Return whether a name says how to draft (``ngram``, ``exit:4``, …), not with which model."""
    return not isinstance(draft, ModelInMemory) and named(draft) is not None


def _placed(level: dict[str, Any], place: int, count: int) -> dict[str, Any]:
    """Return a level with defaults for what it leaves open."""
    if level.get("method") == "concatenate":
        return level
    size = ALONE if count == 1 else LOWEST if place == 0 else HIGHER
    rule = {"verify": "block"} if place > 0 else {}
    return {"num_speculative_tokens": size, **rule, **level}
