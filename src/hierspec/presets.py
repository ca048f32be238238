"""The papers' systems as configurations, each with its citation.

A preset is a function from the models at hand to a :class:`HierarchyConfig`; defaults use the
shipped family, so every preset runs on a fresh machine. Citations are keys of ``PAPERS``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from . import arguments
from .config import (
    AnyLevelConfig,
    ConcatenateConfig,
    DraftModelConfig,
    EarlyExitConfig,
    HierarchyConfig,
    PromptLookupConfig,
    TargetConfig,
)
from .windows import EntropyWindow

AUTO = "auto"  # no fixed configuration: measured and planned on the machine at hand
DEFAULT_TARGET = "zoo:large"
DEFAULT_DRAFTS = ("zoo:small", "zoo:trunk")

PAPERS = {
    "P1": "Hierarchical speculative decoding with a K-level model hierarchy and optimal planning",
    "P2": "Interleaved speculative decoding with three models",
    "P3": "HiSpec: early-exit hierarchies sharing keys, values and hidden states",
    "P4": "Hierarchical (branch-resampling) joint verification",
    "P5": "Hierarchical speculative decoding with dynamic windows",
}


@dataclass(frozen=True, slots=True)
class Models:
    """What a preset is built from.

    Attributes:
        target: the model whose law is kept.
        drafts: smaller models, smallest first.
        num_layers: of the target; early-exit presets place their exits by it.
    """

    target: TargetConfig
    drafts: tuple[str, ...]
    num_layers: Callable[[], int]


@dataclass(frozen=True, slots=True)
class Preset:
    """A named configuration: what it is, where it comes from, and how to build it."""

    name: str
    summary: str
    source: str
    make: Callable[[Models], HierarchyConfig]
    max_drafts: int | None = None  # how many draft models it uses; None: all there are


def _autoregressive(models: Models) -> HierarchyConfig:
    return HierarchyConfig(target=models.target)


def _speculative(models: Models) -> HierarchyConfig:
    draft = DraftModelConfig(model=models.drafts[-1], num_speculative_tokens=8)
    return HierarchyConfig(target=models.target, levels=(draft,), verify="tokenwise")


def _chain(models: Models, upper: int, lower: int, **top: object) -> tuple[AnyLevelConfig, ...]:
    small, *others = models.drafts
    levels: list[AnyLevelConfig] = [DraftModelConfig(model=small, num_speculative_tokens=lower)]
    for model in others:
        levels.append(
            DraftModelConfig(
                model=model,
                num_speculative_tokens=upper,
                verify="block",
                **top,  # type: ignore[arg-type]
            )
        )
    return tuple(levels)


def _hierarchy(models: Models) -> HierarchyConfig:
    return HierarchyConfig(target=models.target, levels=_chain(models, 12, 3), verify="block")


def _hispec(models: Models) -> HierarchyConfig:
    depth = models.num_layers()
    first = max(1, round(depth / 8))
    second = max(first + 1, round(depth / 4))
    if second >= depth:
        raise ValueError(f"hispec needs a target of at least 4 layers, this one has {depth}")
    levels = (
        EarlyExitConfig(exit_layer=first, num_speculative_tokens=2),
        EarlyExitConfig(exit_layer=second, num_speculative_tokens=4, verify="leading"),
    )
    return HierarchyConfig(target=models.target, levels=levels, verify="block")


def _branch(models: Models) -> HierarchyConfig:
    draft = DraftModelConfig(model=models.drafts[-1], num_speculative_tokens=8)
    return HierarchyConfig(target=models.target, levels=(draft,), verify="block")


def _dynamic_windows(models: Models) -> HierarchyConfig:
    small, *others = models.drafts
    levels: list[AnyLevelConfig] = [
        DraftModelConfig(model=small, num_speculative_tokens=10, window=EntropyWindow())
    ]
    for model in others:
        levels.append(
            DraftModelConfig(
                model=model, num_speculative_tokens=15, verify="tokenwise", window=EntropyWindow()
            )
        )
    return HierarchyConfig(target=models.target, levels=tuple(levels), verify="tokenwise")


def _interleaved(models: Models) -> HierarchyConfig:
    _two_drafts(models, "interleaved")
    small, mid = models.drafts[0], models.drafts[-1]
    block = (
        (DraftModelConfig(model=small, num_speculative_tokens=1),),
        (DraftModelConfig(model=mid, num_speculative_tokens=1),),
    )
    return HierarchyConfig(
        target=models.target,
        levels=(ConcatenateConfig(parts=block, repeat=4),),
        verify="tokenwise",
    )


def _horizontal(models: Models) -> HierarchyConfig:
    _two_drafts(models, "horizontal")
    small, mid = models.drafts[0], models.drafts[-1]
    run = (
        (DraftModelConfig(model=mid, num_speculative_tokens=4),),
        (DraftModelConfig(model=small, num_speculative_tokens=4),),
    )
    return HierarchyConfig(
        target=models.target, levels=(ConcatenateConfig(parts=run),), verify="tokenwise"
    )


def _prompt_lookup(models: Models) -> HierarchyConfig:
    finder = PromptLookupConfig(num_speculative_tokens=8)
    return HierarchyConfig(target=models.target, levels=(finder,), verify="tokenwise")


def _two_drafts(models: Models, name: str) -> None:
    if len(models.drafts) < 2:
        raise ValueError(f"{name} needs two draft models: give --draft twice, smallest first")


PRESETS = {
    preset.name: preset
    for preset in (
        Preset("autoregressive", "plain decoding, one token a call", "", _autoregressive, 0),
        Preset("speculative", "one draft model, tokenwise verification", "P1", _speculative, 1),
        Preset("hierarchy", "a chain of draft models, block verification", "P1", _hierarchy),
        Preset("hispec", "two early exits of the target draft and pre-verify", "P3", _hispec, 0),
        Preset("branch", "one draft model, capped branch resampling (= block)", "P4", _branch, 1),
        Preset(
            "dynamic-windows",
            "entropy decides when a level hands up, thresholds adapt",
            "P5",
            _dynamic_windows,
        ),
        Preset(
            "interleaved", "small and mid draft in turn, one verification", "P2", _interleaved, 2
        ),
        Preset(
            "horizontal", "mid drafts first, then small, one verification", "P2", _horizontal, 2
        ),
        Preset("prompt-lookup", "copies from the context, no draft model", "", _prompt_lookup, 0),
    )
}


def preset(
    name: str, target: TargetConfig | str | None = None, drafts: str | Sequence[str] = ()
) -> HierarchyConfig:
    """The preset of that name, on the given models or on the shipped family.

    Args:
        target: a configuration, or a model's name or path.
        drafts: names or paths, smallest first; a preset takes of them what it uses.

    Raises:
        ValueError: no such preset (the message lists those there are), or it needs other models.
    """
    target, drafts = arguments.target(target), arguments.model_names(drafts, "drafts")
    if name == AUTO:
        from .profiling.auto import choose

        return choose(target, drafts).config
    if name not in PRESETS:
        raise ValueError(f"no preset called {name!r}; there are: {', '.join([*PRESETS, AUTO])}")
    shipped = target is None or target.model.startswith("zoo:")
    if not drafts and not shipped and PRESETS[name].max_drafts != 0:
        raise ValueError(f"preset {name!r} needs a draft model of the target's family: add --draft")
    chosen = target or TargetConfig(model=DEFAULT_TARGET)

    def num_layers() -> int:
        return target_config(chosen.model).num_hidden_layers

    models = Models(chosen, tuple(drafts) or DEFAULT_DRAFTS, num_layers)
    return PRESETS[name].make(models)


def target_config(model: str) -> Any:
    """A model's own configuration, without its weights."""
    if model.startswith("zoo:"):
        from .zoo.registry import resolve

        return resolve(model).config
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(model)
    except OSError as error:
        raise ValueError(f"cannot read the configuration of {model!r}: {error}") from None
