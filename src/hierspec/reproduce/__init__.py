"""The papers' tables and figures again, beside what was printed.

Some are computed from printed inputs (:data:`COMPUTED`); the others run the paper's experiment on
the models at hand (:data:`MEASURED`, with a :class:`~hierspec.reproduce.lab.Lab`).
"""

from __future__ import annotations

from difflib import get_close_matches
from importlib import import_module
from typing import Any

from .figures import Curve, Figure, Grid
from .tables import Cell, Reproduction, Row, Table

__all__ = [
    "COMPUTED",
    "MEASURED",
    "NAMES",
    "Cell",
    "Curve",
    "Figure",
    "Grid",
    "Reproduction",
    "Row",
    "Table",
    "reproduce",
]

COMPUTED = {  # name → (module with ``compute() -> Reproduction``, what it shows)
    "p1-tables": ("p1_tables", "P1 Tables 1, 8, 9: plans from the printed rates and costs"),
    "p1-simulation": ("p1_simulation", "P1 Table 5: formulas against simulation"),
    "p2-orders": ("p2_orders", "P2 Theorem 3.4: interleaved never beats horizontal"),
}
MEASURED: dict[str, tuple[str, str]] = {  # name → (module with ``measure(lab)``, what it shows)
}
NAMES = (*COMPUTED, *MEASURED)


def reproduce(what: str, lab: Any = None) -> Reproduction:
    """Compute or measure one of :data:`NAMES`.

    Args:
        lab: models and prompts (:class:`~hierspec.reproduce.lab.Lab`), for :data:`MEASURED`.

    Raises:
        ValueError: there is none of that name, or it needs models and none were given.
    """
    if what in COMPUTED:
        return import_module(f".{COMPUTED[what][0]}", __name__).compute()
    if what not in MEASURED:
        near = get_close_matches(what, NAMES, 1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise ValueError(f"nothing to reproduce named {what!r}{hint}; there is: {', '.join(NAMES)}")
    if lab is None:
        raise ValueError(f"{what} is measured on models: give a lab (hierspec.reproduce.lab.Lab)")
    return import_module(f".{MEASURED[what][0]}", __name__).measure(lab)
