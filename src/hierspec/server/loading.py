"""The hierarchies of a service: the default model, presets and files by name, memory for caches."""

from __future__ import annotations

from hierspec.api import Hierarchy
from hierspec.config.build import build
from hierspec.config.checkpoints import Loaded
from hierspec.config.schema import TargetConfig
from hierspec.core.nodes import walk_levels
from hierspec.errors import HierspecError
from hierspec.lm.trunk.trunk import Trunk
from hierspec.presets.registry import AUTO
from hierspec.profiling.settings import ReportProgress
from hierspec.utils import threads
from hierspec.utils.machine import available_memory

from .settings import ServeSettings

_SHARE_OF_MEMORY = 0.4  # for caches, of what is free once the weights are loaded
_MIN_CACHE_TOKENS, _MAX_CACHE_TOKENS = 4096, 1 << 20


def load(
    settings: ServeSettings, report: ReportProgress = lambda stage, share: None
) -> dict[str, Hierarchy]:
    """Load all hierarchies of a service, the default one first; they share weights.

    Args:
        report: of measuring the models of the hierarchy ``auto``, as in :meth:`Hierarchy.auto`.

    Raises:
        HierspecError: a model or a hierarchy cannot be read.
    """
    loaded = Loaded()
    out = {"default": _load(settings.hierarchy, settings, loaded, report)}
    for name, source in settings.hierarchies.items():
        if name in out:
            raise HierspecError(f"hierarchies: {name!r} is taken by the default one: rename it")
        out[name] = _load(source, settings, loaded, report)
    threads.end_threads()  # loading started threads, and rounds run in another thread
    return out


def _load(
    hierarchy: str | None, settings: ServeSettings, loaded: Loaded, report: ReportProgress
) -> Hierarchy:
    if hierarchy == AUTO:
        target = TargetConfig(model=settings.target, dtype=settings.dtype, device=settings.device)
        again = settings.measure_again
        return Hierarchy.auto(target, settings.draft, measure_again=again, report=report)
    config = settings.configuration(hierarchy)
    if settings.tokenizer is not None:
        loaded.use_tokenizer(config.target.model, settings.tokenizer)
    return Hierarchy(build(config, loaded))


def default_cache_tokens(hierarchy: Hierarchy) -> int:
    """Return how many tokens the caches of all levels hold in a share of the free memory."""
    bytes_per_token, owners = 0, set[int]()
    for level in walk_levels(hierarchy.root):
        owner = level.model.cache_owner
        if isinstance(owner, Trunk) and id(owner) not in owners:
            owners.add(id(owner))
            bytes_per_token += owner.bytes_per_token
    fitting = available_memory() * _SHARE_OF_MEMORY / max(bytes_per_token, 1)
    return int(min(max(fitting, _MIN_CACHE_TOKENS), _MAX_CACHE_TOKENS))
