"""Rules whose arithmetic is remembered while an enumeration asks for it again and again.

A generation decides on rows that it never sees again. To enumerate all drafts and all results of a
rule's tests, the same rule is run on the same few rows thousands of times, so that most of its
arithmetic was done before. Rows are told apart by identity: a row that came from memory is the very
tensor that it was before, and so finds what was computed from it.

The rules know nothing of it: their functions of rows are replaced for as long as an enumeration
lasts, and other threads, which may be generating, get the functions themselves.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Generator
from types import ModuleType
from typing import Any

from hierspec.verifiers import multi_draft, rows, traversal

_MAX_ENTRIES = 1 << 16  # then all is forgotten: on large cases most rows are met once

# Functions of rows [V], numbers and tuples that change none and have no effects, under the names by
# which each module calls them.
_FUNCTIONS: tuple[tuple[ModuleType, tuple[str, ...]], ...] = (
    (rows, ("dense_residual",)),
    (multi_draft, ("mass", "normalised", "token_prob")),
    (traversal, ("mass", "normalised", "token_prob")),
)
_lock = threading.RLock()


@contextlib.contextmanager
def remembered_rows() -> Generator[None]:
    """Let the rules' functions of rows keep their results inside this context, in this thread."""
    results: dict[Any, Any] = {}
    owner = threading.get_ident()

    def remembering(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any) -> Any:
            if threading.get_ident() != owner:
                return function(*args)
            key = (function, *args)
            if key not in results:
                if len(results) >= _MAX_ENTRIES:
                    results.clear()
                results[key] = function(*args)
            return results[key]

        return call

    with _lock, contextlib.ExitStack() as restored:
        for module, names in _FUNCTIONS:
            for name in names:
                function = getattr(module, name)
                restored.callback(setattr, module, name, function)
                setattr(module, name, remembering(function))
        yield
