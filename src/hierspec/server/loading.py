"""The hierarchies of a service by name, memory for their caches, and whether a seed gives one text.

A request with a seed keeps the hierarchy as configured, and its random numbers are its own
(:mod:`hierspec.server.prepare`). What is left are scores: they must not depend on how many tokens
are scored together. In the compiled kernels (:mod:`hierspec.lm.native`) they do not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from hierspec.api import Hierarchy
from hierspec.config.build import build
from hierspec.config.checkpoints import Loaded
from hierspec.config.schema import TargetConfig
from hierspec.core.nodes import walk_levels
from hierspec.errors import HierspecError, HierspecWarning
from hierspec.lm.backend import HasBackend, backend_of
from hierspec.lm.native.backend import why_rows_differ
from hierspec.lm.trunk.trunk import Trunk
from hierspec.presets.registry import AUTO
from hierspec.profiling.auto import tokenizer_of
from hierspec.profiling.settings import ReportProgress
from hierspec.utils import threads
from hierspec.utils.machine import available_memory

from .settings import DEFAULT_TEMPERATURE, ServeSettings

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
        target, other = (out[key].config.target.model for key in ("default", name))
        if other != target:
            raise HierspecError(
                f"hierarchies: {name!r} has the target {other}, and the service has {target}: all "
                "hierarchies need the same (--model names it for presets)"
            )
    threads.end_threads()  # loading started threads, and rounds run in another thread
    return out


def _load(
    hierarchy: str | None, settings: ServeSettings, loaded: Loaded, report: ReportProgress
) -> Hierarchy:
    if hierarchy == AUTO:
        target = TargetConfig(model=settings.target, dtype=settings.dtype, device=settings.device)
        # As requests are that leave their temperature out.
        return Hierarchy.auto(
            target,
            settings.draft,
            temperature=DEFAULT_TEMPERATURE,
            chat=bool(getattr(tokenizer_of(target.model), "chat_template", None)),
            measure_again=settings.measure_again,
            report=report,
        )
    config = settings.configuration(hierarchy)
    if settings.tokenizer is not None:
        loaded.use_tokenizer(config.target.model, settings.tokenizer)
    return Hierarchy(build(config, loaded))


def default_cache_tokens(hierarchy: Hierarchy) -> int:
    """Return how many tokens the caches of all levels hold in a share of the free memory."""
    device = hierarchy.root.model.device
    on_gpu = device.type == "cuda"
    free = torch.cuda.mem_get_info(device)[0] if on_gpu else available_memory()
    bytes_per_token, owners = 0, set[int]()
    for level in walk_levels(hierarchy.root):
        owner = level.model.cache_owner
        if isinstance(owner, Trunk) and id(owner) not in owners:
            owners.add(id(owner))
            bytes_per_token += owner.bytes_per_token
    fitting = free * _SHARE_OF_MEMORY / max(bytes_per_token, 1)
    return int(min(max(fitting, _MIN_CACHE_TOKENS), _MAX_CACHE_TOKENS))


class SameSeedWarning(HierspecWarning, UserWarning):
    """The text of a seed may depend on the requests that are served beside it."""


def obstacles(hierarchies: Mapping[str, Hierarchy]) -> list[str]:
    """Return why the text of a seed may depend on other requests, a line for each reason.

    The target's scores matter to every text, a draft's to sampled ones only, and not under rules by
    which a seed decides alone.
    """
    lines: dict[str, None] = {}
    for root in (hierarchy.root for hierarchy in hierarchies.values()):
        if (reason := _why_scores_differ(root.model)) is not None:
            lines[f"{root.name} {reason}"] = None
        elif not root.rule.draft_independent and root.below is not None:
            for level in walk_levels(root.below):
                if (reason := _why_scores_differ(level.model)) is not None:
                    lines[f"the draft {level.name} {reason}"] = None
    return [
        f"the text of a seed may depend on the requests served beside it: {line}" for line in lines
    ]


def _why_scores_differ(model: Any) -> str | None:
    """Return why a model's scores may depend on other rows or other texts.

    A model, or the form of its target that it runs, may say so itself (``rows_differ``). What has
    no layers (tables, look-ups) computes each row by itself.
    """
    if (reason := getattr(model, "rows_differ", None)) is not None:
        return reason
    backend = model.backend if isinstance(model, HasBackend) else backend_of(model)
    return None if backend is None else why_rows_differ(backend)
