"""The error and the warning for what the user can fix."""

from __future__ import annotations


class HierspecError(ValueError):
    """A user's mistake: one line that says what is wrong, where, and what to do about it.

    The command line prints these alone; a ``ValueError`` of any other kind is a bug of ours, and
    ``--debug`` shows its traceback. Errors of libraries about files and models are
    re-raised as this one where they are called.
    """


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or its type where it has none."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


class HierspecWarning(Warning):
    """Something works and is probably not what was meant; the command line prints a note."""
