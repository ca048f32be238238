"""Reading, atomic writing and locking of files, with errors in one line that name the file."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from io import FileIO
from pathlib import Path
from typing import Any, TextIO, TypeVar, cast

from filelock import FileLock, Timeout

from hierspec.errors import HierspecError

T = TypeVar("T")
_SETTLED_AFTER = 2.0  # seconds


def write_atomically(
    path: Path, content: str | bytes | Callable[[Path], object], noun: str
) -> None:
    """Write a file atomically: an interruption leaves the old file or the new one, never a part.

    The content is written beside ``path`` and renamed. A missing folder is created. A link stays a
    link, and devices and pipes (``/dev/null``) are written to directly.

    Args:
        content: the content, or a function that writes it to the path it receives.
        noun: the content's name in the error: ``results``.

    Raises:
        HierspecError: the file cannot be written.
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
        raise _write_error(noun, path, error) from None
    finally:
        if temporary is not None:
            with contextlib.suppress(OSError):  # usually it was renamed
                temporary.unlink()


class _NamedFile:
    """A file of text that keeps nothing back, and whose errors name it."""

    def __init__(self, file: FileIO, path: Path, noun: str) -> None:
        self._file, self._path, self._noun = file, path, noun

    def write(self, text: str) -> int:
        rest = memoryview(text.encode())
        try:
            while rest:  # a full disk may take a part of it: then the next call fails
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            raise _write_error(self._noun, self._path, error) from None
        return len(text)

    def flush(self) -> None:
        pass


@contextlib.contextmanager
def text_stream(path: Path, noun: str) -> Iterator[TextIO]:
    """Open a file for writing text piece by piece; an interruption keeps what is already written.

    Args:
        noun: the content's name in the error: ``the trace``.

    Raises:
        HierspecError: the file cannot be opened or, later, written to.
    """
    try:
        file = path.open("wb", buffering=0)
    except (OSError, ValueError) as error:
        raise _write_error(noun, path, error) from None
    with file:
        yield cast(TextIO, _NamedFile(file, path, noun))


def read_text(path: Path, noun: str, fix: str = "") -> str:
    """Return the text of a UTF-8 file, without a byte order mark.

    Args:
        noun: the file's name in the error: ``the case``.
        fix: the end of the error: what to do about it.

    Raises:
        HierspecError: the file cannot be read, or is not UTF-8 text.
    """
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise HierspecError(f"{path}: not a text file{fix}") from None
    except (OSError, ValueError) as error:
        raise HierspecError(f"cannot read {noun} {str(path)!r}: {_reason(error)}{fix}") from None


def read_bytes(path: Path, noun: str) -> bytes:
    """Return the bytes of a file; errors call what it holds ``noun``: ``prompts``.

    Raises:
        HierspecError: the file cannot be read.
    """
    try:
        return path.read_bytes()
    except (OSError, ValueError) as error:
        raise HierspecError(f"cannot read {noun} from {path}: {_reason(error)}") from None


def decode_utf8(body: bytes, source: str) -> str:
    """Return a file's bytes as text, without a byte order mark.

    Raises:
        HierspecError: they are not UTF-8; names ``source`` and the line.
    """
    try:
        return body.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = body[: error.start].count(b"\n") + 1
        raise HierspecError(f"{source}, line {line}: not UTF-8 text") from None


def expand_user(path: str | Path) -> Path:
    """Expand ``~`` to the user's home folder; return the path unchanged if there is none."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def without_folders(name: str) -> str:
    """Strip a level's name of its model's folders: they are long, and clients must not see them.

    After the model, the name says what the level makes of it: ``@layer``, ``:int8``,
    ``~layers kept/depth``.
    """
    for end in (len(name), *(i for i in range(len(name) - 1, 0, -1) if name[i] in "@:~")):
        path = Path(name[:end])
        if path.exists():
            return path.name + name[end:]
    return name


def json_digest(value: Any) -> str:
    """Return 20 hexadecimal digits, fit for a file's name, that identify a value JSON can hold."""
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def validate_writable(path: Path, noun: str, fix: str = "name another file") -> None:
    """Check, leaving nothing behind, that :func:`write_atomically` will be able to write a file.

    A missing folder counts as writable if the nearest existing one above it is.

    Args:
        noun: the content's name in the error.
        fix: the end of the error: what to do about it.

    Raises:
        HierspecError: the path cannot be written, or is a folder.
    """
    if os.path.isdir(path):
        raise HierspecError(f"cannot write {noun} to {path}: it is a folder; name a file in it")
    if not _is_special(path):
        validate_folder_writable(path.resolve().parent, path, noun, fix)


