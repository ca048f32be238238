"""What a level of a hierarchy may be: one frozen dataclass a method, all defaults in one place.

:mod:`hierspec.config` has the hierarchy as a whole, :mod:`hierspec.level_parsing` reads levels from
files. Nothing is checked here.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

from .windows import ConfidenceWindow, EntropyWindow, FixedWindow, Window


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetConfig:
    """The model whose law the output has.

    Attributes:
        model: a directory, a hub id, or ``zoo:NAME``.
        dtype: ``float32``, ``bfloat16``, … or ``auto``: as the checkpoint says.
        backend: ``auto``, ``lean`` (fast forward, Llama-shaped models) or ``hf``.
        device: ``cpu``, ``cuda``, …; ``auto``: an accelerator if there is one.
        cuda_graphs: on CUDA, run lean models in calls of fixed shape, recorded and replayed
            (:mod:`hierspec.graphs`). The draft models follow it.
    """

    model: str
    dtype: str = "auto"
    backend: str = "auto"
    device: str = "auto"
    cuda_graphs: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelConfig:
    """What every level has.

    Attributes:
        num_speculative_tokens: how many tokens it must hold before it hands them up.
        verify: by which rule it verifies the level below; the first level has none below.
        top_m: for ``verify: leading``.
        temperature: absolute; ``None``: the request's. Ignored when greedy.
        window: when it hands up before its budget is reached.
        bonus: whether a fully kept draft earns one more token.
        num_drafts: how many drafts of the same place it makes; only for a first level under a
            level that verifies by ``rrs``, ``rrs-without-replacement`` or ``block-rrs``.
    """

    method: ClassVar[str]
    num_speculative_tokens: int
    verify: str | None = None
    top_m: int = 1
    temperature: float | None = None
    window: Window = dataclasses.field(default_factory=FixedWindow)
    bonus: bool = True
    num_drafts: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftModelConfig(LevelConfig):
    """A separate model of the target's vocabulary."""

    method: ClassVar[str] = "draft_model"
    model: str
    dtype: str | None = None
    backend: str = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlyExitConfig(LevelConfig):
    """The target's first ``exit_layer`` layers and its head, sharing its cache [P3].

    Attributes:
        head: a file of heads trained for its exits, or a folder with ``exit_heads.safetensors``
            [P1 §4.1]; ``None``: the target's own final norm and head.
    """

    method: ClassVar[str] = "early_exit"
    exit_layer: int
    head: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NgramTableConfig(LevelConfig):
    """Counts from a corpus with back-off."""

    method: ClassVar[str] = "ngram_table"
    table: str = "zoo:ngram"
    max_order: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptLookupConfig(LevelConfig):
    """Copies what followed the last occurrence of the latest n-gram in the context."""

    method: ClassVar[str] = "prompt_lookup"
    prompt_lookup_min: int = 2
    prompt_lookup_max: int = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSkipConfig(LevelConfig):
    """The target without some of its layers: its weights, and a cache of its own [SWIFT].

    Attributes:
        skip_layers: left out, counted from 0.
        skip: instead of them, the share of layers to leave out, at even distances; the first and
            the last layer stay.
    """

    method: ClassVar[str] = "layer_skip"
    skip_layers: tuple[int, ...] | None = None
    skip: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptiveExitConfig(LevelConfig):
    """Each token from the first exit of the target that is sure of it, else the last [AdaDecode].

    Attributes:
        exit_layers: layer counts as in ``early_exit``, shallowest first.
        confidence: the floor of an exit's largest probability.
    """

    method: ClassVar[str] = "adaptive_exit"
    exit_layers: tuple[int, ...]
    confidence: float = 0.75


@dataclass(frozen=True, slots=True, kw_only=True)
class NgramPoolConfig(LevelConfig):
    """What followed the latest tokens elsewhere in the text, or in all texts [after Lookahead].

    Attributes:
        shared: one pool for all sequences of a hierarchy, earlier ones included.
    """

    method: ClassVar[str] = "ngram_pool"
    ngram_min: int = 1
    ngram_max: int = 4
    shared: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ConcatenateConfig:
    """A run of one drafter, then a run of another, ``repeat`` times [P2]."""

    method: ClassVar[str] = "concatenate"
    parts: tuple[tuple[AnyLevelConfig, ...], ...]
    repeat: int = 1


AnyLevelConfig = LevelConfig | ConcatenateConfig
METHODS = {
    cls.method: cls
    for cls in (
        DraftModelConfig,
        EarlyExitConfig,
        NgramTableConfig,
        PromptLookupConfig,
        LayerSkipConfig,
        AdaptiveExitConfig,
        NgramPoolConfig,
    )
}
LOOK_UPS = (PromptLookupConfig.method, NgramPoolConfig.method)
WINDOWS = {"fixed": FixedWindow, "entropy": EntropyWindow, "confidence": ConfidenceWindow}
