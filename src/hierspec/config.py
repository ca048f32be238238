"""The hierarchy file: frozen dataclasses, one place for defaults, strict keys.

JSON or TOML, smallest level first. The same object is what the planner prints and what
``generate --hierarchy`` takes. Parsing checks shape and ranges; what needs the models (an exit
layer, a vocabulary) is checked when they are there (:mod:`hierspec.build`).
"""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from .checks import boolean, is_number, positive, strict, temperature
from .records import json_object, known, make, optional
from .verifiers import base as verifiers
from .windows import ConfidenceWindow, EntropyWindow, FixedWindow, Window


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetConfig:
    """The model whose law the output has.

    Attributes:
        model: a directory, a hub id, or ``zoo:NAME``.
        dtype: ``float32``, ``bfloat16``, … or ``auto``: as the checkpoint says.
        backend: ``auto``, ``lean`` (fast forward, Llama-shaped models) or ``hf``.
        device: ``cpu``, ``cuda``, …; ``auto``: an accelerator if there is one.
    """

    model: str
    dtype: str = "auto"
    backend: str = "auto"
    device: str = "auto"


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
_METHODS = {
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
_LOOK_UPS = (PromptLookupConfig.method, NgramPoolConfig.method)
_WINDOWS = {"fixed": FixedWindow, "entropy": EntropyWindow, "confidence": ConfidenceWindow}


@dataclass(frozen=True, slots=True, kw_only=True)
class HierarchyConfig:
    """A target and the levels below it, smallest first.

    Attributes:
        verify: the rule by which the target verifies the last level.
        top_m: for ``verify: leading``.
        allow_lossy: let through rules that change the output law.
    """

    target: TargetConfig
    levels: tuple[AnyLevelConfig, ...] = ()
    verify: str = "block"
    top_m: int = 1
    allow_lossy: bool = False

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> HierarchyConfig:
        """Parse; every mistake is a ``ValueError`` that names the place and the fix."""
        data = strict(data, [f.name for f in dataclasses.fields(cls)], "hierarchy")
        if "target" not in data:
            raise ValueError('hierarchy: "target" is missing: {"target": {"model": "..."}, ...}')
        target = data["target"]
        if isinstance(target, str):
            target = {"model": target}
        levels = data.get("levels", [])
        if not isinstance(levels, list | tuple):
            raise ValueError("hierarchy.levels must be a list, smallest level first")
        positive(data.get("top_m", 1), "top_m")
        boolean(data.get("allow_lossy", False), "allow_lossy")
        return make(
            cls,
            {
                **data,
                "target": make(TargetConfig, known(TargetConfig, target, "target"), "target"),
                "levels": parse_chain(levels, "levels"),
                "verify": _rule(data.get("verify", "block"), "verify"),
            },
            "hierarchy",
        )

    @classmethod
    def load(cls, source: str | Path | Mapping[str, Any]) -> HierarchyConfig:
        """From a mapping, inline JSON, or the path of a ``.json`` or ``.toml`` file."""
        if isinstance(source, Mapping):
            return cls.from_dict(source)
        if not isinstance(source, str | Path):
            raise ValueError(
                "a hierarchy is a mapping, inline JSON, or the path of a .json or .toml file, "
                f"not {type(source).__name__}"
            )
        text = str(source)
        if text.lstrip().startswith("{"):
            return cls.from_dict(json_object(text, "the inline hierarchy"))
        path = Path(source)
        try:
            body = path.read_text(encoding="utf-8")
        except OSError as error:
            raise ValueError(
                f"cannot read the hierarchy file {text!r} ({error.strerror}): "
                "give a .json or .toml file, inline JSON, or the name of a preset"
            ) from None
        except UnicodeDecodeError:
            raise ValueError(f"{text}: not a text file; a hierarchy is JSON or TOML") from None
        if path.suffix == ".toml":
            try:
                return cls.from_dict(tomllib.loads(body))
            except tomllib.TOMLDecodeError as error:
                raise ValueError(f"{text}: not valid TOML: {error}") from None
        return cls.from_dict(json_object(body, text))

    def to_dict(self) -> dict[str, Any]:
        """The file's own form, defaults left out."""
        out = _plain(self)
        out["levels"] = [_level_dict(level) for level in self.levels]
        return out


def parse_chain(levels: Any, where: str) -> tuple[AnyLevelConfig, ...]:
    """A chain of levels, smallest first; only levels after the first verify."""
    parsed = tuple(_level(level, f"{where}[{i}]") for i, level in enumerate(levels))
    for i, level in enumerate(parsed):
        if isinstance(level, ConcatenateConfig):
            if i > 0:
                raise ValueError(
                    f"{where}[{i}]: a concatenation only drafts, so it comes first; "
                    "nest what is below it into its parts"
                )
        elif i == 0 and level.verify is not None:
            raise ValueError(
                f"{where}[0].verify: the first level has nothing below it to verify; remove it "
                '(the rule by which the target verifies is the top-level "verify")'
            )
        elif i > 0 and level.num_drafts > 1:
            raise ValueError(
                f"{where}[{i}].num_drafts: only the first level makes several drafts; remove it"
            )
        elif i > 0 and level.method in _LOOK_UPS:
            raise ValueError(
                f"{where}[{i}]: {level.method} has no law to verify with; put it first"
            )
    return parsed


def _level(data: Any, where: str) -> AnyLevelConfig:
    if not isinstance(data, Mapping):
        raise ValueError(f"{where} must be an object with a method, not {data!r}")
    method = data.get("method")
    if method == "concatenate":
        return _concatenation(data, where)
    if not isinstance(method, str) or method not in _METHODS:
        raise ValueError(
            f"{where}.method is {method!r}; there are: {', '.join([*_METHODS, 'concatenate'])}"
        )
    cls = _METHODS[method]
    values = known(cls, {k: v for k, v in data.items() if k != "method"}, where)
    if "window" in values:
        values["window"] = parse_window(values["window"], f"{where}.window")
    if values.get("verify") is not None:
        values["verify"] = _rule(values["verify"], f"{where}.verify")
    for key in ("skip_layers", "exit_layers"):
        if key in values and not (values[key] is None and key in optional(cls)):
            values[key] = _layers(values[key], f"{where}.{key}")
    level = make(cls, values, where)
    _check_numbers(level, where)
    return level


def _concatenation(data: Mapping[str, Any], where: str) -> ConcatenateConfig:
    values = strict(data, ["method", "parts", "repeat"], where)
    parts = values.get("parts")
    if not isinstance(parts, list | tuple) or not parts or any(p in ([], ()) for p in parts):
        raise ValueError(
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
    if not isinstance(kind, str) or kind not in _WINDOWS:
        raise ValueError(f"{where} needs a kind: {', '.join(_WINDOWS)}")
    cls = _WINDOWS[kind]
    values = known(cls, {k: v for k, v in data.items() if k != "kind"}, where)
    may_be_null = optional(cls)
    for key, value in values.items():
        if not (value is None and key in may_be_null) and (not is_number(value) or value < 0):
            raise ValueError(f"{where}.{key} must be a number ≥ 0, not {value!r}")
    return cls(**values)


def _check_numbers(level: LevelConfig, where: str) -> None:
    positive(level.num_speculative_tokens, f"{where}.num_speculative_tokens")
    positive(level.top_m, f"{where}.top_m")
    positive(level.num_drafts, f"{where}.num_drafts")
    if level.temperature is not None:
        temperature(level.temperature, f"{where}.temperature")
    boolean(level.bonus, f"{where}.bonus")
    if isinstance(level, EarlyExitConfig):
        positive(level.exit_layer, f"{where}.exit_layer")
        if level.head is not None and not (isinstance(level.head, str) and level.head):
            raise ValueError(
                f"{where}.head must be the path of a file that hierspec heads train has written, "
                f"or of its folder, not {level.head!r}"
            )
    if isinstance(level, NgramTableConfig) and level.max_order is not None:
        positive(level.max_order, f"{where}.max_order")
    if level.method in _LOOK_UPS and level.num_drafts > 1:
        raise ValueError(f"{where}.num_drafts: {level.method} has one draft to make; remove it")
    if isinstance(level, LayerSkipConfig):
        _check_skip(level, where)
    if isinstance(level, AdaptiveExitConfig):
        layers, sure = level.exit_layers, level.confidence
        if len(layers) < 2 or min(layers) < 1 or layers != tuple(sorted(set(layers))):
            raise ValueError(
                f"{where}.exit_layers must be two or more layer counts from 1 on, shallowest "
                f"first, not {list(layers)}; a single exit is early_exit"
            )
        if not is_number(sure) or not 0 < sure <= 1:
            raise ValueError(f"{where}.confidence must be above 0 and at most 1, not {sure!r}")
    if isinstance(level, NgramPoolConfig):
        positive(level.ngram_min, f"{where}.ngram_min")
        positive(level.ngram_max, f"{where}.ngram_max")
        boolean(level.shared, f"{where}.shared")
        if level.ngram_max < level.ngram_min:
            raise ValueError(f"{where}.ngram_max must not be below ngram_min")
    if isinstance(level, PromptLookupConfig):
        positive(level.prompt_lookup_min, f"{where}.prompt_lookup_min")
        positive(level.prompt_lookup_max, f"{where}.prompt_lookup_max")
        if level.prompt_lookup_max < level.prompt_lookup_min:
            raise ValueError(f"{where}.prompt_lookup_max must not be below prompt_lookup_min")


def _layers(value: Any, where: str) -> tuple[int, ...]:
    if (
        not isinstance(value, list | tuple)
        or not value
        or any(not isinstance(i, int) or isinstance(i, bool) or i < 0 for i in value)
    ):
        raise ValueError(f"{where} must be a list of layer numbers, not {value!r}")
    return tuple(value)


def _check_skip(level: LayerSkipConfig, where: str) -> None:
    if (level.skip is None) == (level.skip_layers is None):
        raise ValueError(
            f"{where}: layer_skip takes either skip_layers (which layers) or skip (which share of "
            "them), and one of the two is needed"
        )
    if level.skip is not None and not (is_number(level.skip) and 0 < level.skip < 1):
        raise ValueError(f"{where}.skip must lie between 0 and 1, not {level.skip!r}")


def _rule(name: Any, where: str) -> str:
    try:
        return verifiers.get(name).name
    except (ValueError, TypeError):
        known = ", ".join(verifiers.names())
        raise ValueError(f"{where}: no verifier called {name!r}; there are: {known}") from None


def _plain(config: Any) -> dict[str, Any]:
    out = {}
    for f in dataclasses.fields(config):
        value = getattr(config, f.name)
        if f.default is not dataclasses.MISSING and value == f.default:
            continue
        if isinstance(value, TargetConfig):
            value = _plain(value)
        out[f.name] = value
    return out


def _level_dict(level: AnyLevelConfig) -> dict[str, Any]:
    if isinstance(level, ConcatenateConfig):
        parts = [[_level_dict(part) for part in chain] for chain in level.parts]
        return {"method": level.method, "parts": parts, "repeat": level.repeat}
    out = {"method": level.method, **_plain(level)}
    kind = next(name for name, cls in _WINDOWS.items() if isinstance(level.window, cls))
    out.pop("window", None)
    if kind != "fixed":
        out["window"] = {"kind": kind, **_plain(level.window)}
    return out
