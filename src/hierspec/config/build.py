"""From a configuration to nodes: wire the levels' models, refuse what is unsound.

Checkpoints are loaded by :mod:`hierspec.config.checkpoints` and become models of levels in
:mod:`hierspec.config.models`.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from hierspec.core import rules as verifiers
from hierspec.core.nodes import Concatenate, Draft, Node, Verify
from hierspec.verifiers import registry
from hierspec.verifiers.leading import Leading
from hierspec.verifiers.soundness import check as check_soundness

from .checkpoints import Loaded
from .models import LevelModels
from .schema import (
    AdaptiveExitConfig,
    AnyLevelConfig,
    ConcatenateConfig,
    EarlyExitConfig,
    HierarchyConfig,
    LevelConfig,
    TargetConfig,
)


@dataclass(frozen=True, slots=True, eq=False)
class Built:
    """A hierarchy ready to run.

    Attributes:
        root: the target's node.
        tokenizer: the target's, or ``None`` where it has none.
    """

    root: Verify
    tokenizer: Any
    config: HierarchyConfig


def build(config: HierarchyConfig, loaded: Loaded | None = None) -> Built:
    """Load the models of ``config`` and wire them.

    Args:
        loaded: checkpoints to share; what is missing there is loaded and added.

    Raises:
        ValueError: a model cannot be read, an exit is out of range, vocabularies differ, or a rule
            is unsound where it stands and ``allow_lossy`` is off.
    """
    loaded = loaded or Loaded()
    root = _Builder(config, LevelModels(config.target, _exits(config.levels), loaded)).root()
    check_soundness(root, greedy=True, allow_lossy=config.allow_lossy)
    return Built(root, loaded.tokenizers.get(config.target.model), config)


def models(
    target: TargetConfig, levels: tuple[LevelConfig, ...], loaded: Loaded
) -> tuple[Any, list[tuple[Any, str]]]:
    """The target's model, and each level's with its name: views that share what can be shared."""
    shared = LevelModels(target, _exits(levels), loaded)
    top = shared.top()
    return top, [shared.model(level) for level in levels]


@dataclass(slots=True)
class _Builder:
    config: HierarchyConfig
    models: LevelModels
    nodes: int = 0
    names: set[str] = field(default_factory=set)

    def root(self) -> Verify:
        config = self.config
        target = self.models.top()
        top = rule(config.verify, config.top_m)
        below = self._chain(config.levels, fixed=top.fixed_length)
        return Verify(
            index=self._index(),
            name=self._name(config.target.model),
            model=target,
            budget=1,
            rule=top,
            below=below.under(top) if isinstance(below, Draft) else below,
        )

    def _chain(self, levels: tuple[AnyLevelConfig, ...], fixed: bool) -> Node | None:
        """The levels as nested nodes; ``fixed``: the rule above needs a fixed length."""
        below: Node | None = None
        for i, level in enumerate(levels):
            above = levels[i + 1] if i + 1 < len(levels) else None
            needs_fixed = fixed
            if isinstance(above, LevelConfig):
                needs_fixed = registry.get(above.verify or "tokenwise").fixed_length
            below = self._node(level, below, needs_fixed)
        return below

    def _node(self, level: AnyLevelConfig, below: Node | None, fixed: bool) -> Node:
        if isinstance(level, ConcatenateConfig):
            parts = tuple(self._chain(part, fixed) for part in level.parts)
            return Concatenate(
                index=self._index(),
                name=self._name("concatenate"),
                parts=tuple(part for part in parts if part is not None),
                repeat=level.repeat,
            )
        model, name = self.models.model(level)
        common: dict[str, Any] = {
            "index": self._index(),
            "name": self._name(name),
            "model": model,
            "budget": level.num_speculative_tokens,
            "window": level.window,
            "temperature": level.temperature,
        }
        if below is None:
            return Draft(**common, num_drafts=level.num_drafts)
        own = rule(level.verify or "tokenwise", level.top_m)
        return Verify(
            **common,
            rule=own,
            below=below.under(own) if isinstance(below, Draft) else below,
            bonus=level.bonus,
            exact_length=fixed,
        )

    def _index(self) -> int:
        self.nodes += 1
        return self.nodes - 1

    def _name(self, name: str) -> str:
        unique, i = name, 2
        while unique in self.names:
            unique, i = f"{name}#{i}", i + 1
        self.names.add(unique)
        return unique


def rule(name: str, top_m: int = 1) -> verifiers.Verifier:
    """A rule by name, with its parameter."""
    found = registry.get(name)
    return dataclasses.replace(found, top_m=top_m) if isinstance(found, Leading) else found


def flat(levels: tuple[AnyLevelConfig, ...], kind: type | tuple[type, ...]) -> list[Any]:
    """The levels of a kind, those inside concatenations too."""
    out = []
    for level in levels:
        if isinstance(level, ConcatenateConfig):
            for part in level.parts:
                out += flat(part, kind)
        elif isinstance(level, kind):
            out.append(level)
    return out


def _exits(levels: tuple[AnyLevelConfig, ...]) -> list[int]:
    """Every layer count after which some level ends."""
    exits = {level.exit_layer for level in flat(levels, EarlyExitConfig)}
    for level in flat(levels, AdaptiveExitConfig):
        exits.update(level.exit_layers)
    return sorted(exits)
