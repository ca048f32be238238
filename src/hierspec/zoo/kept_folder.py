"""Folders of the user's cache that are made once, and again where they were damaged.

A folder is complete or does not exist, even if several processes make it: it is written beside its
place and renamed, and its last file lists the checksums of the others. What another version of the
package, or of the source, has made goes when it has not been used for long.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock, Timeout

from hierspec.errors import HierspecError
from hierspec.utils.documents import read_json
from hierspec.utils.records import Record

from .content import content_hash

MANIFEST = "conversion.json"
_UNUSED_AFTER = 30 * 86400.0  # seconds


class _Manifest(Record):
    format: int
    sha256: dict[str, tuple[int, str]]  # file → its size and checksum


def is_complete(folder: Path, version: int) -> bool:
    """Return whether all files of a folder are as they were written, in this version."""
    try:
        manifest = read_json(_Manifest, folder / MANIFEST, "its manifest")
        whole = manifest.format == version and all(
            _checksum(folder / name) == checksum for name, checksum in manifest.sha256.items()
        )
    except (HierspecError, OSError):
        return False
    if whole:
        with contextlib.suppress(OSError):  # it may be another user's
            os.utime(folder / MANIFEST)  # used now
    return whole


def make(
    folder: Path, version: int, source: str, noun: str, write: Callable[[Path], object]
) -> None:
    """Make a folder, unless another process has done so meanwhile; delete those that it replaces.

    Args:
        folder: ``NAME-HASH``, with 16 hexadecimal digits that change with the version.
        version: of what ``write`` writes, raised when that changes.
        noun: what is in it, for the error.
        write: writes all files into an empty folder.

    Raises:
        HierspecError: it cannot be written.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{folder}.lock"):  # a second process waits for the first one's folder
            if not is_complete(folder, version):
                _make(folder, version, source, write)
        _delete_unused(folder)
    except OSError as error:
        raise HierspecError(
            f"cannot write {noun} to {folder.parent}: {error.strerror or error}; make room there, "
            "or set HIERSPEC_CACHE to another folder"
        ) from None


def _make(folder: Path, version: int, source: str, write: Callable[[Path], object]) -> None:
    temporary = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)  # a killed process left it
    temporary.mkdir()
    try:
        write(temporary)
        checksums = {file.name: _checksum(file) for file in sorted(temporary.iterdir())}
        manifest = {"format": version, "from": source, "sha256": checksums}
        (temporary / MANIFEST).write_text(json.dumps(manifest))
        shutil.rmtree(folder, ignore_errors=True)  # damaged
        os.replace(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _delete_unused(folder: Path) -> None:
    """Delete other folders of this name that nobody has used for long."""
    name = re.escape(folder.name.rpartition("-")[0])
    for other in folder.parent.iterdir():
        if not re.fullmatch(rf"{name}-[0-9a-f]{{16}}", other.name):
            continue
        with contextlib.suppress(OSError, Timeout):
            status = (other / MANIFEST).stat()
            if time.time() - max(status.st_mtime, status.st_atime) < _UNUSED_AFTER:
                continue
            with FileLock(f"{other}.lock", timeout=0):
                gone = other.with_name(f".{other.name}.tmp")
                shutil.rmtree(gone, ignore_errors=True)
                os.replace(other, gone)
                shutil.rmtree(gone, ignore_errors=True)


def _checksum(file: Path) -> tuple[int, str]:
    return file.stat().st_size, content_hash(file)
