"""Settings of an interrupted training, so that it is resumed or discarded on purpose only.

A training with other settings could not use its checkpoints, and might delete them at its end.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hierspec.errors import HierspecError
from hierspec.utils.files import write_atomically

_FILE = "settings.json"
_OPTIONS = {"learning_rate": "--lr"}  # where an option is not named like its setting
_HASHED = {"texts": "the texts", "weights": "the model's weights"}


def check(folder: Path, wanted: Mapping[str, Any], give_up: str) -> None:
    """Refuse settings that are not those of the training in ``folder``.

    Args:
        wanted: as loaded from JSON; compared are the keys that both have.
        give_up: the option that discards the other training.

    Raises:
        HierspecError: names what has changed, and the way out.
    """
    stored = _stored(folder)
    if changed := _changed(stored, wanted):
        named = ", ".join(_difference(key, stored[key], wanted[key]) for key in changed)
        raise HierspecError(
            f"{folder} holds a training of other settings ({named}): give the same ones to go on "
            f"with it, or {give_up} to give it up"
        )


def keep(folder: Path, wanted: Mapping[str, Any]) -> None:
    """Write the settings of the training in ``folder``; stored ones stay unless they disagree."""
    stored = _stored(folder)
    known = wanted if _changed(stored, wanted) else {**stored, **wanted}
    write_atomically(folder / _FILE, json.dumps(known), "the settings")


def once(path: Path, make: Callable[[], Any]) -> Any:
    """Return what ``make`` returns, kept in a JSON file for the next call."""
    if path.is_file():
        return json.loads(path.read_text(encoding="utf-8"))
    value = make()
    write_atomically(path, json.dumps(value), "measurements")
    return value


def _changed(stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    return [key for key in wanted if key in stored and stored[key] != wanted[key]]


def _stored(folder: Path) -> dict[str, Any]:
    path = folder / _FILE
    if not path.is_file():
        return {}
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise HierspecError(f"cannot read {path} ({error}): delete {folder}") from None


def _difference(key: str, before: Any, now: Any) -> str:
    if key in _HASHED:
        return _HASHED[key]
    option = _OPTIONS.get(key, f"--{key.replace('_', '-')}")
    return f"{option} was {_value_text(before)}, is {_value_text(now)}"


def _value_text(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value))
    return "not given" if value is None else str(value)
