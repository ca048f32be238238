"""Levels that name their models by index, into a simulation's estimates or a case's tables."""

from __future__ import annotations

from typing import Annotated, Literal

from hierspec.utils.schema import Expected, Integer, checked_dataclass

from .levels import Capabilities, LevelConfig


@checked_dataclass
class NumberedConfig(LevelConfig):
    """A level whose model is a number; ``None``: the number of its place in the chain."""

    capabilities = Capabilities(predicts=True)

    method: Literal["number"] = "number"
    model: Annotated[Integer, Expected("the number of a model")] | None = None
