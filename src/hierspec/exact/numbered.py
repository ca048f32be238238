"""Chains of levels whose models are numbers, concatenations among them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ForwardRef

from pydantic import Discriminator, Tag

from hierspec.config.chains import ConcatenateConfig, Parts, validate_chain
from hierspec.config.numbered import NumberedConfig
from hierspec.utils.schema import ReadAs, checked_dataclass


def _level_kind(level: Any) -> str:
    method = level.get("method") if isinstance(level, Mapping) else getattr(level, "method", None)
    return "concatenate" if method == "concatenate" else "number"


_NumberedLevel = (
    Annotated[NumberedConfig, Tag("number")]
    | Annotated[ForwardRef("NumberedConcatenation", module=__name__), Tag("concatenate")]
)
NumberedChain = Annotated[
    tuple[Any, ...],
    ReadAs(tuple[Annotated[_NumberedLevel, Discriminator(_level_kind)], ...], validate_chain),
]


@checked_dataclass
class NumberedConcatenation(ConcatenateConfig):
    """A concatenation of levels whose models are numbers."""

    parts: Parts[NumberedChain]
