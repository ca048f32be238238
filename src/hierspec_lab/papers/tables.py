"""Results of a reproduction as data: tables with printed and computed cells, and figures.

Figures are curves or a grid of numbers, drawn by :mod:`hierspec_lab.papers.drawing`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Curve:
    """Values y over x; ``kind``: ``line``, ``points`` or ``bars``; ``spread``: ± around each y."""

    label: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    kind: str = "line"
    spread: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Grid:
    """A heat map: ``values[row][column]``; ``None`` where there is none."""

    rows: tuple[str, ...]
    columns: tuple[str, ...]
    values: tuple[tuple[float | None, ...], ...]


@dataclass(frozen=True, slots=True)
class Figure:
    """One picture: curves, or a grid.

    Attributes:
        name: as in the paper: ``Figure 7``.
        x, y: titles of the axes, with units.
        notes: how to read it, and how it differs from the paper's.
    """

    name: str
    caption: str
    x: str
    y: str
    curves: tuple[Curve, ...] = ()
    grid: Grid | None = None
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        out = _listed(asdict(self))
        if self.grid is not None:
            del out["curves"]
            return out
        del out["grid"]
        for curve in out["curves"]:
            if not curve["spread"]:
                del curve["spread"]
        return out


def _listed(value: Any) -> Any:
    """Convert tuples to lists, as JSON reads them back."""
    if isinstance(value, dict):
        return {key: _listed(inner) for key, inner in value.items()}
    return [_listed(inner) for inner in value] if isinstance(value, tuple | list) else value


@dataclass(frozen=True, slots=True)
class Cell:
    """A printed number and the one computed here.

    Attributes:
        printed: the text as printed, whose digits give its precision.
        detail: what the computed number is of, such as a hierarchy or data set.
    """

    printed: str
    computed: float
    detail: str = ""

    @property
    def decimals(self) -> int:
        return len(self.printed.partition(".")[2])

    @property
    def rounded(self) -> str:
        """The computed number at the precision of the printed one."""
        return f"{self.computed:.{self.decimals}f}"

    @property
    def matches(self) -> bool:
        return self.rounded == self.printed

    @property
    def units(self) -> int:
        """Computed less printed, in units of the last printed digit."""
        return round((float(self.rounded) - float(self.printed)) * 10**self.decimals)


@dataclass(frozen=True, slots=True)
class TableRow:
    """A row: its label, cells with printed numbers, and numbers that were not printed."""

    label: str
    cells: tuple[Cell, ...]
    extra: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Table:
    """A table: a column of labels, a column for each cell of a row, and one for each ``extra``.

    Attributes:
        label: title of the labels' column.
        columns: titles of the cells' columns.
        extra: titles of the columns of numbers that were not printed.
        inputs: what the numbers are computed from, ready for JSON.
        grid: whether it has so many cells of one kind that printed ones do not fit beside them.
        compared: whether printed numbers come from the same inputs, so that cells should match;
            of other models and machines, only their shape can be compared.
        notes: why cells differ, and how the paper's text was understood.
    """

    name: str
    caption: str
    label: str
    columns: tuple[str, ...]
    rows: tuple[TableRow, ...]
    extra: tuple[str, ...] = ()
    inputs: dict[str, Any] = field(default_factory=dict)
    grid: bool = False
    compared: bool = True
    notes: tuple[str, ...] = ()

    def cells(self) -> Iterator[Cell]:
        for row in self.rows:
            yield from row.cells

    @property
    def matching(self) -> int:
        return sum(cell.matches for cell in self.cells())

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "caption": self.caption,
            "cells": sum(1 for _ in self.cells()),
            "matching_cells": self.matching if self.compared else None,
            "inputs": self.inputs,
            "rows": [
                {
                    self.label: row.label,
                    **{
                        column: {
                            "printed": float(cell.printed),
                            "computed": cell.computed,
                            **(
                                {"matches": cell.matches, "units_off": cell.units}
                                if self.compared
                                else {}
                            ),
                            **({"detail": cell.detail} if cell.detail else {}),
                        }
                        for column, cell in zip(self.columns, row.cells, strict=True)
                    },
                    **dict(zip(self.extra, row.extra, strict=True)),
                }
                for row in self.rows
            ],
            "notes": list(self.notes),
        }


@dataclass(frozen=True, slots=True)
class Reproduction:
    """All tables and figures of one name.

    Attributes:
        what: one of :data:`hierspec_lab.papers.NAMES`.
        measured_on: models, prompts, machine, versions and commit, where models ran.
        record: observations, run by run, from which all numbers can be computed again.
    """

    what: str
    tables: tuple[Table, ...] = ()
    figures: tuple[Figure, ...] = ()
    measured_on: dict[str, Any] = field(default_factory=dict)
    record: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        compared = [table for table in self.tables if table.compared]
        return {
            "schema_version": 1,
            "what": self.what,
            "cells": sum(1 for table in compared for _ in table.cells()),
            "matching_cells": sum(table.matching for table in compared),
            "tables": [table.to_dict() for table in self.tables],
            "figures": [figure.to_dict() for figure in self.figures],
            **({"measured_on": self.measured_on} if self.measured_on else {}),
            **({"record": self.record} if self.record else {}),
        }
