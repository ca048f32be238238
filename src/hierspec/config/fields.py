"""Types for the fields of a hierarchy file: windows, rules, models, files of heads."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, Strict

from hierspec.core.windows import ConfidenceWindow, EntropyWindow, FixedWindow, Window
from hierspec.utils import plugins
from hierspec.utils.schema import (
    Expected,
    Natural,
    NonEmptyString,
    NonNegativeNumber,
    OneOf,
    ReadAs,
    checked_dataclass,
)
from hierspec.verifiers import registry

from .in_memory import ModelInMemory, wrap_model


@checked_dataclass
class _Fixed:
    kind: Literal["fixed"] = "fixed"
    window: ClassVar[type] = FixedWindow


@checked_dataclass
class _Entropy:
    kind: Literal["entropy"] = "entropy"
    threshold: NonNegativeNumber | None = None
    window: ClassVar[type] = EntropyWindow


@checked_dataclass
class _Confidence:
    kind: Literal["confidence"] = "confidence"
    floor: NonNegativeNumber = ConfidenceWindow().floor
    window: ClassVar[type] = ConfidenceWindow


GROUP = "hierspec.windows"  # of entry points: by kind, a form like these
_FORMS: dict[str, type] = {"fixed": _Fixed, "entropy": _Entropy, "confidence": _Confidence}


def _form(kind: str, keys: Iterable[str]) -> type | None:
    return _FORMS.get(kind) or plugins.load_entry_point(GROUP, kind)


def _kinds() -> list[str]:
    return [*_FORMS, *plugins.entry_point_names(GROUP)]


def _parse_window(value: Any, validate_form: Callable[[Any], Any]) -> Window:
    """Parse a window from ``{"kind": "entropy", …}``, from its kind alone, or from a window."""
    if isinstance(value, Window):
        return value
    form = validate_form({"kind": value} if isinstance(value, str) else value)
    parameters = dataclasses.asdict(form)
    del parameters["kind"]
    return form.window(**parameters)


AnyWindow = Annotated[Window, ReadAs(Annotated[Any, OneOf("kind", _form, _kinds)], _parse_window)]


def _canonical_rule(name: Any) -> str:
    if not isinstance(name, str):
        raise ValueError(registry.unknown_name_message(name))
    return registry.canonical_name(name)


def _path_to_text(name: Any) -> Any:
    return os.fspath(name) if isinstance(name, os.PathLike) else name


RuleName = Annotated[str, BeforeValidator(_canonical_rule)]
# a directory, a hub id, FILE.gguf or zoo:NAME
ModelName = Annotated[NonEmptyString, BeforeValidator(_path_to_text)]


def _parse_model(value: Any, validate_form: Callable[[Any], Any]) -> str:
    value = wrap_model(value)
    return value if isinstance(value, ModelInMemory) else validate_form(value)


AnyModel = Annotated[
    str,
    ReadAs(
        Annotated[ModelName, Expected("a non-empty string (a model's name), or a loaded model")],
        _parse_model,
    ),
]
HeadsPath = Annotated[
    ModelName,
    Expected("the path of a file that hierspec heads train has written, or of its folder"),
]
DEFAULT_LENIENCE = 1.0  # as strict as tokenwise
Lenience = Annotated[float, Strict(), Field(ge=1, lt=1e6), Expected("a number, at least 1")]
Layers = Annotated[
    tuple[Natural, ...], Field(min_length=1), Expected("a list of layer numbers, not empty")
]
