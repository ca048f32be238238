"""Functions of rows that answer from memory while an enumeration asks them again and again.

A generation decides on rows that it never sees again. To enumerate all drafts and all results of a
rule's tests, the same rule is run on the same few rows thousands of times, so that most of its
arithmetic was done before. Rows are told apart by identity: a row that came from memory is the very
tensor that it was before, and so finds what was computed from it.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Generator
from contextvars import ContextVar
from typing import Any, ParamSpec, TypeVar

_MAX_ENTRIES = 1 << 16  # then all is forgotten: on large cases most rows are met once

_results: ContextVar[dict[Any, Any] | None] = ContextVar("results of functions of rows")
_Args = ParamSpec("_Args")
_Result = TypeVar("_Result")


@contextlib.contextmanager
def remembered_rows() -> Generator[None]:
    """Let the functions marked by :func:`remembers` keep their results inside this context."""
    token = _results.set({})
    try:
        yield
    finally:
        _results.reset(token)


def remembers(function: Callable[_Args, _Result]) -> Callable[_Args, _Result]:
    """Mark a function of rows [V], numbers and tuples that changes none and has no effects."""

    @functools.wraps(function)
    def call(*args: _Args.args, **kwargs: _Args.kwargs) -> _Result:
        results = _results.get(None)
        if results is None or kwargs:
            return function(*args, **kwargs)
        key = (function, *args)
        if key not in results:
            if len(results) >= _MAX_ENTRIES:
                results.clear()
            results[key] = function(*args, **kwargs)
        return results[key]

    return call
