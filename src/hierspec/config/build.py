"""A hierarchy ready to run: its models loaded, its levels wired, refused where it is unsound."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hierspec.core.nodes import Verify
from hierspec.verifiers.soundness import check as check_soundness

from .checkpoints import Loaded
from .levels import AnyLevelConfig
from .models import LevelModels
from .schema import HierarchyConfig
from .tree import rule, tree


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
        HierspecError: a model cannot be read, an exit is out of range, vocabularies differ, or a
            rule is unsound where it stands and ``allow_lossy`` is off.
    """
    loaded = loaded or Loaded()
    models = LevelModels(config.target, config.levels, loaded)
    target, names = models.top(), set()

    def model_of(level: AnyLevelConfig | None, _: str) -> tuple[Any, str]:
        model, name = (target, config.target.model) if level is None else models.model(level)
        name = str(name)
        unique, i = name, 2
        while unique in names:
            unique, i = f"{name}#{i}", i + 1
        names.add(unique)
        return model, unique

    root = tree(config.levels, model_of, rule(config.verify, config.top_m))
    check_soundness(root, greedy=True, allow_lossy=config.allow_lossy)
    return Built(root, loaded.tokenizers.get(config.target.model), config)
