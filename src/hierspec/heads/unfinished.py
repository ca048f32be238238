"""What an interrupted training was of: it is gone on with or given up, and never by accident.

A training of other settings could not go on with its checkpoint, and its end deletes the folder.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hierspec.files import write_whole

from .settings import Settings

_FILE = "settings.json"
_OPTIONS = {"learning_rate": "--lr"}  # where an option is not called as its setting is
_WORDS = {"texts": "the texts", "weights": "the model's weights"}  # told by hashes


def described(model: str, dtype: str, settings: Settings) -> dict[str, Any]:
    """What is known of a training before anything is loaded, as JSON holds it."""
    place = Path(model).expanduser()
    return {
        "model": str(place.resolve()) if place.is_dir() else model,
        "dtype": dtype,
        **asdict(settings),
        "exits": sorted(set(settings.exits)),
    }


def check(folder: Path, wanted: Mapping[str, Any], overwrite: bool) -> None:
    """Refuse settings that are not those of the training that was interrupted in ``folder``.

    Args:
        wanted: compared as far as it is known of both.
        overwrite: another training may be given up.

    Raises:
        ValueError: names what has changed, and the way out.
    """
    held = _held(folder)
    if (changed := _changed(held, wanted)) and not overwrite:
        told = ", ".join(_told(key, held[key], wanted[key]) for key in changed)
        raise ValueError(
            f"{folder} holds an interrupted training of other settings ({told}): give the same "
            "ones to go on with it, or --overwrite to give it up"
        )


def keep(folder: Path, wanted: Mapping[str, Any]) -> None:
    """Say in ``folder`` what the training there is of, beside what is known of it already."""
    held = _held(folder)
    known = wanted if _changed(held, wanted) else {**held, **wanted}
    write_whole(folder / _FILE, json.dumps(known), "the settings")


def _changed(held: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    return [key for key in wanted if key in held and held[key] != wanted[key]]


def _held(folder: Path) -> dict[str, Any]:
    path = folder / _FILE
    if not path.is_file():
        return {}
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"cannot read {path} ({error}): delete {folder}") from None


def _told(key: str, before: Any, now: Any) -> str:
    if key in _WORDS:
        return _WORDS[key]
    option = _OPTIONS.get(key, f"--{key.replace('_', '-')}")
    return f"{option} was {_shown(before)}, is {_shown(now)}"


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value))
    return "not given" if value is None else str(value)
