"""The hierarchy file: a target and the levels below it, smallest first; strict keys.

JSON or TOML. The same object is what the planner prints and what ``generate --hierarchy`` takes.
Reading checks types and ranges; what needs the models (an exit layer, a vocabulary) is checked
when they are loaded (:mod:`hierspec.config.build`).
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, cast

from pydantic import BeforeValidator

from hierspec.errors import HierspecError, errors_in
from hierspec.utils.documents import read_object
from hierspec.utils.schema import (
    Boolean,
    NonEmptyString,
    PositiveInteger,
    checked_dataclass,
    json_object,
    short_repr,
    validate,
)

from .chains import ConcatenateConfig, LevelChain  # noqa: F401  # a forward reference of LevelChain
from .fields import DEFAULT_LENIENCE, AnyModel, Lenience, RuleName
from .in_memory import ModelInMemory, is_model

_DTYPES = ("float32", "bfloat16", "float16", "float64", "float", "half", "double")  # of torch
_SHORT_DTYPES = {"bf16": "bfloat16", "f16": "float16", "f32": "float32", "f64": "float64"}
_SHORT_DTYPES |= {"fp16": "float16", "fp32": "float32", "fp64": "float64"}


def _torch_name(value: Any) -> Any:
    """Return the name of a dtype or a device of torch, which need not be imported to tell."""
    is_torchs = (type(value).__module__, type(value).__name__) in _OF_TORCH
    return str(value).removeprefix("torch.") if is_torchs else value


_OF_TORCH = (("torch", "dtype"), ("torch", "device"))
_TorchName = Annotated[NonEmptyString, BeforeValidator(_torch_name)]


def validate_dtype(dtype: str) -> None:
    """Refuse what is neither ``auto`` nor the name of a floating-point type."""
    name = dtype.removeprefix("torch.")
    if name in _DTYPES or dtype == "auto":
        return
    known = _SHORT_DTYPES.get(name.lower())
    hint = f"; did you mean {known}?" if known else ""
    raise HierspecError(
        f"unsupported dtype {dtype!r}; use auto, float32, bfloat16, float16 or float64{hint}"
    )


@checked_dataclass
class TargetConfig:
    """The model whose distribution the output has.

    Attributes:
        model: a directory, a hub id, ``FILE.gguf``, ``zoo:NAME``, or a loaded model of
            transformers, which keeps its dtype and device; on a CPU its weights are copied into the
            compiled kernels.
        dtype: ``float32``, ``bfloat16``, … or ``auto``: the checkpoint's own, of a GGUF file its
            bits; outside the compiled kernels float32 on a CPU that cannot compute in it.
        backend: ``auto``, ``lean`` (fast forward, Llama-shaped models), ``hf``, or
            ``deterministic``, which the key ``deterministic`` of a hierarchy chooses.
        device: ``cpu``, ``cuda``, …; ``auto``: an accelerator if there is one.
        free_model: of a loaded model: where its weights are taken into the compiled kernels, let
            its own go. It cannot be used any more then.
        cuda_graphs: on CUDA, run lean models in calls of fixed shape, recorded and replayed
            (:mod:`hierspec.utils.graphs`). The draft models follow it.
    """

    model: AnyModel
    dtype: _TorchName = "auto"
    backend: NonEmptyString = "auto"
    device: _TorchName = "auto"
    cuda_graphs: Boolean = True
    free_model: Boolean = False

    def __post_init__(self) -> None:
        validate_dtype(self.dtype)
        if self.free_model and not isinstance(self.model, ModelInMemory):
            raise ValueError("free_model is for a loaded model: leave it out")


def _target_from_name(data: Any) -> Any:
    own, upper = ({f.name for f in dataclasses.fields(c)} for c in (TargetConfig, HierarchyConfig))
    if isinstance(data, Mapping) and (misplaced := data.keys() & (upper - own)):
        raise ValueError(f"{min(misplaced)!r} stands at the top level, beside target")
    return {"model": data} if isinstance(data, str) or is_model(data) else data


@checked_dataclass
class HierarchyConfig:
    """A target and the levels below it, smallest first.

    Attributes:
        target: in a file, the name of its model is enough.
        verify: the rule by which the target verifies the last level.
        top_m: for ``verify: leading``.
        lenience: for ``verify: lenient``, which is lossy here.
        allow_lossy: accept rules that change the output law.
        deterministic: the target scores a token bit for bit the same, however many tokens are
            scored with it, or is refused: on CPUs the compiled kernels do so in any case
            (:mod:`hierspec.lm.native`).
    """

    target: Annotated[TargetConfig, BeforeValidator(_target_from_name)]
    levels: LevelChain = ()
    verify: RuleName = "block"
    top_m: PositiveInteger = 1
    lenience: Lenience = DEFAULT_LENIENCE
    allow_lossy: Boolean = False
    deterministic: Boolean = False

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> HierarchyConfig:
        """Make the configuration of a file's parsed object, or of a plan's ``hierarchy``.

        Raises:
            HierspecError: naming the place and the fix.
        """
        if isinstance(data, Mapping) and {"kind", "schema_version"} <= data.keys():
            raise HierspecError(
                f"this is a {short_repr(data['kind'])} file, not a hierarchy: hierspec plan "
                "reads profiles, and hierspec bench --from results; --hierarchy auto measures and "
                "plans by itself"
            )
        is_plan = isinstance(data, Mapping) and {"hierarchy", "schema_version"} <= data.keys()
        return validate(cls, data["hierarchy"] if is_plan else data, "hierarchy")

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
        document = read_object(path, "hierarchy file", fix)
        with errors_in(path):
            return cls.from_dict(document)

    def to_dict(self) -> dict[str, Any]:
        """Return the object of a hierarchy file, defaults left out."""
        out = _to_json(self)
        out["target"].pop("free_model", None)  # a file's model is loaded by its name
        return out


_ALWAYS_WRITTEN = ("method", "levels", "repeat", "kind")  # also where they are the default


def _to_json(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_to_json(element) for element in value]
    if isinstance(value, os.PathLike):  # an option of a registered method
        return os.fspath(cast("os.PathLike[str]", value))
    if not dataclasses.is_dataclass(value):
        return value
    kind = getattr(value, "kind", None)  # of a window
    out: dict[str, Any] = {} if kind is None else {"kind": kind}
    for field in dataclasses.fields(value):
        content = getattr(value, field.name)
        default = field.default_factory() if callable(field.default_factory) else field.default
        if content != default or field.name in _ALWAYS_WRITTEN:
            out[field.name] = _to_json(content)
    return out
