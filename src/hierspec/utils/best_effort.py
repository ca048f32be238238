"""Work that may fail without harm to what follows: what it raises is logged, and nothing more."""

from __future__ import annotations

import contextlib
import logging
from types import TracebackType

from hierspec.errors import FAILURES

log = logging.getLogger(__name__)


class best_effort:  # noqa: N801 - used like contextlib.suppress
    """A context manager that logs any error inside it, and goes on after it.

    That includes :class:`SystemExit`, but no interrupt: it is for work that has to go on.

    Args:
        work: for the log: ``"closing a file"``.
    """

    def __init__(self, work: str) -> None:
        self._work = work

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        if isinstance(error, FAILURES):
            with contextlib.suppress(*FAILURES):  # a log that fails, too
                log.error("%s failed", self._work, exc_info=error)
        return isinstance(error, FAILURES)
