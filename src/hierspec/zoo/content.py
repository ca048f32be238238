"""Hashes of whole files, remembered in the user's cache until a file changes.

Reading a checkpoint of many gigabytes takes too long to be done at every start, and its ends alone
do not tell it from another of the same size. So the hash of a file is kept under its path, size and
times.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from pathlib import Path

from hierspec.errors import HierspecError
from hierspec.utils.files import cache_folder, file_state, json_digest, make_room, write_atomically

_MOST = 1 << 16  # bytes of all hashes, 64 each
_HASH = re.compile(r"[0-9a-f]{64}")


def content_hash(path: Path) -> str:
    """Return the SHA-256 of a file.

    Raises:
        HierspecError: the file cannot be read.
    """
    try:
        known = _known_as(path)
        if known is not None and (found := _read(known)):
            return found
        with path.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
        if known is not None and known == _known_as(path):  # it did not change meanwhile
            with contextlib.suppress(HierspecError, OSError):  # then it is hashed again
                make_room(known.parent, len(digest), _MOST)
                write_atomically(known, digest, "the hash of a file")
        return digest
    except OSError as error:
        raise HierspecError(f"cannot read {path}: {error.strerror or error}") from None


def _known_as(path: Path) -> Path | None:
    """Return where the hash of a file in its present state is kept; ``None``: nowhere, as yet."""
    state = file_state(path)
    if state is None:
        return None
    try:
        return cache_folder("hashes") / json_digest(state)
    except HierspecError:  # no home folder
        return None


def _read(known: Path) -> str | None:
    try:
        found = known.read_text()
    except (OSError, UnicodeDecodeError):
        return None
    return found if _HASH.fullmatch(found) else None
