"""Plain chains whose models are numbers."""

from __future__ import annotations

from collections.abc import Sequence

from hierspec.config.nodes import build_nodes, make_rule
from hierspec.config.numbered import NumberedConfig
from hierspec.core.nodes import Verify


def chain(
    budgets: Sequence[int], models: Sequence[int] | None = None, bonus: bool = True
) -> Verify:
    """Build a plain chain that verifies tokenwise: level i drafts ``budgets[i]`` tokens.

    Args:
        models: numbers of the models, smallest first, target last; default: 0, 1, 2, ….
        bonus: whether the levels between the first and the target emit a bonus token.
    """
    *drafters, target = range(len(budgets) + 1) if models is None else models
    levels = [
        NumberedConfig(model=model, num_speculative_tokens=budget, bonus=bonus or i == 0)
        for i, (model, budget) in enumerate(zip(drafters, budgets, strict=True))
    ]

    def model_and_name(level: NumberedConfig | None, _: str) -> tuple[int | None, str]:
        model = target if level is None else level.model
        return model, f"model {model}"

    return build_nodes(levels, model_and_name, make_rule("tokenwise"))
