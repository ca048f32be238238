"""Cases for ``certify``: tabular models and the levels between them, as JSON.

``{"vocab": V, "models": [{"order": o, "table": {"": [..], "0": [..], "0,1": [..]}}, ..],
"levels": [{"num_speculative_tokens": 2}, {"verify": "block", "num_speculative_tokens": 3},
{"verify": "tokenwise"}], "horizon": H, "description": ".."}``

Models come smallest first, the target last; a table is keyed by the last ``order`` tokens (fewer
at the start of the text). There is one level per model: the first only drafts, the last only
verifies. ``verify``, ``top_m``, ``window`` and ``bonus`` are as in the hierarchy file, and so is
``{"method": "concatenate", "parts": [..], "repeat": m}`` in place of the first level, where a part
is a level or a list of levels. Beside a concatenation every level below the target names the
number of its ``model``. ``num_drafts`` of the first level needs ``rrs``,
``rrs-without-replacement`` or ``block-rrs`` right above it.

``"control": [[2, 3], [0, 1], [0, 0]]`` certifies budgets that change between rounds: each entry is
a plan, one budget per level below the target (0: not used), and what the last round kept, level by
level, decides the next plan (:class:`hierspec.engine.control.Jumping`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hierspec.config.schema import parse_window
from hierspec.core import rules as verifiers
from hierspec.core.nodes import Concatenate, Draft, Node, Verify
from hierspec.engine.control import Jumping
from hierspec.errors import HierspecError
from hierspec.lm.tabular import TabularModel
from hierspec.utils.checks import boolean, positive, strict
from hierspec.verifiers import registry
from hierspec.verifiers.soundness import check

_MAX_CONTEXTS = 2**16  # V^order rows of a table
_CASE_KEYS = ["description", "vocab", "models", "levels", "horizon", "control"]
_VERIFY_KEYS = ["verify", "top_m", "bonus"]
_DRAFT_KEYS = ["num_speculative_tokens", "window", "model"]
_LEAF_KEYS = [*_DRAFT_KEYS, "num_drafts"]
_CONCATENATE_KEYS = ["method", "parts", "repeat"]


def load_case(path: str | Path) -> dict[str, Any]:
    """Read a case file.

    Raises:
        ValueError: it cannot be read, or is not a JSON object.
    """
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise HierspecError(f"cannot read the case {str(path)!r}: {error.strerror}") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise HierspecError(f"{path}: not valid JSON: {error}") from None
    if not isinstance(data, dict):
        raise HierspecError(f"{path}: a case is a JSON object, not {type(data).__name__}")
    return data


def parse_case(case: Mapping[str, Any]) -> tuple[Verify, int, int | None]:
    """A case → (the target's node, V, horizon or ``None``)."""
    case = strict(case, _CASE_KEYS, "case")
    for key in ("vocab", "models", "levels"):
        if key not in case:
            raise HierspecError(f"case: {key!r} is missing; it needs vocab, models and levels")
    vocab, horizon = case["vocab"], case.get("horizon")
    positive(vocab, "case.vocab")
    if horizon is not None:
        positive(horizon, "case.horizon")
    models = [_model(model, vocab, f"models[{i}]") for i, model in enumerate(_list(case, "models"))]
    root = _Tree(models).root(_list(case, "levels"))
    check(root, allow_lossy=True)  # lossy rules are on exhibit here: their distance is printed
    return root, vocab, horizon


def parse_control(case: Mapping[str, Any], root: Verify) -> Jumping | None:
    """The controller of a case that has one."""
    if "control" not in case:
        return None
    plans = case["control"]
    if not isinstance(plans, list) or not plans or not all(_is_plan(plan) for plan in plans):
        raise HierspecError(
            "case.control must be a list of plans such as [[2, 3], [0, 1], [0, 0]]: one budget, "
            "0 or more, for each level below the target"
        )
    try:
        controller = Jumping(root, plans)
        for plan in controller.plans:
            check(plan, allow_lossy=True)
    except ValueError as error:
        raise HierspecError(f"case.control: {error}") from None
    return controller


class _Tree:
    """Levels as nested nodes, numbered from the bottom."""

    def __init__(self, models: list[TabularModel]) -> None:
        self.models = models
        self.nodes = 0

    def root(self, levels: list[Any]) -> Verify:
        flat = not any(_is_concatenation(level) for level in levels)
        if flat and len(levels) != len(self.models):
            raise HierspecError(
                f"case: {len(levels)} levels for {len(self.models)} models; it takes one level "
                "per model, smallest first, and the last one (the target) only verifies"
            )
        last = len(levels) - 1
        rule = self._rule(levels[last], f"levels[{last}]", "block")
        below = self._chain(levels[:last], "levels", rule.fixed_length) if last else None
        where = f"levels[{last}]"
        data = strict(levels[last], [*_VERIFY_KEYS, "model"], where)
        model = self._pick(data, where, len(self.models) - 1)
        if model is not self.models[-1]:
            raise HierspecError(
                f"{where}.model: the last level is the target, which is the last model"
            )
        return self._verify(data, where, model, 1, rule, below)

    def _chain(self, levels: list[Any], where: str, fixed: bool) -> Node:
        """Levels below a verifying one; ``fixed``: it needs a draft of a fixed length."""
        below: Node | None = None
        for i, level in enumerate(levels):
            at = f"{where}[{i}]"
            above = levels[i + 1] if i + 1 < len(levels) else None
            needs_fixed = fixed
            if above is not None and not _is_concatenation(above):
                needs_fixed = self._rule(above, f"{where}[{i + 1}]", "tokenwise").fixed_length
            if not isinstance(level, Mapping):
                raise HierspecError(f"{at} must be an object, not {level!r}")
            if _is_concatenation(level):
                if below is not None:
                    raise HierspecError(f"{at}: a concatenation only drafts, so it comes first")
                below = self._concatenation(level, at)
                continue
            allowed = _LEAF_KEYS if below is None else [*_DRAFT_KEYS, *_VERIFY_KEYS]
            if below is None and "verify" in level:
                raise HierspecError(f"{at}.verify: the first level only drafts; remove it")
            data = strict(level, allowed, at)
            if "num_speculative_tokens" not in data:
                raise HierspecError(f"{at}: 'num_speculative_tokens' is missing")
            budget = data["num_speculative_tokens"]
            positive(budget, f"{at}.num_speculative_tokens")
            default = i if where == "levels" and not _is_concatenation(levels[0]) else None
            model = self._pick(data, at, default)
            window = parse_window(data.get("window", "fixed"), f"{at}.window")
            if below is None:
                several = data.get("num_drafts", 1)
                positive(several, f"{at}.num_drafts")
                below = Draft(self._index(), at, model, budget, window, num_drafts=several)
            else:
                rule = self._rule(data, at, "tokenwise")
                below = self._verify(data, at, model, budget, rule, below, window, needs_fixed)
        assert below is not None
        return below

    def _concatenation(self, data: Mapping[str, Any], where: str) -> Node:
        data = strict(data, _CONCATENATE_KEYS, where)
        parts = data.get("parts")
        if not isinstance(parts, list) or not parts or [] in parts:
            raise HierspecError(
                f"{where}.parts must be a list of levels, or of lists of levels; none empty"
            )
        positive(data.get("repeat", 1), f"{where}.repeat")
        chains = [
            self._chain(part if isinstance(part, list) else [part], f"{where}.parts[{i}]", False)
            for i, part in enumerate(parts)
        ]
        return Concatenate(self._index(), where, tuple(chains), data.get("repeat", 1))

    def _verify(
        self,
        data: Mapping[str, Any],
        where: str,
        model: TabularModel,
        budget: int,
        rule: verifiers.Verifier,
        below: Node | None,
        window: Any = None,
        exact_length: bool = False,
    ) -> Verify:
        bonus = data.get("bonus", True)
        boolean(bonus, f"{where}.bonus")
        return Verify(
            self._index(),
            where,
            model,
            budget,
            rule,
            below.under(rule) if isinstance(below, Draft) else below,
            window=parse_window("fixed" if window is None else window, where),
            bonus=bonus,
            exact_length=exact_length,
        )

    def _rule(self, data: Any, where: str, default: str) -> verifiers.Verifier:
        if not isinstance(data, Mapping):
            raise HierspecError(f"{where} must be an object, not {data!r}")
        name, options = data.get("verify", default), {}
        if "top_m" in data:
            positive(data["top_m"], f"{where}.top_m")
            options["top_m"] = data["top_m"]
        if not isinstance(name, str):
            raise HierspecError(f"{where}.verify must be a name: {', '.join(registry.names())}")
        try:
            return registry.get(name, **options)
        except ValueError as error:
            raise HierspecError(f"{where}.verify: {error}") from None

    def _pick(self, data: Mapping[str, Any], where: str, default: int | None) -> TabularModel:
        index = data.get("model", default)
        if index is None:
            raise HierspecError(
                f"{where}: 'model' is missing; beside a concatenation every level but the last "
                "names the number of its model"
            )
        if not isinstance(index, int) or isinstance(index, bool):
            raise HierspecError(f"{where}.model must be the number of a model, not {index!r}")
        if not 0 <= index < len(self.models):
            raise HierspecError(f"{where}.model is {index}; models are 0 to {len(self.models) - 1}")
        return self.models[index]

    def _index(self) -> int:
        self.nodes += 1
        return self.nodes - 1


def _is_concatenation(level: Any) -> bool:
    return isinstance(level, Mapping) and level.get("method") == "concatenate"


def _is_plan(plan: Any) -> bool:
    return isinstance(plan, list) and all(type(n) is int and n >= 0 for n in plan)


def _list(case: Mapping[str, Any], key: str) -> list[Any]:
    if not isinstance(case[key], list) or not case[key]:
        raise HierspecError(f"case.{key} must be a list, smallest first, not {case[key]!r}")
    return case[key]


def _model(data: Any, vocab: int, where: str) -> TabularModel:
    if not isinstance(data, Mapping):
        raise HierspecError(f"{where} must be an object with order and table, not {data!r}")
    data = strict(data, ["order", "table"], where)
    order, given = data.get("order", 0), data.get("table")
    if not isinstance(order, int) or isinstance(order, bool) or order < 0:
        raise HierspecError(f"{where}.order must be a whole number of at least 0, not {order!r}")
    if not isinstance(given, Mapping):
        raise HierspecError(f'{where}.table must be an object such as {{"": [..], "0": [..]}}')
    for key, row in given.items():
        if not isinstance(row, list) or not all(_is_probability(x) for x in row):
            raise HierspecError(f"{where}.table[{key!r}] must be a list of {vocab} probabilities")
    if vocab**order > _MAX_CONTEXTS:
        raise HierspecError(f"{where}: {vocab}^{order} contexts are too many to enumerate")
    try:
        return TabularModel(vocab, order, given)
    except ValueError as error:
        raise HierspecError(f"{where}: {error}") from None


def _is_probability(x: Any) -> bool:
    return isinstance(x, int | float) and not isinstance(x, bool) and 0.0 <= x <= 1.0
