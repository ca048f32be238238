"""Frozen dataclasses from what files hold: known keys, none missing, texts where texts belong."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from .checks import strict

_TEXTS = ("model", "dtype", "backend", "device", "table")


def known(cls: type, data: Any, where: str) -> dict[str, Any]:
    """``data`` as a dict, if all its keys are fields of ``cls``."""
    if not isinstance(data, Mapping):
        raise ValueError(f"{where} must be an object, not {data!r}")
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
        raise ValueError(f"{where}: {missing[0]!r} is missing")
    for name in _TEXTS:
        value = values.get(name, "unset")
        if not (isinstance(value, str) and value) and not (value is None and name in optional(cls)):
            raise ValueError(f"{where}.{name} must be a text of some length, not {value!r}")
    return cls(**values)


def optional(cls: type) -> set[str]:
    """Fields that null leaves as they are."""
    return {f.name for f in dataclasses.fields(cls) if f.default is None}


def json_object(text: str, where: str) -> Mapping[str, Any]:
    """The JSON object in ``text``."""
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{where}: not valid JSON: {error}") from None
    if not isinstance(data, Mapping):
        raise ValueError(f"{where}: a hierarchy is a JSON object, not {type(data).__name__}")
    return data
