"""Chains of levels, smallest first: their types, and which fields each place in a chain allows.

The first level of a chain only drafts, every other one verifies the one before it. The first may be
a concatenation, whose parts are chains themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar, Union

from pydantic import BeforeValidator

from hierspec.utils.schema import Count, OneOf, ReadAs, checked_dataclass, error_at, validate

from . import methods
from .fields import DEFAULT_LENIENCE
from .levels import LevelConfig

T = TypeVar("T")

_MORE = "--plugin FILE.py adds those of a file of yours"
_NONE_BELOW = "the first level has nothing below it to verify, so this has no use; remove it"
# Fields that mean nothing on a first level: field → the value that is allowed, and why.
_NOT_OF_FIRST = {
    "verify": (
        None,
        "the first level only drafts: it has nothing below it to verify; remove it (the level "
        "above, or the target, sets how its drafts are verified)",
    ),
    "top_m": (1, _NONE_BELOW),
    "lenience": (DEFAULT_LENIENCE, _NONE_BELOW),
    "bonus": (True, _NONE_BELOW),
}
# Fields that only a first level may set, likewise.
_ONLY_OF_FIRST = {
    "num_drafts": (1, "only the first level makes alternative drafts; remove it"),
}


def _validate_unset(i: int, level: Any, fields: Mapping[str, tuple[Any, str]]) -> None:
    for name, (allowed, message) in fields.items():
        if getattr(level, name, allowed) != allowed:
            raise error_at([i, name], message)


def validate_chain(value: Any, validate_form: Callable[[Any], Any]) -> Any:
    levels = validate_form(value)
    for i, level in enumerate(levels):
        if isinstance(level, ConcatenateConfig):
            if i > 0:
                raise error_at(
                    [i],
                    "a concatenation only drafts, so it comes first; move the levels below it "
                    "into its parts",
                )
            continue
        if i == 0:
            _validate_unset(i, level, _NOT_OF_FIRST)
        can_predict = i == 0 and level.capabilities.predicts
        if level.window.signal == "acceptance" and not can_predict:
            raise error_at(
                [i, "window"],
                "an acceptance window belongs to a first level of method draft_model, whose head "
                "predicts which of its tokens are accepted; use the entropy window here",
            )
        if i == 0:
            continue
        _validate_unset(i, level, {**level.only_first, **_ONLY_OF_FIRST})
        if level.only_drafts:
            raise error_at([i], level.only_drafts)
    return levels


def _parts_as_chains(parts: Any) -> Any:
    if not isinstance(parts, list | tuple) or not parts or any(part in ([], ()) for part in parts):
        raise ValueError("it must be a list of levels or of lists of levels, none of them empty")
    return [part if isinstance(part, list | tuple) else [part] for part in parts]


def _find(method: str, keys: Iterable[str]) -> type | None:
    return ConcatenateConfig if method == methods.CONCATENATE else methods.find(method, keys)


def _names() -> list[str]:
    return [*methods.names(), methods.CONCATENATE]


AnyLevelConfig = Union[LevelConfig, "ConcatenateConfig"]
_AnyLevel = Annotated[Any, OneOf("method", _find, _names, _MORE, methods.meant)]
LevelChain = Annotated[
    tuple[AnyLevelConfig, ...],
    ReadAs(tuple[_AnyLevel, ...], validate_chain),
]
Parts = Annotated[tuple[T, ...], BeforeValidator(_parts_as_chains)]


@checked_dataclass
class ConcatenateConfig:
    """A run of one drafter, then a run of another, ``repeat`` times [P2]."""

    method: Literal["concatenate"] = "concatenate"
    parts: Parts[LevelChain]
    repeat: Count = 1


def parse_level(level: Mapping[str, Any], source: str) -> LevelConfig:
    """Parse one level on its own, whatever its place in a chain; a missing budget is 1."""
    shape = Annotated[Any, OneOf("method", methods.find, methods.names, _MORE)]
    return validate(shape, {"num_speculative_tokens": 1, **level}, source)


def find_levels(levels: Sequence[Any], kind: type[T] | tuple[type[T], ...]) -> list[T]:
    """Return the levels of a class, those inside concatenations included."""
    matching = []
    for level in levels:
        if isinstance(level, ConcatenateConfig):
            for part in level.parts:
                matching += find_levels(part, kind)
        elif isinstance(level, kind):
            matching.append(level)
    return matching
