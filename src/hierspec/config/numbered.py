"""Levels that name their models by index, into a simulation's estimates or a case's tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from hierspec.core.nodes import Verify
from hierspec.errors import HierspecError
from hierspec.utils.schema import Expected, Integer, checked_dataclass

from .levels import Capabilities, LevelConfig
from .nodes import build_nodes, make_rule


@checked_dataclass
class NumberedConfig(LevelConfig):
    """A level whose model is a number; ``None``: the number of its place in the chain."""

    capabilities = Capabilities(predicts=True)

    method: Literal["number"] = "number"
    model: Annotated[Integer, Expected("the number of a model")] | None = None


def chain(
    budgets: Sequence[int], models: Sequence[int] | None = None, bonus: bool = True
) -> Verify:
    """Build a plain chain that verifies tokenwise: level i drafts ``budgets[i]`` tokens.

    Args:
        models: numbers of the models, smallest first, target last; default: 0, 1, 2, ….
        bonus: whether the levels between the first and the target emit a bonus token.

    Raises:
        HierspecError: not one budget of at least 1 for each model but the last.
    """
    *drafters, target = range(len(budgets) + 1) if models is None else models
    if len(drafters) != len(budgets) or any(budget < 1 for budget in budgets):
        raise HierspecError("give one budget of at least 1 for each model but the last")
    levels = [
        NumberedConfig(model=model, num_speculative_tokens=budget, bonus=bonus or i == 0)
        for i, (model, budget) in enumerate(zip(drafters, budgets, strict=True))
    ]

    def model_and_name(level: NumberedConfig | None, _: str) -> tuple[int | None, str]:
        model = target if level is None else level.model
        return model, f"model {model}"

    return build_nodes(levels, model_and_name, make_rule("tokenwise"))
