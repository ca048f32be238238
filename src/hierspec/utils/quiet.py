"""Silence for as long as something loads: warnings and transformers' reports, then all as it was.

Filters of warnings and levels of loggers belong to the whole process. One thread at a time changes
them: of two that overlap, the second would save what the first had set, and leave that behind.
"""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Generator

_lock = threading.RLock()


@contextlib.contextmanager
def no_warnings(category: type[Warning] = Warning) -> Generator[None]:
    """Ignore warnings inside; other threads that want the same wait."""
    with _lock, warnings.catch_warnings():
        warnings.simplefilter("ignore", category)
        yield


@contextlib.contextmanager
def quiet_transformers() -> Generator[None]:
    """Turn off the progress bars, reports and warnings of transformers: only the command line
    writes to the terminal."""
    from transformers.utils import logging

    logger = logging.get_logger()  # the library's own, configured
    with _lock:
        level, bars = logger.level, logging.is_progress_bar_enabled()
        logging.set_verbosity_error()
        # Not by disable_progress_bar, which also changes huggingface_hub's bars.
        setattr(logging, "_tqdm_active", False)  # noqa: B010
        try:
            with no_warnings(FutureWarning):
                yield
        finally:
            logger.setLevel(level)
            setattr(logging, "_tqdm_active", bars)  # noqa: B010
