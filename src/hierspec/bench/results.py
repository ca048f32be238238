"""The results file: one JSON object, written whole after every round of prompts.

``docs/bench.md`` describes it. A reader refuses what it does not know instead of guessing.
"""

from __future__ import annotations

import contextlib
import datetime
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hierspec.errors import HierspecError
from hierspec.utils.files import write_whole

from . import schema as shape

KIND, SCHEMA_VERSION = "hierspec-bench", 1
# What two parts of one measurement must share; a commit may change, and is noted.
SAME_MACHINE = (
    "versions", "cpu", "cores", "threads", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "accelerator",
)  # fmt: skip


def make(
    settings: Mapping[str, Any], environment: Mapping[str, Any], notes: Sequence[str] = ()
) -> dict[str, Any]:
    """A file's content before anything is measured."""
    now = datetime.datetime.now(datetime.UTC)
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": KIND,
        "created": now.isoformat(timespec="seconds"),
        "finished": False,
        "environment": dict(environment),
        "settings": dict(settings),
        "notes": list(notes),
        "floor": None,
        "cells": [],
    }


def read(path: Path) -> dict[str, Any]:
    """The object in a results file, finished or not.

    Raises:
        ValueError: no such file, not JSON, of another kind or another schema version, damaged.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise HierspecError(f"cannot read results from {path}: {error.strerror}") from None
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise HierspecError(f"{path}: not valid JSON: {error}") from None
    if not isinstance(data, dict) or data.get("kind") != KIND:
        kind = data.get("kind") if isinstance(data, dict) else None
        raise HierspecError(
            f"{path} holds no results of hierspec bench: its kind is {kind!r}, not {KIND!r}"
        )
    if data.get("schema_version") != SCHEMA_VERSION:
        raise HierspecError(
            f"{path} has schema version {data.get('schema_version')!r}, and this hierspec reads "
            f"{SCHEMA_VERSION}: measure again, or read it with the version that wrote it"
        )
    try:
        shape.check(data)
    except ValueError as error:
        raise HierspecError(f"{path} is damaged: {error}; measure again") from None
    return data


def is_finished(path: Path) -> bool:
    """Is there a bench in this file, and does it lack nothing?"""
    with contextlib.suppress(ValueError):
        return path.is_file() and read(path)["finished"]  # a pipe would keep a reader waiting
    return False


def write(path: Path, data: Mapping[str, Any]) -> None:
    """The file as a whole.

    Raises:
        ValueError: it cannot be written.
    """
    write_whole(path, json.dumps(data, allow_nan=False) + "\n", "results")


def begin(path: Path | None, fresh: dict[str, Any], overwrite: bool = False) -> dict[str, Any]:
    """As :func:`resume`; the file is there afterwards.

    Raises:
        ValueError: as :func:`resume`, or it cannot be written.
    """
    data = resume(path, fresh, overwrite)
    if path is not None and data is fresh:
        write(path, fresh)  # before minutes of work
    return data


def resume(path: Path | None, fresh: dict[str, Any], overwrite: bool = False) -> dict[str, Any]:
    """``fresh`` (of :func:`make`), or what an interrupted run with the same settings left there.

    A file without a cell holds no measurement, and its settings bind nobody.

    Raises:
        ValueError: the file holds something else, is finished, or was begun with other settings
            or on another machine; says what differs.
    """
    if path is None:
        return fresh
    if path.is_dir():
        raise HierspecError(f"cannot write results to {path}: it is a folder; name a file in it")
    if path.exists() and not overwrite:
        data = read(path)
        if data["finished"]:
            raise HierspecError(
                f"{path} holds a finished bench: --from {path} shows it, --overwrite measures anew"
            )
        if data["cells"]:
            _check_same(path, data, fresh)
            return data
    return fresh


def _check_same(path: Path, data: dict[str, Any], fresh: dict[str, Any]) -> None:
    old, new = data["settings"], json.loads(json.dumps(fresh["settings"]))
    for key in (*new, *(key for key in old if key not in new)):
        if old.get(key) != new.get(key):
            raise HierspecError(
                f"{path} was begun with {key} {old.get(key)!r}, this command says "
                f"{new.get(key)!r}: give the same settings, or choose another -o"
            )
    here = fresh["environment"]
    for key in SAME_MACHINE:
        before = data["environment"].get(key)
        if before != here.get(key):
            raise HierspecError(
                f"{path} was begun where {key} was {before!r}, here it is {here.get(key)!r}: "
                "choose another -o"
            )
    if data["environment"].get("commit") != here.get("commit"):
        note = f"continued at commit {here.get('commit')}"
        if note not in data["notes"]:
            data["notes"].append(note)


def cell(data: dict[str, Any], temperature: float) -> dict[str, Any] | None:
    """The part of a results object that was measured at this temperature."""
    return next((one for one in data["cells"] if one["temperature"] == temperature), None)
