"""The hierarchies of a service: the default model, presets and files by name, memory for caches."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import torch

from hierspec.api import Hierarchy
from hierspec.config.build import build
from hierspec.config.checkpoints import Loaded
from hierspec.config.schema import HierarchyConfig, TargetConfig
from hierspec.core.nodes import Concatenate, walk
from hierspec.errors import HierspecError
from hierspec.lm.trunk.trunk import Trunk
from hierspec.presets.defaults import unnamed
from hierspec.presets.registry import AUTO, preset
from hierspec.utils.machine import available_memory
from hierspec.zoo.registry import DEFAULT_TARGET, SMOLLM2

from .settings import ServeSettings

_SMOLLM2 = f"zoo:{SMOLLM2}"
_SHARE_OF_MEMORY = 0.4  # of what is free once the weights are loaded
_FEWEST, _MOST = 4096, 1 << 20


def default_model() -> str:
    """``zoo:smollm2`` where its package is installed, else the shipped family's target."""
    from hierspec.zoo.gguf import smollm2_file

    try:
        smollm2_file()
    except HierspecError:
        return DEFAULT_TARGET
    return _SMOLLM2


def load(settings: ServeSettings) -> dict[str, Hierarchy]:
    """All hierarchies of a service, the default one first; they share weights.

    Raises:
        HierspecError: a model or a hierarchy cannot be read.
    """
    model = settings.model or default_model()
    loaded = Loaded()
    out = {"default": _load(settings.hierarchy, model, settings, loaded)}
    for name, source in settings.hierarchies.items():
        if name in out:
            raise HierspecError(f"hierarchies: {name!r} is taken by the default one: rename it")
        out[name] = _load(source, model, settings, loaded)
    return out


def _load(source: str | None, model: str, settings: ServeSettings, loaded: Loaded) -> Hierarchy:
    target = TargetConfig(model=model, dtype=settings.dtype, device=settings.device)
    if source is None:
        return Hierarchy(build(unnamed(target, settings.draft), loaded))
    if source == AUTO:
        return Hierarchy.auto(target, settings.draft)
    if source.lstrip().startswith("{") or Path(source).suffix in (".json", ".toml"):
        config = HierarchyConfig.load(source)
        changes: dict[str, Any] = {"model": settings.model} if settings.model else {}
        changes |= {
            key: value
            for key, value in (("dtype", settings.dtype), ("device", settings.device))
            if value != "auto"
        }
        config = dataclasses.replace(config, target=dataclasses.replace(config.target, **changes))
    else:
        config = preset(source, target, settings.draft)
    return Hierarchy(build(config, loaded))


def cache_tokens(hierarchy: Hierarchy) -> int:
    """How many tokens of cache, of all levels together, the free memory has room for."""
    size, owners = 0, set[int]()
    for node in walk(hierarchy.root):
        if isinstance(node, Concatenate):
            continue
        owner = node.model.cache_owner
        if isinstance(owner, Trunk) and id(owner) not in owners:
            owners.add(id(owner))
            size += _bytes_per_token(owner)
    room = available_memory() * _SHARE_OF_MEMORY / max(size, 1)
    return int(min(max(room, _FEWEST), _MOST))


def _bytes_per_token(trunk: Trunk) -> int:
    backend = trunk.backend
    edges = len(trunk.exits) * backend.hidden_size * backend.dtype.itemsize
    cache = backend.new_cache(1)
    if isinstance(cache, torch.Tensor):
        return cache.nbytes + edges
    # Shapes that only the layers know: keys and values as wide as the hidden states, at most.
    return 2 * backend.num_layers * backend.hidden_size * backend.dtype.itemsize + edges
