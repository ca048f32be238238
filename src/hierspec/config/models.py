"""The models of a hierarchy's levels, which share trunks and caches where they can.

One checkpoint has one trunk, however often a hierarchy names it: every early exit is a view of the
target's trunk, and levels that leave out the same layers share a cache.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hierspec.lm.backend import Backend
from hierspec.lm.base import LevelModel
from hierspec.lm.trunk.cuda_graphs import trunk_for
from hierspec.lm.trunk.trunk import ExitModel, Trunk

from .chains import AnyLevelConfig, ConcatenateConfig, find_levels
from .checkpoints import Key, Loaded, key_of
from .levels import LevelConfig, TargetInfo
from .schema import TargetConfig


@dataclass(slots=True)
class LevelModels:
    """Makes the models of one hierarchy.

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
        """Return the target's model.

        Raises:
            HierspecError: it cannot be read, or an exit is out of range.
        """
        return self._trunk(self.target).view()

    def model(self, level: AnyLevelConfig) -> tuple[LevelModel | None, str]:
        """Return a level's model and its name; a concatenation has no model.

        Raises:
            HierspecError: it cannot be read, or its vocabulary is not the target's.
        """
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
        changes = {"model": model, "dtype": dtype or self.target.dtype, "backend": backend}
        trunk = self._trunk(dataclasses.replace(self.target, **changes))
        return trunk, self.loaded.tokenizers.get(model)

    def _trunk(self, model: TargetConfig) -> Trunk:
        key = key_of(model)
        if key not in self.trunks:
            backend = self.loaded.backend(model)
            exits = self._exit_layers(backend) if key == key_of(self.target) else ()
            self.trunks[key] = trunk_for(backend, exits, graphs=model.cuda_graphs)
        return self.trunks[key]

    def _exit_layers(self, backend: Backend) -> list[int]:
        """Return the layer counts of the target after which a level exits, or reads its states."""
        name, levels = self.target.model, find_levels(self.levels, LevelConfig)
        return sorted({layer for level in levels for layer in level.read_layers(name, backend)})
