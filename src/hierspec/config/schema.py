"""The hierarchy file: a target and the levels below it, smallest first; strict keys.

JSON or TOML. The same object is what the planner prints and what ``generate --hierarchy`` takes.
Reading checks shape and ranges; what needs the models (an exit layer, a vocabulary) is checked
when they are there (:mod:`hierspec.config.build`).
"""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator

from hierspec.errors import HierspecError
from hierspec.utils.files import read_text
from hierspec.utils.schema import (
    Boolean,
    NonEmptyString,
    PositiveInteger,
    declared,
    json_object,
    one_line_repr,
    read,
)

from .chains import Chain, ConcatenateConfig  # noqa: F401  # Chain names it
from .fields import DEFAULT_LENIENCE, WINDOWS, AnyModel, Lenience, Rule
from .in_memory import is_model


@declared
class TargetConfig:
    """The model whose distribution the output has.

    Attributes:
        model: a directory, a hub id, ``zoo:NAME``, or a loaded model of transformers, which keeps
            its dtype and device.
        dtype: ``float32``, ``bfloat16``, … or ``auto``: the checkpoint's own, or float32 on a CPU
            that cannot compute in it.
        backend: ``auto``, ``lean`` (fast forward, Llama-shaped models), ``hf``, or
            ``deterministic``, which the hierarchy's own key stands for.
        device: ``cpu``, ``cuda``, …; ``auto``: an accelerator if there is one.
        cuda_graphs: on CUDA, run lean models in calls of fixed shape, recorded and replayed
            (:mod:`hierspec.utils.graphs`). The draft models follow it.
    """

    model: AnyModel
    dtype: NonEmptyString = "auto"
    backend: NonEmptyString = "auto"
    device: NonEmptyString = "auto"
    cuda_graphs: Boolean = True


def _target(data: Any) -> Any:
    return {"model": data} if isinstance(data, str) or is_model(data) else data


@declared
class HierarchyConfig:
    """A target and the levels below it, smallest first.

    Attributes:
        target: also just its model's name.
        verify: the rule by which the target verifies the last level.
        top_m: for ``verify: leading``.
        lenience: for ``verify: lenient``, which is lossy here.
        allow_lossy: let through rules that change the output law.
        deterministic: the target gives a token the same scores, bit by bit, however many are
            computed with it (:mod:`hierspec.lm.lean.deterministic`); on CPUs.
    """

    target: Annotated[TargetConfig, BeforeValidator(_target)]
    levels: Chain = ()
    verify: Rule = "block"
    top_m: PositiveInteger = 1
    lenience: Lenience = DEFAULT_LENIENCE
    allow_lossy: Boolean = False
    deterministic: Boolean = False

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> HierarchyConfig:
        """Read what a file holds.

        Raises:
            HierspecError: naming the place and the fix.
        """
        if isinstance(data, Mapping) and {"kind", "schema_version"} <= data.keys():
            raise HierspecError(
                f"this is a {one_line_repr(data['kind'])} file, not a hierarchy: hierspec plan "
                "reads profiles, and hierspec bench --from results; --hierarchy auto measures and "
                "plans by itself"
            )
        return read(cls, data, "hierarchy")

    @classmethod
    def load(cls, source: str | Path | Mapping[str, Any]) -> HierarchyConfig:
        """Load a mapping, inline JSON, or the path of a ``.json`` or ``.toml`` file.

        Raises:
            HierspecError: it cannot be read, or is no hierarchy.
        """
        if isinstance(source, Mapping):
            return cls.from_dict(source)
        if not isinstance(source, str | Path):
            raise HierspecError(
                "a hierarchy is a mapping, inline JSON, or the path of a .json or .toml file, "
                f"not {type(source).__name__}"
            )
        text = str(source)
        if text.lstrip()[:1] in ("{", "["):
            return cls.from_dict(json_object(text, "the inline hierarchy", "a hierarchy"))
        path = Path(source)
        fix = ": give a .json or .toml file, inline JSON, or the name of a preset"
        body = read_text(path, "the hierarchy file", fix)
        try:
            if path.suffix != ".toml":
                read: Any = json_object(body, text, "a hierarchy")
            else:
                read = tomllib.loads(body)
        except RecursionError:
            raise HierspecError(f"{text}: nested too deeply to be a hierarchy") from None
        except tomllib.TOMLDecodeError as error:
            raise HierspecError(f"{text}: not valid TOML: {error}") from None
        try:
            return cls.from_dict(read)
        except HierspecError as error:
            raise HierspecError(f"{text}: {error}") from None

    def to_dict(self) -> dict[str, Any]:
        """Return the file's own form, defaults left out."""
        return _plain(self)


def _plain(value: Any) -> Any:
    """Return a part of a configuration as JSON: its kind, and all but defaults."""
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    if not dataclasses.is_dataclass(value):
        return value
    kind = next((name for name, cls in WINDOWS.items() if isinstance(value, cls)), None)
    out: dict[str, Any] = {} if kind is None else {"kind": kind}
    for field in dataclasses.fields(value):
        own = getattr(value, field.name)
        default = field.default_factory() if callable(field.default_factory) else field.default
        if own != default or field.name in _ALWAYS:
            out[field.name] = _plain(own)
    return out


_ALWAYS = ("method", "levels", "repeat", "kind")  # written though they say what holds anyway