def validate_folder_writable(
    folder: Path, path: Path, noun: str, fix: str = "name another folder"
) -> None:
    """Check that files can be created in a folder, which may itself have to be created first.

    Args:
        path: the path the user gave, for the error.
    """
    existing = folder.resolve()
    try:
        while not existing.exists():
            existing = existing.parent
        if not existing.is_dir():
            raise HierspecError(f"cannot write {noun} to {path}: {existing} is not a folder; {fix}")
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        raise HierspecError(
            f"cannot write {noun} to {path}: no file can be made in {existing} "
            f"({error.strerror}); {fix}"
        ) from None


@contextlib.contextmanager
def locked(path: Path, noun: str, message: str) -> Iterator[None]:
    """Hold a lock that keeps other processes off a file, by ``.NAME.lock`` beside it.

    The system frees the lock of a process that ends, however it ends: the empty file that a killed
    process leaves behind locks nobody out. Devices and pipes (``/dev/null``) are not locked.

    Args:
        noun: the content's name in the error of a folder that cannot be written to.
        message: the error's text if another process holds the lock.

    Raises:
        HierspecError: another process holds the lock, or the folder cannot be written to.
    """
    if _is_special(path):
        yield
        return
    validate_writable(path, noun)
    real = path.resolve()
    lock = FileLock(real.with_name(f".{real.name}.lock"), timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise HierspecError(message) from None
    except OSError as error:
        raise HierspecError(f"cannot lock {path}: {error.strerror}") from None
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # some systems refuse to delete an open file
            Path(lock.lock_file).unlink()  # before release: whoever has just opened it tries again
        lock.release()


def make_room(folder: Path, num_bytes: int, most: int) -> None:
    """Delete files of a folder, the oldest first, so that with new bytes it has ``most`` of them.

    Raises:
        OSError: a file cannot be deleted.
    """
    sizes: dict[Path, os.stat_result] = {}
    for file in folder.iterdir() if folder.is_dir() else ():
        with contextlib.suppress(FileNotFoundError):  # another process writes or deletes here
            sizes[file] = file.stat()
    total = num_bytes + sum(status.st_size for status in sizes.values())
    for file, status in sorted(sizes.items(), key=lambda item: item[1].st_mtime):
        if total > most and not file.name.startswith("."):  # those are being written, or locks
            file.unlink(missing_ok=True)  # who has mapped it keeps it
            total -= status.st_size


def file_state(path: Path) -> list[Any] | None:
    """Return what changes with a file: where it is, its size and its times.

    The time of its last change of any kind (``st_ctime``) is among them, which copying with times
    kept, or setting them, does not set back. ``None``: it changed so lately that it may change
    again within the resolution of its file system's clock.

    Raises:
        OSError: there is no such file.
    """
    status = path.stat()
    if time.time() - max(status.st_ctime, status.st_mtime) < _SETTLED_AFTER:
        return None
    numbers = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    return [str(path.resolve()), *numbers]


def cache_folder(part: str) -> Path:
    """Return ``$HIERSPEC_CACHE/part``, else ``hierspec/part`` in the user's cache folder.

    Raises:
        HierspecError: the variable is not set, and the user has no home folder.
    """
    base = os.environ.get("HIERSPEC_CACHE")
    if base:
        return expand_user(base) / part
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


def _write_error(noun: str, path: Path, error: Exception) -> HierspecError:
    return HierspecError(f"cannot write {noun} to {path}: {_reason(error)}")


def _reason(error: Exception) -> object:
    return getattr(error, "strerror", None) or error  # a null byte in a path is a ValueError


def _is_special(path: Path) -> bool:
    # pathlib's raise where a folder may not be entered, before Python 3.14
    return os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path)
