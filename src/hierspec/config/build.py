"""A hierarchy ready to run, built of its configuration: models loaded, rules checked."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hierspec.errors import HierspecError
from hierspec.lm.backend import Backend
from hierspec.lm.base import LevelModel, ModelVerify
from hierspec.lm.loaded import Watch
from hierspec.lm.trunk.cuda_graphs import trunk_for
from hierspec.lm.trunk.trunk import ExitModel, Trunk
from hierspec.verifiers.soundness import validate as validate_soundness

from .arguments import validate_tokenizer
from .chains import AnyLevelConfig, ConcatenateConfig, find_levels
from .checkpoints import Key, Loaded, key_of
from .in_memory import ModelInMemory
from .levels import LevelConfig, TargetInfo
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


@dataclass(slots=True)
class LevelModels:
    """Makes the models of one hierarchy, which share trunks and caches where they can.

    One checkpoint has one trunk, however often a hierarchy names it: every early exit is a view of
    the target's.

    Args:
        levels: all levels of the hierarchy; a trunk is made for their exits.
        loaded: checkpoints to share; missing ones are loaded and added.
    """

    target: TargetConfig
    levels: Sequence[AnyLevelConfig]
    loaded: Loaded
    trunks: dict[Key, Trunk] = field(default_factory=dict)
    shared: dict[Any, Any] = field(default_factory=dict[Any, Any])

    def target_view(self) -> ExitModel:
        return self._trunk(self.target).view()

    def model(self, level: AnyLevelConfig) -> tuple[LevelModel | None, str]:
        """Return a level's model and its name; a concatenation has no model."""
        if isinstance(level, ConcatenateConfig):
            return None, level.method
        model = level.make(self._target_info())
        return model, level.name_on(self.target.model, model)

    def _target_info(self) -> TargetInfo:
        name, trunk = self.target.model, self._trunk(self.target)
        backend, tokenizer = trunk.backend, self.loaded.tokenizers.get(name)
        size, device = backend.vocab_size, backend.device
        return TargetInfo(name, size, tokenizer, device, trunk, self._load, self.shared)

    def _load(self, model: str, dtype: str | None, backend: str) -> tuple[Trunk, Any]:
        inherited = "auto" if isinstance(model, ModelInMemory) else self.target.dtype
        own = {"dtype": dtype or inherited, "backend": backend, "free_model": False}
        trunk = self._trunk(dataclasses.replace(self.target, model=model, **own))
        return trunk, self.loaded.tokenizers.get(model)

    def _trunk(self, model: TargetConfig) -> Trunk:
        key = key_of(model)
        if key not in self.trunks:
            backend = self.loaded.backend(model)
            exits = self._exit_layers(backend) if key == key_of(self.target) else ()
            self.trunks[key] = trunk_for(backend, exits, graphs=model.cuda_graphs)
        return self.trunks[key]

    def _exit_layers(self, backend: Backend) -> list[int]:
        name, levels = self.target.model, find_levels(self.levels, LevelConfig)
        return sorted({layer for level in levels for layer in level.read_layers(name, backend)})


def _target(config: HierarchyConfig) -> TargetConfig:
    target = config.target
    if not config.deterministic:
        return target
    if target.backend == "hf":
        raise HierspecError(
            "deterministic decoding needs the compiled kernels: leave out backend, or deterministic"
        )
    return dataclasses.replace(target, backend="deterministic")
