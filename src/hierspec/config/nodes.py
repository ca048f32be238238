"""Nodes built of levels, whatever the levels' models are.

Real models come from :mod:`hierspec.config.build`; certificates use tables, and simulations plain
numbers (:mod:`hierspec.config.numbered`).
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from hierspec.core.nodes import Concatenate, Draft, Node, Verify
from hierspec.core.rules import Verifier
from hierspec.errors import HierspecError, HierspecWarning, errors_in
from hierspec.verifiers import registry

from .chains import ConcatenateConfig
from .fields import DEFAULT_LENIENCE

# (level, its place) → (model, name). A concatenation's model is not used; ``None`` is the target.
ModelAndName = Callable[[Any, str], tuple[Any, str]]


class StrictLenienceWarning(HierspecWarning, UserWarning):
    """The target verifies by ``lenient``, with the lenience that makes it ``tokenwise``."""


def build_nodes(
    levels: Sequence[Any], model_and_name: ModelAndName, verifier: Verifier, bonus: bool = True
) -> Verify:
    """Build the target's node over levels, smallest first; nodes are numbered from the bottom."""
    numbers, leaves = itertools.count(), list[Any]()

    def fields_of(level: Any, place: str) -> dict[str, Any]:
        model, name = model_and_name(level, place)
        return {"index": next(numbers), "name": name, "model": model}

    def build_chain(levels: Sequence[Any], place: str) -> Node | None:
        below: Node | None = None
        for i, level in enumerate(levels):
            below = build_node(level, below, f"{place}[{i}]")
        return below

    def build_node(level: Any, below: Node | None, place: str) -> Node:
        if isinstance(level, ConcatenateConfig):
            own = f"{place}.parts"
            chains = [build_chain(part, f"{own}[{i}]") for i, part in enumerate(level.parts)]
            parts = tuple(part for part in chains if part is not None)
            fields = fields_of(level, place)
            return Concatenate(fields["index"], fields["name"], parts, level.repeat)
        fields = fields_of(level, place) | {
            "budget": level.max_tokens,
            "window": level.window,
            "temperature": level.temperature,
        }
        if below is None:
            leaves.append(level)
            return Draft(**fields, num_drafts=level.max_drafts)
        with errors_in(f"{place}.verify"):
            rule = make_rule(level.verify or "tokenwise", level.top_m, level.lenience)
        return Verify(**fields, rule=rule, below=None, bonus=level.bonus).over(below)

    below = build_chain(levels, "levels")
    fields = fields_of(None, "target")
    is_strict = getattr(verifier, "lenience", None) == DEFAULT_LENIENCE
    if is_strict and below is not None:
        warnings.warn(
            "the target's rule is lenient with lenience 1, which is tokenwise and loses nothing: "
            "set lenience above 1 for lenient acceptance (lossy at the target), or name tokenwise",
            StrictLenienceWarning,
            stacklevel=2,
        )
    root = Verify(**fields, budget=1, rule=verifier, below=None, bonus=bonus).over(below)
    for leaf in leaves:
        root = leaf.complete(root)
    return root


def make_rule(name: str, top_m: int = 1, lenience: float = DEFAULT_LENIENCE) -> Verifier:
    rule, values = registry.get(name), {"top_m": top_m, "lenience": lenience}
    for option, default in (("top_m", 1), ("lenience", DEFAULT_LENIENCE)):
        if values[option] != default and option not in rule.options:
            raise HierspecError(f"the rule {name!r} has no {option}: leave it out, or name another")
    return rule.with_options(**{option: values[option] for option in rule.options})
