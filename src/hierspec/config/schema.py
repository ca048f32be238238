"""The hierarchy file: frozen dataclasses, one place for defaults, strict keys.

JSON or TOML, smallest level first. The same object is what the planner prints and what
``generate --hierarchy`` takes. Parsing checks shape and ranges; what needs the models (an exit
layer, a vocabulary) is checked when they are there (:mod:`hierspec.config.build`).
"""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hierspec.errors import HierspecError
from hierspec.utils.checks import boolean, positive, strict

from .levels import (
    WINDOWS,
    AdaptiveExitConfig,
    AnyLevelConfig,
    ConcatenateConfig,
    DraftModelConfig,
    EarlyExitConfig,
    LayerSkipConfig,
    LevelConfig,
    NgramPoolConfig,
    NgramTableConfig,
    PromptLookupConfig,
    TargetConfig,
    json_object,
    known,
    make,
    parse_chain,
    parse_rule,
    parse_window,
)

__all__ = [
    "AdaptiveExitConfig",
    "AnyLevelConfig",
    "ConcatenateConfig",
    "DraftModelConfig",
    "EarlyExitConfig",
    "HierarchyConfig",
    "LayerSkipConfig",
    "LevelConfig",
    "NgramPoolConfig",
    "NgramTableConfig",
    "PromptLookupConfig",
    "TargetConfig",
    "parse_chain",
    "parse_window",
]


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
            raise HierspecError('hierarchy: "target" is missing: {"target": {"model": "..."}, ...}')
        levels = data.get("levels", [])
        if not isinstance(levels, list | tuple):
            raise HierspecError("hierarchy.levels must be a list, smallest level first")
        positive(data.get("top_m", 1), "top_m")
        boolean(data.get("allow_lossy", False), "allow_lossy")
        return make(
            cls,
            {
                **data,
                "target": _target(data["target"]),
                "levels": parse_chain(levels, "levels"),
                "verify": parse_rule(data.get("verify", "block"), "verify"),
            },
            "hierarchy",
        )

    @classmethod
    def load(cls, source: str | Path | Mapping[str, Any]) -> HierarchyConfig:
        """From a mapping, inline JSON, or the path of a ``.json`` or ``.toml`` file."""
        if isinstance(source, Mapping):
            return cls.from_dict(source)
        if not isinstance(source, str | Path):
            raise HierspecError(
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
            raise HierspecError(
                f"cannot read the hierarchy file {text!r} ({error.strerror}): "
                "give a .json or .toml file, inline JSON, or the name of a preset"
            ) from None
        except UnicodeDecodeError:
            raise HierspecError(f"{text}: not a text file; a hierarchy is JSON or TOML") from None
        if path.suffix == ".toml":
            try:
                return cls.from_dict(tomllib.loads(body))
            except tomllib.TOMLDecodeError as error:
                raise HierspecError(f"{text}: not valid TOML: {error}") from None
        return cls.from_dict(json_object(body, text))

    def to_dict(self) -> dict[str, Any]:
        """The file's own form, defaults left out."""
        out = _plain(self)
        out["levels"] = [_level_dict(level) for level in self.levels]
        return out


def _target(data: Any) -> TargetConfig:
    """From a target's object, or its model's name."""
    values = known(TargetConfig, {"model": data} if isinstance(data, str) else data, "target")
    boolean(values.get("cuda_graphs", True), "target.cuda_graphs")
    return make(TargetConfig, values, "target")


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
    kind = next(name for name, cls in WINDOWS.items() if isinstance(level.window, cls))
    out.pop("window", None)
    if kind != "fixed":
        out["window"] = {"kind": kind, **_plain(level.window)}
    return out
