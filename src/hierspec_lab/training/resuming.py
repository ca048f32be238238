"""What lets an interrupted training be resumed: its settings, and results that took long.

With other settings its checkpoints could not be used, and might be deleted at the end. So the
settings are kept beside them, and other ones are refused unless the user gives the training up.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from hierspec.errors import HierspecError
from hierspec.utils.documents import read_json
from hierspec.utils.files import write_atomically

T = TypeVar("T")

_FILE = "settings.json"
_OPTIONS = {"learning_rate": "--lr"}  # where an option is not named like its setting
_HASHED = {
    "texts": "the texts",
    "weights": "the model's weights",
    "vocabulary": "the drafter's vocabulary",
    "answers": "how answers are written",
    "sibling": "the sibling's size or steps",
    "heads": "the heads' sizes or steps",
    "eagle3": "the network's size or steps",
}


def validate_settings(folder: Path, settings: Mapping[str, Any], discard_option: str) -> None:
    """Refuse settings that are not those of the training in ``folder``.

    Args:
        settings: as loaded from JSON; keys that only one of the trainings has are not compared.
            Keys are named like their options, behind ``STAGE.`` where there are several stages.
        discard_option: the command-line option that discards the other training.

    Raises:
        HierspecError: names what has changed, and the way out.
    """
    stored = _read(folder)
    if changed := _changed(stored, settings):
        found = [_difference(key, stored[key], settings[key]) for key in changed]
        differences = ", ".join(dict.fromkeys(found))  # stages may share an option
        raise HierspecError(
            f"{folder} holds a training of other settings ({differences}): give the same ones to "
            f"go on with it, or {discard_option} to give it up"
        )


def holds_one(folder: Path) -> bool:
    """Return whether a folder holds a training."""
    return (folder / _FILE).is_file()


def has_changed(folder: Path, settings: Mapping[str, Any]) -> bool:
    """Return whether settings are not those of the training in ``folder``."""
    return bool(_changed(_read(folder), settings))


def give_up(folder: Path) -> None:
    """Delete the training in a folder, if there is one.

    Raises:
        HierspecError: the folder holds something else.
    """
    if not folder.exists():
        return
    if not folder.is_dir() or (any(folder.iterdir()) and not holds_one(folder)):
        raise HierspecError(f"{folder} holds no training to give up: name another folder")
    shutil.rmtree(folder)


def save_settings(folder: Path, settings: Mapping[str, Any]) -> None:
    """Write the settings of the training in ``folder``; stored ones stay unless they disagree."""
    stored = _read(folder)
    merged = settings if _changed(stored, settings) else {**stored, **settings}
    write_atomically(folder / _FILE, json.dumps(merged), "the settings")


def compute_once(shape: type[T], path: Path, make: Callable[[], T]) -> T:
    """Return what ``make`` returns, kept in a JSON file for when the training is resumed.

    Args:
        shape: the type of what it returns, as JSON has it.

    Raises:
        HierspecError: the file is damaged.
    """
    if path.is_file():
        return read_json(shape, path, "measurements", ": delete it")
    value = make()
    write_atomically(path, json.dumps(value), "measurements")
    return value


def _changed(stored: Mapping[str, Any], settings: Mapping[str, Any]) -> list[str]:
    return [key for key in settings if key in stored and stored[key] != settings[key]]


def _read(folder: Path) -> dict[str, Any]:
    path = folder / _FILE
    if not path.is_file():
        return {}
    return read_json(dict[str, Any], path, "the settings", f": delete {folder}")


def _difference(key: str, stored: Any, current: Any) -> str:
    if key in _HASHED:
        return _HASHED[key]
    key = key.rpartition(".")[2]
    option = _OPTIONS.get(key, f"--{key.replace('_', '-')}")
    return f"{option} was {_value_text(stored)}, is {_value_text(current)}"


def _value_text(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value))
    return "not given" if value is None else str(value)
