"""The results file: it is locked, begun or continued, and rewritten after every round of prompts.

Reading refuses unknown kinds and versions; :mod:`hierspec_lab.bench.records` describes the content.
"""

from __future__ import annotations

import contextlib
import datetime
import gzip
import json
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hierspec.errors import HierspecError
from hierspec.utils import files, schema
from hierspec.utils.files import read_bytes, write_atomically

from .records import (
    KIND,
    SCHEMA_VERSION,
    BenchEnvironment,
    BenchResults,
    BenchSettings,
)

# Must be equal where a measurement is continued; the commit may change, and is noted.
SAME_MACHINE = (
    "versions", "cpu", "cores", "threads", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "accelerator",
)  # fmt: skip


def make(
    settings: BenchSettings, environment: Mapping[str, Any], notes: Sequence[str] = ()
) -> BenchResults:
    """Make the results of a bench that has not measured anything yet."""
    now = datetime.datetime.now(datetime.UTC)
    return BenchResults(
        schema_version=SCHEMA_VERSION,
        kind=KIND,
        created=now.isoformat(timespec="seconds"),
        finished=False,
        environment=BenchEnvironment(**environment),
        settings=BenchSettings(**settings.model_dump()),  # defaults are written, too
        notes=list(notes),
        floor=None,
        cells=[],
    )


def parse(data: Any, location: str) -> BenchResults:
    """Check a file's JSON and return the results in it.

    Raises:
        HierspecError: another kind or schema version, or damaged; names ``location`` and the place.
    """
    kind = data.get("kind") if isinstance(data, Mapping) else None
    if kind != KIND:
        raise HierspecError(
            f"{location} holds no results of hierspec bench: its kind is {kind!r}, not {KIND!r}"
        )
    if data.get("schema_version") != SCHEMA_VERSION:
        raise HierspecError(
            f"{location} has schema version {data.get('schema_version')!r}, and this hierspec "
            f"reads {SCHEMA_VERSION}: measure again, or read it with the version that wrote it"
        )
    try:
        return schema.validate(BenchResults, data, "")
    except HierspecError as error:
        raise HierspecError(f"{location} is damaged: {error}; measure again") from None


def read(path: Path) -> BenchResults:
    """Read the results in a file, finished or not; compressed where its name ends in ``.gz``.

    Raises:
        HierspecError: no such file, damaged, not JSON, or as :func:`parse`.
    """
    content = read_bytes(path, "results")
    if path.suffix == ".gz":
        try:
            content = gzip.decompress(content)
        except (OSError, EOFError, zlib.error) as error:
            raise HierspecError(f"{path} is damaged: {error}; measure again") from None
    return parse(schema.parse_json(content, str(path)), str(path))


def is_finished(path: Path) -> bool:
    with contextlib.suppress(HierspecError):
        return path.is_file() and read(path).finished  # a pipe would keep a reader waiting
    return False


def write(path: Path, data: BenchResults) -> None:
    """Write the file as a whole, as :func:`read` reads it.

    Raises:
        HierspecError: it cannot be written.
    """
    content = (json.dumps(data.to_dict(), allow_nan=False) + "\n").encode()
    packed = gzip.compress(content, mtime=0) if path.suffix == ".gz" else content
    write_atomically(path, packed, "results")


def resume(path: Path | None, fresh: BenchResults, overwrite: bool = False) -> BenchResults:
    """Return the results of an interrupted run with the same settings, else ``fresh``.

    A file without a cell holds no measurement, and is overwritten whatever its settings.

    Raises:
        HierspecError: the file holds something else, is finished, or was begun with other settings
            or on another machine; says what differs.
    """
    if path is None:
        return fresh
    if path.is_dir():
        raise HierspecError(f"cannot write results to {path}: it is a folder; name a file in it")
    if path.exists() and not overwrite:
        data = read(path)
        if data.finished:
            raise HierspecError(
                f"{path} holds a finished bench: --from {path} shows it, --overwrite measures anew"
            )
        if data.cells:
            _validate_same(path, data, fresh)
            return data
    return fresh


def _validate_same(path: Path, data: BenchResults, fresh: BenchResults) -> None:
    old, new = data.settings.to_dict(), fresh.settings.to_dict()
    for key in new | old:
        if old.get(key) != new.get(key):
            raise HierspecError(
                f"{path} was begun with {key} {old.get(key)!r}, this command says "
                f"{new.get(key)!r}: give the same settings, or choose another -o"
            )
    old_machine, new_machine = data.environment, fresh.environment
    for key in SAME_MACHINE:
        old_value, new_value = getattr(old_machine, key), getattr(new_machine, key)
        if old_value != new_value:
            raise HierspecError(
                f"{path} was begun where {key} was {old_value!r}, here it is {new_value!r}: "
                "choose another -o"
            )
    note = f"continued at commit {new_machine.commit}"
    if old_machine.commit != new_machine.commit and note not in data.notes:
        data.notes.append(note)


def locked(path: Path | None) -> contextlib.AbstractContextManager[None]:
    """Keep other benches off a results file (:func:`hierspec.utils.files.locked`).

    Raises:
        HierspecError: another process holds it, or the folder cannot be written to.
    """
    if path is None:
        return contextlib.nullcontext()
    message = f"another bench is writing {path}: wait for it to end, or choose another -o"
    return files.locked(path, "results", message)
