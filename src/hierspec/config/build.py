"""A hierarchy ready to run: its models loaded, its levels wired, refused where it is unsound."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from hierspec.core.nodes import Verify
from hierspec.errors import HierspecError
from hierspec.utils import openmp
from hierspec.verifiers.soundness import check as check_soundness

from .chains import AnyLevelConfig
from .checkpoints import Loaded
from .models import LevelModels
from .nodes import rule, tree
from .schema import HierarchyConfig, TargetConfig


@dataclass(frozen=True, slots=True, eq=False)
class Built:
    """A hierarchy ready to run.

    Attributes:
        root: the target's node.
        tokenizer: the target's, or ``None`` where it has none.
        ends: tokens that end a text of the target, beside the tokenizer's own.
    """

    root: Verify
    tokenizer: Any
    config: HierarchyConfig
    ends: frozenset[int] = frozenset()


def build(config: HierarchyConfig, loaded: Loaded | None = None) -> Built:
    """Load the models of ``config`` and wire them.

    Args:
        loaded: checkpoints to share; what is missing there is loaded and added.

    Raises:
        HierspecError: a model cannot be read, an exit is out of range, vocabularies differ, or a
            rule is unsound where it stands and ``allow_lossy`` is off.
    """
    loaded = loaded or Loaded()
    models = LevelModels(_target(config), config.levels, loaded)
    target, names = models.top(), set()

    def model_of(level: AnyLevelConfig | None, _: str) -> tuple[Any, str]:
        model, name = (target, config.target.model) if level is None else models.model(level)
        name = str(name)
        unique, i = name, 2
        while unique in names:
            unique, i = f"{name}#{i}", i + 1
        names.add(unique)
        return model, unique

    root = tree(config.levels, model_of, rule(config.verify, config.top_m, config.lenience))
    check_soundness(root, greedy=True, allow_lossy=config.allow_lossy)
    name = config.target.model
    openmp.release()  # loading took threads, and rounds may run in another one
    return Built(root, loaded.tokenizers.get(name), config, loaded.ends_of(name))


def _target(config: HierarchyConfig) -> TargetConfig:
    """Return the target, on the backend that a deterministic hierarchy needs."""
    target = config.target
    if not config.deterministic:
        return target
    if target.backend == "hf":
        raise HierspecError(
            "deterministic decoding runs on the lean backend: leave backend out, or deterministic"
        )
    return dataclasses.replace(target, backend="deterministic")
