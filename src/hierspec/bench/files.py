"""Files that are there as a whole or not at all."""

from __future__ import annotations

import contextlib
import os
import uuid
from pathlib import Path


def write_whole(path: Path, content: str | bytes, what: str) -> None:
    """Write beside ``path``, then rename: an interruption leaves the old file or the new one.

    The folder is made where it is missing. A link stays one, and what is no file (``/dev/null``, a
    pipe) is written to as it is.

    Args:
        what: the content's name for the error: ``results``.

    Raises:
        ValueError: it cannot be written.
    """
    data = content.encode("utf-8") if isinstance(content, str) else content
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path = path.resolve()
        if path.exists() and not path.is_file() and not path.is_dir():
            path.write_bytes(data)
            return
        temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
        temporary.write_bytes(data)
        os.replace(temporary, path)
    except OSError as error:
        raise ValueError(f"cannot write {what} to {path}: {error.strerror}") from None
    finally:
        if temporary is not None:
            with contextlib.suppress(OSError):  # renamed, as a rule
                temporary.unlink()
