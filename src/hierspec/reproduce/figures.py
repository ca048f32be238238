"""A figure as data: curves or a grid of numbers, drawn by :mod:`hierspec.reproduce.drawing`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Curve:
    """y over x. ``kind``: ``line``, ``points`` or ``bars``; ``spread``: ± around each y."""

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
        x, y: what the axes show, with units.
        notes: what to see in it, and what differs from the paper's.
    """

    name: str
    caption: str
    x: str
    y: str
    curves: tuple[Curve, ...] = ()
    grid: Grid | None = None
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        out: dict[str, Any] = {
            "name": self.name,
            "caption": self.caption,
            "x": self.x,
            "y": self.y,
            "notes": list(self.notes),
        }
        if self.grid is not None:
            return {
                **out,
                "grid": {
                    "rows": list(self.grid.rows),
                    "columns": list(self.grid.columns),
                    "values": [list(row) for row in self.grid.values],
                },
            }
        curves = [
            {"label": c.label, "kind": c.kind, "x": list(c.x), "y": list(c.y)}
            | ({"spread": list(c.spread)} if c.spread else {})
            for c in self.curves
        ]
        return {**out, "curves": curves}
