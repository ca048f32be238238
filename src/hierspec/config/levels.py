"""Frozen dataclasses from what files hold: known keys, none missing, texts where texts belong.

What a level of a hierarchy may be: one frozen dataclass a method, all defaults in one place.

:mod:`hierspec.config.schema` has the hierarchy as a whole, :mod:`hierspec.config.levels` reads
levels from files. Nothing is checked here.

Levels as files hold them → :mod:`hierspec.config.levels`.

Every mistake is a ``ValueError`` that names the place and the fix.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from hierspec.core.windows import ConfidenceWindow, EntropyWindow, FixedWindow, Window
from hierspec.errors import HierspecError
from hierspec.utils.checks import boolean, is_number, positive, strict, temperature
from hierspec.verifiers import registry as verifiers

_TEXTS = ("model", "dtype", "backend", "device", "table")


def known(cls: type, data: Any, where: str) -> dict[str, Any]:
    """``data`` as a dict, if all its keys are fields of ``cls``."""
    if not isinstance(data, Mapping):
        raise HierspecError(f"{where} must be an object, not {data!r}")
    return strict(data, [f.name for f in dataclasses.fields(cls)], where)


def make(cls: type, values: Mapping[str, Any], where: str) -> Any:
    """An instance of ``cls``; refuses missing fields, and texts that are none."""
    required = [
        f.name
        for f in dataclasses.fields(cls)
        if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    ]
    missing = [name for name in required if name not in values]
    if missing:
        raise HierspecError(f"{where}: {missing[0]!r} is missing")
    for name in _TEXTS:
        value = values.get(name, "unset")
        if not (isinstance(value, str) and value) and not (value is None and name in optional(cls)):
            raise HierspecError(f"{where}.{name} must be a text of some length, not {value!r}")
    return cls(**values)


def optional(cls: type) -> set[str]:
    """Fields that null leaves as they are."""
    return {f.name for f in dataclasses.fields(cls) if f.default is None}


def json_object(text: str, where: str) -> Mapping[str, Any]:
    """The JSON object in ``text``."""
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise HierspecError(f"{where}: not valid JSON: {error}") from None
    if not isinstance(data, Mapping):
        raise HierspecError(f"{where}: a hierarchy is a JSON object, not {type(data).__name__}")
    return data


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetConfig:
    """The model whose law the output has.

    Attributes:
        model: a directory, a hub id, or ``zoo:NAME``.
        dtype: ``float32``, ``bfloat16``, … or ``auto``: as the checkpoint says.
        backend: ``auto``, ``lean`` (fast forward, Llama-shaped models) or ``hf``.
        device: ``cpu``, ``cuda``, …; ``auto``: an accelerator if there is one.
        cuda_graphs: on CUDA, run lean models in calls of fixed shape, recorded and replayed
            (:mod:`hierspec.utils.graphs`). The draft models follow it.
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


def parse_chain(levels: Any, where: str) -> tuple[AnyLevelConfig, ...]:
    """A chain of levels, smallest first; only levels after the first verify."""
    parsed = tuple(_level(level, f"{where}[{i}]") for i, level in enumerate(levels))
    for i, level in enumerate(parsed):
        if isinstance(level, ConcatenateConfig):
            if i > 0:
                raise HierspecError(
                    f"{where}[{i}]: a concatenation only drafts, so it comes first; "
                    "nest what is below it into its parts"
                )
        elif i == 0 and level.verify is not None:
            raise HierspecError(
                f"{where}[0].verify: the first level has nothing below it to verify; remove it "
                '(the rule by which the target verifies is the top-level "verify")'
            )
        elif i == 0 and (ignored := _unused_by_first(level)):
            raise HierspecError(
                f"{where}[0].{ignored}: the first level has nothing below it to verify, and it "
                "says how; remove it"
            )
        elif i > 0 and level.num_drafts > 1:
            raise HierspecError(
                f"{where}[{i}].num_drafts: only the first level makes several drafts; remove it"
            )
        elif i > 0 and level.method in LOOK_UPS:
            raise HierspecError(
                f"{where}[{i}]: {level.method} has no law to verify with; put it first"
            )
    return parsed


def _unused_by_first(level: LevelConfig) -> str | None:
    """What else is said of a verification that there is not."""
    defaults = {field.name: field.default for field in dataclasses.fields(level)}
    keys = ("top_m", "bonus")
    return next((key for key in keys if getattr(level, key) != defaults[key]), None)


def _level(data: Any, where: str) -> AnyLevelConfig:
    if not isinstance(data, Mapping):
        raise HierspecError(f"{where} must be an object with a method, not {data!r}")
    method = data.get("method")
    if method == "concatenate":
        return _concatenation(data, where)
    if not isinstance(method, str) or method not in METHODS:
        raise HierspecError(
            f"{where}.method is {method!r}; there are: {', '.join([*METHODS, 'concatenate'])}"
        )
    cls = METHODS[method]
    values = known(cls, {k: v for k, v in data.items() if k != "method"}, where)
    if "window" in values:
        values["window"] = parse_window(values["window"], f"{where}.window")
    if values.get("verify") is not None:
        values["verify"] = parse_rule(values["verify"], f"{where}.verify")
    for key in ("skip_layers", "exit_layers"):
        if key in values and not (values[key] is None and key in optional(cls)):
            values[key] = _layers(values[key], f"{where}.{key}")
    level = make(cls, values, where)
    _check(level, where)
    return level


