"""What is the user's to fix: one kind of error, and one of warning."""

from __future__ import annotations


class HierspecError(ValueError):
    """A user's mistake: one line that says what is wrong, where, and what to do about it.

    The command line prints these alone; a ``ValueError`` of any other kind is a bug of ours, and
    ``--debug`` shows its traceback. What libraries raise about files and models is re-raised as
    this where it enters.
    """


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or its type where it has none."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


class HierspecWarning(Warning):
    """What works, and is probably not what was meant; the command line prints it as a note."""
