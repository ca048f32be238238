"""Levels that name their models by index: into a simulation's estimates, or a case's tables.

Their other fields, and how nodes are built of them, are those of a hierarchy file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ForwardRef, Literal

from pydantic import Discriminator, Tag

from hierspec.utils.schema import Expected, Integer, ReadAs, checked_dataclass

from .chains import ConcatenateConfig, Parts, validate_chain
from .levels import Capabilities, LevelConfig


@checked_dataclass
class NumberedConfig(LevelConfig):
    """A level whose model is a number; ``None``: the number of its place in the chain."""

    capabilities = Capabilities(predicts=True)

    method: Literal["number"] = "number"
    model: Annotated[Integer, Expected("the number of a model")] | None = None


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
