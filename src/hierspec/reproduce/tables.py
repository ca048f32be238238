"""A printed table beside the computed one, cell by cell."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Cell:
    """A printed number and the one computed here.

    Attributes:
        printed: as printed, so that its digits say how precise it is.
        detail: what the computed number belongs to.
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
class Row:
    """A row: its label, cells that were printed, and what is only computed."""

    label: str
    cells: tuple[Cell, ...]
    extra: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Table:
    """Columns are ``label``, one per cell, one per extra.

    Attributes:
        inputs: what the numbers are computed from, ready for JSON.
        grid: the cells are of one kind, too many to stand beside the printed ones.
        notes: why cells differ, and how the text was read.
    """

    name: str
    caption: str
    label: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    extra: tuple[str, ...] = ()
    inputs: dict[str, Any] = field(default_factory=dict)
    grid: bool = False
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
            "matching_cells": self.matching,
            "inputs": self.inputs,
            "rows": [
                {
                    self.label: row.label,
                    **{
                        column: {
                            "printed": float(cell.printed),
                            "computed": cell.computed,
                            "matches": cell.matches,
                            "units_off": cell.units,
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
    """All tables of one kind."""

    what: str
    tables: tuple[Table, ...]

    def to_dict(self) -> dict[str, Any]:
        return {
            "schema_version": 1,
            "what": self.what,
            "cells": sum(1 for table in self.tables for _ in table.cells()),
            "matching_cells": sum(table.matching for table in self.tables),
            "tables": [table.to_dict() for table in self.tables],
        }