def _concatenation(data: Mapping[str, Any], where: str) -> ConcatenateConfig:
    values = strict(data, ["method", "parts", "repeat"], where)
    parts = values.get("parts")
    if not isinstance(parts, list | tuple) or not parts or any(p in ([], ()) for p in parts):
        raise HierspecError(
            f"{where}.parts must be a list of levels, or of lists of levels; none empty"
        )
    chains = tuple(
        parse_chain(part if isinstance(part, list | tuple) else [part], f"{where}.parts[{i}]")
        for i, part in enumerate(parts)
    )
    repeat = values.get("repeat", 1)
    positive(repeat, f"{where}.repeat")
    return ConcatenateConfig(parts=chains, repeat=repeat)


def parse_window(data: Any, where: str) -> Window:
    """``{"kind": "entropy"}`` and the like; also just the kind."""
    if isinstance(data, FixedWindow | EntropyWindow | ConfidenceWindow):
        return data
    data = {"kind": data} if isinstance(data, str) else data
    kind = data.get("kind") if isinstance(data, Mapping) else None
    if not isinstance(kind, str) or kind not in WINDOWS:
        raise HierspecError(f"{where} needs a kind: {', '.join(WINDOWS)}")
    cls = WINDOWS[kind]
    values = known(cls, {k: v for k, v in data.items() if k != "kind"}, where)
    may_be_null = optional(cls)
    for key, value in values.items():
        if not (value is None and key in may_be_null) and (not is_number(value) or value < 0):
            raise HierspecError(f"{where}.{key} must be a number ≥ 0, not {value!r}")
    return cls(**values)


def _check(level: LevelConfig, where: str) -> None:
    """Ranges and types of what any level has, then of what its kind adds."""
    positive(level.num_speculative_tokens, f"{where}.num_speculative_tokens")
    positive(level.top_m, f"{where}.top_m")
    positive(level.num_drafts, f"{where}.num_drafts")
    if level.temperature is not None:
        temperature(level.temperature, f"{where}.temperature")
    boolean(level.bonus, f"{where}.bonus")
    if level.method in LOOK_UPS:
        _check_look_up(level, where)
    if isinstance(level, EarlyExitConfig):
        _check_exit(level, where)
    if isinstance(level, NgramTableConfig) and level.max_order is not None:
        positive(level.max_order, f"{where}.max_order")
    if isinstance(level, LayerSkipConfig):
        _check_skip(level, where)
    if isinstance(level, AdaptiveExitConfig):
        _check_adaptive(level, where)
    if isinstance(level, NgramPoolConfig):
        boolean(level.shared, f"{where}.shared")
        _check_range(level, "ngram_min", "ngram_max", where)
    if isinstance(level, PromptLookupConfig):
        _check_range(level, "prompt_lookup_min", "prompt_lookup_max", where)


def _check_look_up(level: LevelConfig, where: str) -> None:
    """It copies tokens: no law to draw several from, to temper, or to read a window off."""
    if level.num_drafts > 1:
        raise HierspecError(f"{where}.num_drafts: {level.method} has one draft to make; remove it")
    if level.temperature is not None:
        raise HierspecError(
            f"{where}.temperature: {level.method} copies tokens and draws none, so a temperature "
            "changes nothing; remove it"
        )
    if not isinstance(level.window, FixedWindow):
        raise HierspecError(
            f"{where}.window: {level.method} copies tokens and has no law for a window to read; "
            "remove it (num_speculative_tokens limits a draft)"
        )


def _check_exit(level: EarlyExitConfig, where: str) -> None:
    positive(level.exit_layer, f"{where}.exit_layer")
    if level.head is not None and not (isinstance(level.head, str) and level.head):
        raise HierspecError(
            f"{where}.head must be the path of a file that hierspec heads train has written, "
            f"or of its folder, not {level.head!r}"
        )


def _check_adaptive(level: AdaptiveExitConfig, where: str) -> None:
    layers, sure = level.exit_layers, level.confidence
    if len(layers) < 2 or min(layers) < 1 or layers != tuple(sorted(set(layers))):
        raise HierspecError(
            f"{where}.exit_layers must be two or more layer counts from 1 on, shallowest "
            f"first, not {list(layers)}; a single exit is early_exit"
        )
    if not is_number(sure) or not 0 < sure <= 1:
        raise HierspecError(f"{where}.confidence must be above 0 and at most 1, not {sure!r}")


def _check_range(level: LevelConfig, least: str, most: str, where: str) -> None:
    for key in (least, most):
        positive(getattr(level, key), f"{where}.{key}")
    if getattr(level, most) < getattr(level, least):
        raise HierspecError(f"{where}.{most} must not be below {least}")


def _layers(value: Any, where: str) -> tuple[int, ...]:
    if (
        not isinstance(value, list | tuple)
        or not value
        or any(not isinstance(i, int) or isinstance(i, bool) or i < 0 for i in value)
    ):
        raise HierspecError(f"{where} must be a list of layer numbers, not {value!r}")
    return tuple(value)


def _check_skip(level: LayerSkipConfig, where: str) -> None:
    if (level.skip is None) == (level.skip_layers is None):
        raise HierspecError(
            f"{where}: layer_skip takes either skip_layers (which layers) or skip (which share of "
            "them), and one of the two is needed"
        )
    if level.skip is not None and not (is_number(level.skip) and 0 < level.skip < 1):
        raise HierspecError(f"{where}.skip must lie between 0 and 1, not {level.skip!r}")


def parse_rule(name: Any, where: str) -> str:
    """A verification rule's own name, also from an alias."""
    try:
        return verifiers.get(name).name
    except (ValueError, TypeError):
        known = ", ".join(verifiers.names())
        raise HierspecError(f"{where}: no verifier called {name!r}; there are: {known}") from None
