"""What goes wrong through no fault of the program: one clear line that names the fix."""

from __future__ import annotations


class HierspecError(ValueError):
    """A user's mistake, told in one line with what to do about it.

    The command line prints only these as one line; any other exception is a bug of ours, and
    keeps its traceback for whoever reports it.
    """
