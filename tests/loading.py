"""Hierarchies over checkpoints that are read once, however many tests build on them."""

from __future__ import annotations

from collections import defaultdict

from hierspec import Hierarchy, HierarchyConfig
from hierspec.config.build import build
from hierspec.config.checkpoints import Loaded

LOADED: dict[str, Loaded] = defaultdict(Loaded)  # by the name of the device


def hierarchy_of(config) -> Hierarchy:
    """As :meth:`hierspec.Hierarchy.from_config`; a checkpoint must not change under its name."""
    if not isinstance(config, HierarchyConfig):
        config = HierarchyConfig.load(config)
    return Hierarchy(build(config, LOADED[config.target.device]))
