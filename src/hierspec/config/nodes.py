"""From levels to nodes: the one way, whatever the levels' models are.

Real models come from :mod:`hierspec.config.build`; certificates plug in tables, and simulations
plain numbers (:mod:`hierspec.config.numbered`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from hierspec.core.nodes import Concatenate, Draft, Node, Verify, walk
from hierspec.core.rules import Verifier
from hierspec.errors import HierspecError
from hierspec.verifiers import registry
from hierspec.verifiers.leading import Leading
from hierspec.verifiers.lenient import Lenient

from .chains import ConcatenateConfig
from .fields import DEFAULT_LENIENCE
from .levels import LevelConfig

# (level, its place) → (model, name). A concatenation's model is not used; ``None`` is the target.
ModelOf = Callable[[Any, str], tuple[Any, str]]


def tree(
    levels: Sequence[Any], model_of: ModelOf, verifier: Verifier, bonus: bool = True
) -> Verify:
    """Build the target's node over a chain of levels; nodes are numbered from the bottom.

    Args:
        levels: smallest first; level configurations or concatenations of them.
        model_of: called once for each node, lowest first.
        verifier: the rule by which the target verifies the last level.
        bonus: whether the target adds a token to a draft that it keeps whole.
    """
    builder = _Builder(model_of)
    below = builder.chain(levels, verifier.fixed_length, "levels")
    common = builder.common(None, "target")
    _check_ahead(below, verifier)
    _check_alone(below)
    if isinstance(below, Draft) and below.ahead:
        bonus = False  # a token that the draft ahead could not have known
    return Verify(**common, budget=1, rule=verifier, below=_under(below, verifier), bonus=bonus)


def _check_ahead(below: Node | None, verifier: Verifier) -> None:
    """Refuse a level that drafts ahead where that cannot be.

    Raises:
        HierspecError: with the fix.
    """
    for node in walk(below):
        if not isinstance(node, Draft) or not node.ahead:
            continue
        if node is not below:
            raise HierspecError(
                f"level {node.name!r} drafts ahead of the target, so it must be the only level: "
                "remove the others, or ahead"
            )
        if verifier.name not in ("tokenwise", "block"):
            raise HierspecError(
                f"a draft made ahead is verified by 'tokenwise' or 'block', not {verifier.name!r}: "
                "change verify, or remove ahead"
            )
        if not node.window.fixed_length or node.num_drafts > 1:
            raise HierspecError(
                f"level {node.name!r} drafts ahead, so it makes one draft of fixed length: remove "
                "its window and num_drafts, or ahead"
            )


def _check_alone(below: Node | None) -> None:
    """Refuse a look-up that learns from checks of its own drafts where others check them.

    Raises:
        HierspecError: with the fix.
    """
    for node in walk(below):
        if node is below or isinstance(node, Concatenate):
            continue
        if getattr(node.model, "reads_own_checks", False):
            raise HierspecError(
                f"level {node.name!r} learns from the target's checks of its drafts, so it must be "
                "the only level: remove the others, or use ngram_pool in its place"
            )


class _Builder:
    def __init__(self, model_of: ModelOf) -> None:
        self.model_of = model_of
        self.count = 0

    def chain(self, levels: Sequence[Any], fixed: bool, where: str) -> Node | None:
        """Build the levels as nested nodes; ``fixed``: the rule above needs a fixed length."""
        below: Node | None = None
        for i, level in enumerate(levels):
            needs_fixed = rule_of(levels[i + 1]).fixed_length if i + 1 < len(levels) else fixed
            below = self.node(level, below, needs_fixed, f"{where}[{i}]")
        return below

    def node(self, level: Any, below: Node | None, fixed: bool, where: str) -> Node:
        if isinstance(level, ConcatenateConfig):
            chains = (
                self.chain(part, fixed, f"{where}.parts[{i}]") for i, part in enumerate(level.parts)
            )
            parts = tuple(part for part in chains if part is not None)
            common = self.common(level, where)
            return Concatenate(common["index"], common["name"], parts, level.repeat)
        common = self.common(level, where) | {
            "budget": level.most_tokens,
            "window": level.window,
            "temperature": level.temperature,
        }
        if below is None:
            ahead = getattr(level, "ahead", False)
            return Draft(**common, num_drafts=level.most_drafts, ahead=ahead)
        own = rule_of(level)
        return Verify(
            **common,
            rule=own,
            below=_under(below, own),
            bonus=level.bonus,
            exact_length=fixed,
        )

    def common(self, level: Any, where: str) -> dict[str, Any]:
        model, name = self.model_of(level, where)
        self.count += 1
        return {"index": self.count - 1, "name": name, "model": model}


def _under(below: Node | None, verifier: Verifier) -> Node | None:
    return below.for_rule(verifier) if isinstance(below, Draft) else below


def rule_of(level: LevelConfig) -> Verifier:
    """Return the rule by which a level verifies the one below it."""
    return rule(level.verify or "tokenwise", level.top_m, level.lenience)


def rule(name: str, top_m: int = 1, lenience: float = DEFAULT_LENIENCE) -> Verifier:
    """Return a rule by name, with its parameter."""
    found = registry.get(name)
    if isinstance(found, Lenient):
        return dataclasses.replace(found, lenience=lenience)
    return dataclasses.replace(found, top_m=top_m) if isinstance(found, Leading) else found
