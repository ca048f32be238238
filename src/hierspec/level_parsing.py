"""Levels as files hold them → :mod:`hierspec.level_kinds`.

Every mistake is a ``ValueError`` that names the place and the fix.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from .checks import boolean, is_number, positive, strict, temperature
from .level_kinds import (
    LOOK_UPS,
    METHODS,
    WINDOWS,
    AdaptiveExitConfig,
    AnyLevelConfig,
    ConcatenateConfig,
    EarlyExitConfig,
    LayerSkipConfig,
    LevelConfig,
    NgramPoolConfig,
    NgramTableConfig,
    PromptLookupConfig,
)
from .records import known, make, optional
from .verifiers import base as verifiers
from .windows import ConfidenceWindow, EntropyWindow, FixedWindow, Window


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
        elif i == 0 and (ignored := _unused_by_first(level)):
            raise ValueError(
                f"{where}[0].{ignored}: the first level has nothing below it to verify, and it "
                "says how; remove it"
            )
        elif i > 0 and level.num_drafts > 1:
            raise ValueError(
                f"{where}[{i}].num_drafts: only the first level makes several drafts; remove it"
            )
        elif i > 0 and level.method in LOOK_UPS:
            raise ValueError(
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
        raise ValueError(f"{where} must be an object with a method, not {data!r}")
    method = data.get("method")
    if method == "concatenate":
        return _concatenation(data, where)
    if not isinstance(method, str) or method not in METHODS:
        raise ValueError(
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
    if not isinstance(kind, str) or kind not in WINDOWS:
        raise ValueError(f"{where} needs a kind: {', '.join(WINDOWS)}")
    cls = WINDOWS[kind]
    values = known(cls, {k: v for k, v in data.items() if k != "kind"}, where)
    may_be_null = optional(cls)
    for key, value in values.items():
        if not (value is None and key in may_be_null) and (not is_number(value) or value < 0):
            raise ValueError(f"{where}.{key} must be a number ≥ 0, not {value!r}")
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
        raise ValueError(f"{where}.num_drafts: {level.method} has one draft to make; remove it")
    if level.temperature is not None:
        raise ValueError(
            f"{where}.temperature: {level.method} copies tokens and draws none, so a temperature "
            "changes nothing; remove it"
        )
    if not isinstance(level.window, FixedWindow):
        raise ValueError(
            f"{where}.window: {level.method} copies tokens and has no law for a window to read; "
            "remove it (num_speculative_tokens limits a draft)"
        )


def _check_exit(level: EarlyExitConfig, where: str) -> None:
    positive(level.exit_layer, f"{where}.exit_layer")
    if level.head is not None and not (isinstance(level.head, str) and level.head):
        raise ValueError(
            f"{where}.head must be the path of a file that hierspec heads train has written, "
            f"or of its folder, not {level.head!r}"
        )


def _check_adaptive(level: AdaptiveExitConfig, where: str) -> None:
    layers, sure = level.exit_layers, level.confidence
    if len(layers) < 2 or min(layers) < 1 or layers != tuple(sorted(set(layers))):
        raise ValueError(
            f"{where}.exit_layers must be two or more layer counts from 1 on, shallowest "
            f"first, not {list(layers)}; a single exit is early_exit"
        )
    if not is_number(sure) or not 0 < sure <= 1:
        raise ValueError(f"{where}.confidence must be above 0 and at most 1, not {sure!r}")


def _check_range(level: LevelConfig, least: str, most: str, where: str) -> None:
    for key in (least, most):
        positive(getattr(level, key), f"{where}.{key}")
    if getattr(level, most) < getattr(level, least):
        raise ValueError(f"{where}.{most} must not be below {least}")


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


def parse_rule(name: Any, where: str) -> str:
    """A verification rule's own name, also from an alias."""
    try:
        return verifiers.get(name).name
    except (ValueError, TypeError):
        known = ", ".join(verifiers.names())
        raise ValueError(f"{where}: no verifier called {name!r}; there are: {known}") from None
