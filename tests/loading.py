"""What tests share, since it takes long: checkpoints that are read, kernels that are compiled."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from hierspec import Hierarchy, HierarchyConfig
from hierspec.config.build import build
from hierspec.config.checkpoints import Loaded
from hierspec.utils.files import cache_folder

LOADED: dict[str, Loaded] = defaultdict(Loaded)  # by the name of the device


def hierarchy_of(config) -> Hierarchy:
    """As :meth:`hierspec.Hierarchy.from_config`; a checkpoint must not change under its name."""
    if not isinstance(config, HierarchyConfig):
        config = HierarchyConfig.load(config)
    return Hierarchy(build(config, LOADED[config.target.device]))


def own_cache(folder: Path) -> str:
    """Return a cache for ``HIERSPEC_CACHE`` that is empty but for the user's compiled kernels."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (kernels := folder / "kernels").is_symlink():
        cache_folder("kernels").mkdir(parents=True, exist_ok=True)
        kernels.symlink_to(cache_folder("kernels"))
    return str(folder)
