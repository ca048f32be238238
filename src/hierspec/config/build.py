"""A hierarchy ready to run, built of its configuration: models loaded, rules checked."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from hierspec.errors import HierspecError
from hierspec.lm.base import ModelVerify
from hierspec.lm.loaded import Watch
from hierspec.verifiers.soundness import validate as validate_soundness

from .arguments import validate_tokenizer
from .chains import AnyLevelConfig
from .checkpoints import Loaded
from .models import LevelModels
from .nodes import build_nodes, make_rule
from .schema import HierarchyConfig, TargetConfig


@dataclass(frozen=True, slots=True, eq=False)
class Built:
    """A hierarchy ready to run.

    Attributes:
        tokenizer: the target's; ``None`` if it has none.
        eos_ids: ids that end a text of the target, apart from the tokenizer's own.
        watches: over the weights that were taken from models in memory.
    """

    root: ModelVerify
    tokenizer: Any
    config: HierarchyConfig
    eos_ids: frozenset[int] = frozenset()
    watches: tuple[Watch, ...] = ()


def build(config: HierarchyConfig, loaded: Loaded | None = None, tokenizer: Any = None) -> Built:
    """Load the models of ``config`` and build its nodes.

    Args:
        loaded: checkpoints to share; missing ones are loaded and added.
        tokenizer: of the target, in place of the one beside it.

    Raises:
        HierspecError: a model cannot be read, an exit is out of range, vocabularies differ, or a
            rule is unsound at its level and ``allow_lossy`` is off.
    """
    loaded = loaded or Loaded()
    if tokenizer is not None:
        validate_tokenizer(tokenizer)
        loaded.tokenizers[config.target.model] = tokenizer
    models = LevelModels(_target(config), config.levels, loaded)
    target, names = models.target_view(), set()

    def model_and_name(level: AnyLevelConfig | None, _: str) -> tuple[Any, str]:
        model, name = (target, config.target.model) if level is None else models.model(level)
        name = str(name)
        unique_name, i = name, 2
        while unique_name in names:
            unique_name, i = f"{name}#{i}", i + 1
        names.add(unique_name)
        return model, unique_name

    rule = make_rule(config.verify, config.top_m, config.lenience)
    root = build_nodes(config.levels, model_and_name, rule)
    validate_soundness(root, greedy=True, allow_lossy=config.allow_lossy)
    name = config.target.model
    return Built(root, loaded.tokenizers.get(name), config, loaded.eos_ids(name), loaded.watches())


def _target(config: HierarchyConfig) -> TargetConfig:
    target = config.target
    if not config.deterministic:
        return target
    if target.backend == "hf":
        raise HierspecError(
            "deterministic decoding needs the compiled kernels: leave out backend, or deterministic"
        )
    return dataclasses.replace(target, backend="deterministic")
