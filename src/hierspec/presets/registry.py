"""Presets by name, each with its citation; :mod:`.systems` defines them.

Installed packages add their own: an entry point of the group ``hierspec.presets`` is a module that
registers some when it is imported. By default presets use the shipped family, so that every one
runs on a new machine.
"""

from __future__ import annotations

import dataclasses
import difflib
import warnings
from collections.abc import Sequence
from pathlib import Path

from hierspec.config import arguments, methods
from hierspec.config.chains import find_levels
from hierspec.config.drafts import is_method
from hierspec.config.schema import HierarchyConfig, TargetConfig
from hierspec.config.target import model_config, validate_model_name
from hierspec.errors import HierspecError, HierspecWarning
from hierspec.methods.draft_model import DraftModelConfig
from hierspec.methods.early_exit import trained_exits
from hierspec.utils import plugins
from hierspec.zoo import registry as zoo
from hierspec.zoo import trained

from .systems import MODEL, PRESETS, Preset, PresetModels

GROUP = "hierspec.presets"  # of entry points
TOKENIZER_WITH_AUTO = (
    "the hierarchy auto measures with the tokenizer saved beside the model: leave --tokenizer out, "
    "or name another --hierarchy"
)
AUTO = "auto"  # no fixed configuration: measured and planned on the machine at hand


def _add_presets_of_packages() -> None:
    """Import the modules that installed packages offer; one that fails costs its own presets."""
    for name in plugins.entry_point_names(GROUP):
        try:
            plugins.load_entry_point(GROUP, name)
        except HierspecError as error:
            warnings.warn(f"presets are left out: {error}", HierspecWarning, stacklevel=2)


_add_presets_of_packages()


def preset(
    name: str, target: TargetConfig | str | None = None, drafts: str | Sequence[str] = ()
) -> HierarchyConfig:
    """Return the preset of that name, on the given models or on the shipped family.

    Args:
        target: a configuration, or a model's name or path.
        drafts: names or paths, smallest first; those that the preset has no use for are ignored.

    Raises:
        HierspecError: no such preset (the message lists the existing ones), or it needs other
            models.
    """
    target, drafts = arguments.target(target), arguments.model_names(drafts, "drafts")
    if name == AUTO:
        from hierspec.profiling.auto import choose

        return choose(target, drafts).config
    if name not in PRESETS and methods.meant(str(name)):
        raise HierspecError(
            f"{name!r} is a drafting method, not a preset: leave --hierarchy out and add --draft "
            f"({', '.join(methods.short_forms())}; in Python drafts=[...])"
        )
    if name not in PRESETS:
        names = [*PRESETS, AUTO]
        near = difflib.get_close_matches(str(name), names, n=1, cutoff=0.6)
        hint = f"did you mean {near[0]!r}? There are" if near else "there are"
        raise HierspecError(f"no preset called {name!r}; {hint}: {', '.join(names)}")
    for draft in drafts:
        if is_method(draft) and not trained.kind(draft):
            raise HierspecError(
                f"preset {name!r} takes models as drafts, and {draft!r} is not one: in Python "
                f"Hierarchy(target, drafts=[{str(draft)!r}]); on the command line leave "
                "--hierarchy out, or name a preset or a file"
            )
    for ref in (*((target.model,) if target else ()), *drafts):
        if trained.is_model(ref):
            validate_model_name(ref)  # before the number of drafts is checked
    chosen = PRESETS[name]
    if target is None:
        target = TargetConfig(model=chosen.target)
    drafts = tuple(drafts) or fitting_drafts(target.model, chosen)
    if not drafts and chosen.max_drafts != 0:
        if chosen.needs == MODEL:
            drafts = trained.siblings_of(target.model)
        if not drafts:
            raise HierspecError(
                f"preset {name!r} needs {chosen.needs}: add --draft "
                "MODEL (in Python: drafts=[model]), or choose a preset that needs none, such as "
                "suffix or layerskip; auto measures which is fastest"
            )

    def num_layers() -> int:
        return model_config(target.model).num_hidden_layers

    exits = trained_exits(target.model)
    models = PresetModels(target, tuple(drafts), num_layers, *exits)
    return chosen.make(models)


def fitting_drafts(model: str, chosen: Preset) -> tuple[str, ...]:
    """Return those of a preset's drafts that fit a model: all fit its own target, and the smaller
    ones another model of the family."""
    own, family = zoo.installed(chosen.target), zoo.family(model)
    if model == chosen.target:
        return chosen.drafts
    if own is None or not family or family != own.family:
        return ()
    smaller = own.candidates  # smallest first
    if model in smaller:
        smaller = smaller[: smaller.index(model)]
    return tuple(draft for draft in chosen.drafts if draft in smaller)


def read_hierarchy(
    hierarchy: str,
    target: str | None,
    drafts: Sequence[str] = (),
    dtype: str | None = None,
    device: str | None = None,
    *,
    ignore_unused: bool = False,
) -> HierarchyConfig:
    """Return the configuration for the value of ``--hierarchy``, on the given models.

    Args:
        hierarchy: a preset's name, the path of a ``.json`` or ``.toml`` file, or JSON.
        target: a model's name; ``None``: the file's or the preset's own.
        drafts: for a preset, smallest first.
        dtype, device: ``None``: as in the file, else by the checkpoint and the machine.
        ignore_unused: accept drafts that this hierarchy does not use.

    Raises:
        HierspecError: there is no such hierarchy, one of its models does not exist, or a draft is
            not used. It is raised without loading torch, which takes seconds.
    """
    changes = {"dtype": dtype, "device": device}
    if is_file_or_json(hierarchy):
        if drafts and not ignore_unused:
            raise HierspecError(
                "draft models go with a preset, and a hierarchy file names its own levels: leave "
                "them out"
            )
        config = HierarchyConfig.load(hierarchy)
        levels = find_levels(config.levels, DraftModelConfig)
        for model in (target or config.target.model, *(level.model for level in levels)):
            validate_model_name(model)
        changes["model"] = target
    else:
        if hierarchy not in PRESETS and Path(hierarchy).is_file():
            raise HierspecError(
                f"{hierarchy} is not the name of a hierarchy file, which ends in .json or .toml"
            )
        if hierarchy and hierarchy not in PRESETS and Path(hierarchy).is_dir():
            raise HierspecError(
                f"{hierarchy} is a folder: a hierarchy is a preset's name, or a .json or .toml "
                "file; a model goes to --target or --draft"
            )
        if not ignore_unused:
            validate_num_drafts(hierarchy, len(drafts))
        config = preset(hierarchy, target, drafts)
    changes = {key: value for key, value in changes.items() if value is not None}
    return dataclasses.replace(config, target=dataclasses.replace(config.target, **changes))


def is_file_or_json(hierarchy: str) -> bool:
    """Return whether a value of ``--hierarchy`` is a file or inline JSON, not a preset's name."""
    return hierarchy.lstrip()[:1] in ("{", "[") or Path(hierarchy).suffix in (".json", ".toml")


def validate_num_drafts(name: str, num_drafts: int) -> None:
    """Refuse more draft models than a preset uses."""
    limit = PRESETS[name].max_drafts if name in PRESETS else None
    if limit is not None and num_drafts > limit:
        uses = {0: "no draft model", 1: "one draft model"}.get(limit, f"{limit} draft models")
        raise HierspecError(f"preset {name!r} uses {uses}, and {num_drafts} are named")
