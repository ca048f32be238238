"""One bench at a time on a results file."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from ..files import probe


@contextlib.contextmanager
def locked(path: Path | None) -> Iterator[None]:
    """Keep other benches off a results file, by a lock on ``.NAME.lock`` beside it.

    The system frees the lock of a process that ends, however it ends: the empty file that a killed
    one leaves behind keeps nobody off. What is no file (``/dev/null``, a pipe) is not locked.

    Raises:
        ValueError: another process holds it, or the folder cannot be written to.
    """
    if path is None or (path.exists() and not path.is_file()):
        yield
        return
    probe(path, "results")
    real = path.resolve()
    lock = FileLock(real.with_name(f".{real.name}.lock"), timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise ValueError(
            f"another bench is writing {path}: wait for it to end, or choose another -o"
        ) from None
    except OSError as error:
        raise ValueError(f"cannot lock {path}: {error.strerror}") from None
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # some systems keep files that are open
            Path(lock.lock_file).unlink()  # while held: who has just opened it tries again
        lock.release()
