"""Which hierarchy --hierarchy, --target, --draft, --dtype and --device mean."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

from hierspec.errors import HierspecError

from .options import target_config

if TYPE_CHECKING:
    from hierspec.config.schema import HierarchyConfig


def configured(
    hierarchy: str,
    target: str | None,
    drafts: tuple[str, ...],
    dtype: str | None,
    device: str | None,
) -> HierarchyConfig:
    """Return the configuration of a preset, a file or inline JSON, on the models named."""
    from hierspec.config.schema import HierarchyConfig, TargetConfig
    from hierspec.presets.registry import PRESETS, preset

    file = Path(hierarchy)
    if is_hierarchy_file(hierarchy):
        if drafts:
            raise HierspecError("--draft goes with a preset; a hierarchy file names its own levels")
        config = HierarchyConfig.load(hierarchy)
        changes = {"model": target or None, "dtype": dtype, "device": device}
    else:
        if hierarchy not in PRESETS and file.is_file():
            raise HierspecError(
                f"{file} is not a hierarchy file by its name: it ends in .json or .toml"
            )
        check_drafts(hierarchy, len(drafts))
        config = preset(hierarchy, TargetConfig(model=target) if target else None, drafts)
        changes = {"dtype": dtype, "device": device}
    changes = {key: value for key, value in changes.items() if value is not None}
    return dataclasses.replace(config, target=dataclasses.replace(config.target, **changes))


def default_hierarchy(
    target: str | None, drafts: tuple[str, ...], dtype: str | None, device: str | None
) -> tuple[HierarchyConfig, bool, str]:
    """Return what runs where no hierarchy is named, whether prompts are questions to answer, and
    what to say of that."""
    from hierspec.presets import defaults

    if target is not None:
        config, chat = defaults.unnamed(target_config(target, dtype, device), drafts), False
        note = f"{defaults.drafts_by(config)} (--hierarchy and --draft name others)"
    else:
        found = defaults.start()
        note = f"{found.note}{'; --no-chat continues the text instead' * found.chat}"
        changes = {"dtype": dtype or "auto", "device": device or "auto"}
        changed = dataclasses.replace(found.config.target, **changes)
        config, chat = dataclasses.replace(found.config, target=changed), found.chat
        if drafts:
            config = defaults.unnamed(config.target, drafts)
            note = f"{config.target.model}, {defaults.drafts_by(config)}"
    return config, chat, note


def is_hierarchy_file(hierarchy: str) -> bool:
    """Return whether --hierarchy means a file or inline JSON, not a preset."""
    return hierarchy.lstrip().startswith("{") or Path(hierarchy).suffix in (".json", ".toml")


def check_drafts(name: str, count: int) -> None:
    """Refuse draft models that the preset would ignore."""
    from hierspec.presets.registry import PRESETS

    most = PRESETS[name].max_drafts if name in PRESETS else None
    if most is not None and count > most:
        uses = {0: "no draft model", 1: "one draft model"}.get(most, f"{most} draft models")
        raise HierspecError(f"preset {name!r} uses {uses}, and --draft names {count}")
