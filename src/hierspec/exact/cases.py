"""Cases for ``certify``: tabular models and the levels between them, as JSON.

``{"vocab": V, "models": [{"order": o, "table": {"": [..], "0": [..], "0,1": [..]}}, ..],
"levels": [{"num_speculative_tokens": 2}, {"verify": "block", "num_speculative_tokens": 3},
{"verify": "tokenwise"}], "horizon": H, "description": ".."}``

Models come smallest first, the target last; a table is keyed by the last ``order`` tokens (fewer
at the start of the text). Levels are those of the hierarchy file without model names: there
is one per model, the first only drafts, the last only verifies. If there is a concatenation, every
level below the target gives the number of its ``model``.

``"control": [[2, 3], [0, 1], [0, 0]]`` certifies budgets that change between rounds: each entry is
a plan, one budget per level below the target (0: not used), and the tokens accepted in the last
round, level by level, decide the next plan (:class:`JumpingController`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, Strict

from hierspec.config.fields import DEFAULT_LENIENCE, Lenience, RuleName
from hierspec.config.nodes import build_nodes, make_rule
from hierspec.core.nodes import Verify
from hierspec.engine.control import RoundReport, levels_below, plan_of
from hierspec.errors import HierspecError, errors_in
from hierspec.lm.tabular import TabularModel
from hierspec.utils.files import read_text
from hierspec.utils.schema import (
    Boolean,
    Expected,
    Integer,
    Natural,
    PositiveInteger,
    checked_dataclass,
    json_object,
    validate,
)
from hierspec.verifiers.soundness import validate as validate_soundness

from .numbered import NumberedChain, NumberedConcatenation
from .tables import PredictingTable

_MAX_CONTEXTS = 2**16  # V^order rows of a table
_Distribution = Annotated[
    tuple[Annotated[float, Strict(), Field(ge=0, le=1)], ...],
    Expected("a list of probabilities, one for each token"),
]
_Plans = Annotated[
    tuple[tuple[Natural, ...], ...],
    Field(min_length=1),
    Expected(
        "a list of plans such as [[2, 3], [0, 1], [0, 0]]: one budget, 0 or more, for each level "
        "below the target"
    ),
]


@checked_dataclass
class TableConfig:
    """A model's distributions by its last ``order`` tokens.

    Attributes:
        acceptance: under the same keys, the predicted probability that each next token is accepted;
            for windows that read it.
    """

    order: Natural = 0
    table: dict[str, _Distribution]
    acceptance: dict[str, _Distribution] | None = None


@checked_dataclass
class CaseTarget:
    """The last level: it only verifies, and its model is the last one."""

    verify: RuleName = "block"
    top_m: PositiveInteger = 1
    lenience: Lenience = DEFAULT_LENIENCE
    bonus: Boolean = True
    model: Annotated[Integer, Expected("the number of a model")] | None = None


@checked_dataclass
class Case:
    """The case file; the last of its ``levels`` is the target's."""

    description: Any = None
    vocab: PositiveInteger
    models: Annotated[tuple[TableConfig, ...], Field(min_length=1)]
    levels: Annotated[tuple[Any, ...], Field(min_length=1)]
    horizon: PositiveInteger | None = None
    control: _Plans | None = None


def load_case(path: str | Path) -> dict[str, Any]:
    """Read a case file.

    Raises:
        HierspecError: it cannot be read, or is not a JSON object.
    """
    text = read_text(Path(path), "the case")
    return json_object(text, str(path), "a case")


class JumpingController:
    """A controller that jumps between given plans, for certificates and tests.

    Its choice depends on everything that it may know of earlier rounds, accepted tokens of inner
    levels included, and not on speed.

    Args:
        root: the loaded hierarchy.
        budgets: for each plan, the budgets that :func:`plan_of` takes.
    """

    def __init__(self, root: Verify, budgets: Sequence[Sequence[int]]) -> None:
        self.root = plan_of(root, [node.budget for node in levels_below(root)])
        self.plans = tuple(plan_of(root, plan_budgets) for plan_budgets in budgets)
        if not self.plans:
            raise HierspecError("a controller needs at least one plan")

    def initial(self, num_prompt_tokens: int = 0, max_new_tokens: int = 128) -> int:
        return 0

    def plan(self, state: int) -> Verify:
        return self.plans[state]

    def update(self, state: int, report: RoundReport) -> int:
        total = state + 1 + report.num_emitted
        for index, counts in enumerate(report.counts):
            total += (index + 2) * int(counts.accepted) + int(counts.rejected)
        return total % len(self.plans)


def parse_case(
    case: Mapping[str, Any],
) -> tuple[Verify, int, int | None, JumpingController | None]:
    """Turn a case into (the target's node, V, horizon or ``None``, controller or ``None``)."""
    parsed = validate(Case, case, "case")
    models = [_build_table(model, parsed.vocab, i) for i, model in enumerate(parsed.models)]
    root, controller = _build_root(parsed.levels, models), None
    validate_soundness(root, allow_lossy=True)  # lossy rules are certified: as what they are
    if parsed.control is not None:
        with errors_in("case.control"):
            controller = JumpingController(root, parsed.control)
            for plan in controller.plans:
                validate_soundness(plan, allow_lossy=True)
    return root, parsed.vocab, parsed.horizon, controller


def _build_root(levels: tuple[Any, ...], models: list[TabularModel]) -> Verify:
    last, target_path = len(models) - 1, f"levels[{len(levels) - 1}]"
    below = validate(NumberedChain, list(levels[:-1]), "levels")
    has_concatenation = any(isinstance(level, NumberedConcatenation) for level in below)
    if not has_concatenation and len(levels) != len(models):
        raise HierspecError(
            f"case: {len(levels)} levels for {len(models)} models; it takes one level per model, "
            "smallest first, and the last one (the target) only verifies"
        )
    if not has_concatenation:  # level i has model i, unless it names another
        below = [
            level if level.model is not None else dataclasses.replace(level, model=i)
            for i, level in enumerate(below)
        ]
    target = validate(CaseTarget, levels[-1], target_path)
    if target.model not in (None, last):
        raise HierspecError(
            f"{target_path}.model: the last level is the target, which is the last model"
        )

    def model_of(level: Any, path: str) -> tuple[TabularModel | None, str]:
        if level is None:
            return models[last], target_path
        if isinstance(level, NumberedConcatenation):
            return None, path
        if level.temperature is not None:
            raise HierspecError(f"{path}.temperature: tables are taken as they stand; remove it")
        if level.model is None:
            raise HierspecError(
                f"{path}: 'model' is missing; beside a concatenation every level but the last "
                "names the number of its model"
            )
        if not 0 <= level.model <= last:
            raise HierspecError(f"{path}.model is {level.model}; models are 0 to {last}")
        return models[level.model], path

    with errors_in(f"{target_path}.verify"):
        rule = make_rule(target.verify, target.top_m, target.lenience)
    return build_nodes(below, model_of, rule, target.bonus)


def _build_table(model: TableConfig, vocab: int, i: int) -> TabularModel:
    if vocab**model.order > _MAX_CONTEXTS:
        raise HierspecError(
            f"models[{i}]: {vocab}^{model.order} contexts are too many to enumerate"
        )
    with errors_in(f"models[{i}]"):
        return PredictingTable(vocab, model.order, model.table, model.acceptance)
