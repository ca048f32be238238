"""Settings of an interrupted training: it is resumed or discarded, and never by accident.

A training of other settings could not go on with its checkpoints, and its end may delete them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hierspec.errors import HierspecError
from hierspec.utils.files import write_whole

_FILE = "settings.json"
_OPTIONS = {"learning_rate": "--lr"}  # where an option is not called as its setting is
_HASHED = {"texts": "the texts", "weights": "the model's weights"}


def check(folder: Path, wanted: Mapping[str, Any], give_up: str) -> None:
    """Refuse settings that are not those of the training in ``folder``.

    Args:
        wanted: as JSON holds it; compared as far as it is known of both.
        give_up: the option that gives the other training up.

    Raises:
        HierspecError: names what has changed, and the way out.
    """
    held = _held(folder)
    if changed := _changed(held, wanted):
        named = ", ".join(_named(key, held[key], wanted[key]) for key in changed)
        raise HierspecError(
            f"{folder} holds a training of other settings ({named}): give the same ones to go on "
            f"with it, or {give_up} to give it up"
        )


def keep(folder: Path, wanted: Mapping[str, Any]) -> None:
    """Write into ``folder`` what the training there is of, beside what is known of it already."""
    held = _held(folder)
    known = wanted if _changed(held, wanted) else {**held, **wanted}
    write_whole(folder / _FILE, json.dumps(known), "the settings")


def once(path: Path, make: Callable[[], Any]) -> Any:
    """Return what ``make`` returns, kept in a JSON file for the next call."""
    if path.is_file():
        return json.loads(path.read_text(encoding="utf-8"))
    value = make()
    write_whole(path, json.dumps(value), "measurements")
    return value


def _changed(held: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    return [key for key in wanted if key in held and held[key] != wanted[key]]


def _held(folder: Path) -> dict[str, Any]:
    path = folder / _FILE
    if not path.is_file():
        return {}
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise HierspecError(f"cannot read {path} ({error}): delete {folder}") from None


def _named(key: str, before: Any, now: Any) -> str:
    if key in _HASHED:
        return _HASHED[key]
    option = _OPTIONS.get(key, f"--{key.replace('_', '-')}")
    return f"{option} was {_shown(before)}, is {_shown(now)}"


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value))
    return "not given" if value is None else str(value)
