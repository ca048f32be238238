"""The error and the warning for what the user can fix."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

log = logging.getLogger(__name__)


class HierspecError(ValueError):
    """A user's mistake: one line that says what is wrong, where, and what to do about it.

    The command line prints these alone; a ``ValueError`` of any other kind is a bug of ours, and
    ``--debug`` shows its traceback. Errors of libraries about files and models are
    re-raised as this one where they are called.
    """


@contextlib.contextmanager
def errors_in(place: object) -> Iterator[None]:
    """Name the place of a user's mistake that is found inside: ``levels.json: …``."""
    try:
        yield
    except HierspecError as error:
        raise HierspecError(f"{place}: {error}") from None


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or its type where it has none."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def reason_of(error: BaseException) -> str:
    """Return why transformers cannot load something, in one line."""
    if "trust_remote_code" in str(error):
        return "it needs code that comes with it, and hierspec runs none"
    text, _, _ = " ".join(str(error).split()).partition(" Model type should be one of")
    return text or type(error).__name__


# What a piece of work may fail with, whosever it is: a user's function may exit. Interrupts of the
# whole process are none of these, and go through.
FAILURES = (Exception, SystemExit)


@contextlib.contextmanager
def best_effort(work: str) -> Iterator[None]:
    """Log any failure inside, and go on after it: for work without which what follows is as good.

    Args:
        work: for the log: ``"closing a file"``.
    """
    try:
        yield
    except FAILURES as error:
        with contextlib.suppress(*FAILURES):  # a log that fails, too
            log.error("%s failed", work, exc_info=error)


def as_exception(error: BaseException) -> Exception:
    """Return an error that may be raised anywhere: ``SystemExit`` of a user's function as one that
    ends no process."""
    if isinstance(error, Exception):
        return error
    wrapped = RuntimeError(f"{type(error).__name__}: {error}")
    wrapped.__cause__ = error
    return wrapped


class HierspecWarning(Warning):
    """Something works and is probably not what was meant; the command line prints a note."""
