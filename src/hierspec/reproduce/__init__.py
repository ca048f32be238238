"""The papers' tables, computed again beside what was printed."""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from importlib import import_module

from .tables import Cell, Reproduction, Row, Table

__all__ = ["NAMES", "Cell", "Reproduction", "Row", "Table", "reproduce"]

_MODULES = {  # each with ``compute() -> Reproduction``
    "p1-tables": "p1_tables",
    "p1-simulation": "p1_simulation",
    "p2-orders": "p2_orders",
}
NAMES = tuple(_MODULES)


def reproduce(what: str) -> Reproduction:
    """Compute one of :data:`NAMES`.

    Raises:
        ValueError: there is none of that name.
    """
    if what not in _MODULES:
        near = get_close_matches(what, NAMES, 1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise ValueError(f"nothing to reproduce named {what!r}{hint}; there is: {', '.join(NAMES)}")
    compute: Callable[[], Reproduction] = import_module(f".{_MODULES[what]}", __name__).compute
    return compute()
