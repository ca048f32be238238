"""Files that are there as a whole or not at all, and places that can be written to."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO, TypeVar, cast

from filelock import FileLock, Timeout

from hierspec.errors import HierspecError

T = TypeVar("T")


def write_whole(path: Path, content: str | bytes | Callable[[Path], object], what: str) -> None:
    """Write beside ``path``, then rename: an interruption leaves the old file or the new one.

    The folder is made where it is missing. A link stays one, and what is no file (``/dev/null``, a
    pipe) is written to as it is.

    Args:
        content: what the file holds, or what writes it to the path it is called with.
        what: the content's name for the error: ``results``.

    Raises:
        HierspecError: it cannot be written.
    """
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path = path.resolve()
        if _is_special(path):
            _write(path, content)
            return
        temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
        _write(temporary, content)
        os.replace(temporary, path)
    except (OSError, ValueError) as error:  # a null byte in the path is a ValueError
        if isinstance(error, HierspecError):
            raise
        why = getattr(error, "strerror", None) or error
        raise HierspecError(f"cannot write {what} to {path}: {why}") from None
    finally:
        if temporary is not None:
            with contextlib.suppress(OSError):  # renamed, as a rule
                temporary.unlink()


class _NamedStream:
    """A text stream that names its file where it cannot be written."""

    def __init__(self, stream: TextIO, path: Path, what: str) -> None:
        self._stream, self._place = stream, f"{what} to {path}"

    def write(self, text: str) -> int:
        return self._tried(lambda: self._stream.write(text))

    def flush(self) -> None:
        self._tried(self._stream.flush)

    def close(self) -> None:
        self._tried(self._stream.close)

    def _tried(self, work: Callable[[], T]) -> T:
        try:
            return work()
        except OSError as error:
            with contextlib.suppress(OSError):  # what is left must not be tried again at exit
                self._stream.detach()  # type: ignore[attr-defined]
            raise HierspecError(f"cannot write {self._place}: {error.strerror}") from None


@contextlib.contextmanager
def text_stream(path: Path, what: str) -> Iterator[TextIO]:
    """Open a file to write text to as it comes: what is written stays after an interruption.

    Args:
        what: the content's name for the error: ``the trace``.

    Raises:
        HierspecError: it cannot be opened, or later not be written; names the file.
    """
    try:
        opened = path.open("w", encoding="utf-8")
    except (OSError, ValueError) as error:  # a null byte in the path is a ValueError
        why = getattr(error, "strerror", None) or error
        raise HierspecError(f"cannot write {what} to {path}: {why}") from None
    stream = _NamedStream(opened, path, what)
    try:
        yield cast(TextIO, stream)
    except BaseException:
        with contextlib.suppress(HierspecError, ValueError):
            stream.close()
        raise
    stream.close()


def read_text(path: Path, what: str, fix: str = "") -> str:
    """The UTF-8 text of a file.

    Args:
        what: the file's name for the error: ``the case``.
        fix: what to do about it.

    Raises:
        HierspecError: it cannot be read, or is no text.
    """
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise HierspecError(f"{path}: not a text file{fix}") from None
    except (OSError, ValueError) as error:  # a null byte in the path is a ValueError
        why = getattr(error, "strerror", None) or error
        raise HierspecError(f"cannot read {what} {str(path)!r}: {why}{fix}") from None


def expand_user(path: str | Path) -> Path:
    """A path whose ``~`` is the user's folder; as it is, where there is no such user."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def file_key(value: Any) -> str:
    """A short name for a file, from anything that can be written as JSON."""
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def probe(path: Path, what: str, fix: str = "name another file") -> None:
    """Refuse a file that :func:`write_whole` could not write later; nothing is left behind.

    Missing folders count as writable where the nearest that is there is.

    Args:
        what: the content's name for the error.
        fix: what to do about it.

    Raises:
        HierspecError: as :func:`write_whole`, or the path is a folder.
    """
    if path.is_dir():
        raise HierspecError(f"cannot write {what} to {path}: it is a folder; name a file in it")
    if not _is_special(path):
        probe_folder(path.resolve().parent, path, what, fix)


def probe_folder(folder: Path, path: Path, what: str, fix: str = "name another folder") -> None:
    """Refuse a folder, there or yet to be made, in which no file can be made.

    Args:
        path: what the user has called it.

    Raises:
        HierspecError: it names the path.
    """
    there = folder.resolve()
    try:
        while not there.exists():
            there = there.parent
        if not there.is_dir():
            raise HierspecError(f"cannot write {what} to {path}: {there} is not a folder; {fix}")
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        raise HierspecError(
            f"cannot write {what} to {path}: no file can be made in {there} "
            f"({error.strerror}); {fix}"
        ) from None


@contextlib.contextmanager
def locked(path: Path, what: str, taken: str) -> Iterator[None]:
    """Keep other processes off a file, by a lock on ``.NAME.lock`` beside it.

    The system frees the lock of a process that ends, however it ends: the empty file that a killed
    one leaves behind keeps nobody off. What is no file (``/dev/null``, a pipe) is not locked.

    Args:
        what: the content's name for the error.
        taken: the error where another process holds the lock.

    Raises:
        HierspecError: another process holds it, or the folder cannot be written to.
    """
    if path.exists() and not path.is_file():
        yield
        return
    probe(path, what)
    real = path.resolve()
    lock = FileLock(real.with_name(f".{real.name}.lock"), timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise HierspecError(taken) from None
    except OSError as error:
        raise HierspecError(f"cannot lock {path}: {error.strerror}") from None
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # some systems keep files that are open
            Path(lock.lock_file).unlink()  # while held: who has just opened it tries again
        lock.release()


def cache_folder(part: str) -> Path:
    """``$HIERSPEC_CACHE/part``, else ``hierspec/part`` below the user's cache folder.

    Raises:
        HierspecError: the user has no home folder, and the variable names no other.
    """
    base = os.environ.get("HIERSPEC_CACHE")
    if base:
        return Path(base) / part
    try:
        caches = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    except RuntimeError:
        raise HierspecError(
            f"there is no home folder to keep {part} in; set HIERSPEC_CACHE to a folder that can "
            "be written"
        ) from None
    return caches / "hierspec" / part


def _write(path: Path, content: str | bytes | Callable[[Path], object]) -> None:
    if callable(content):
        content(path)
    else:
        path.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)


def _is_special(path: Path) -> bool:
    return path.exists() and not path.is_file() and not path.is_dir()
