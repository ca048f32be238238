"""``hierspec reproduce``: the papers' tables, printed and computed, side by side."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from ..reproduce import Cell, Reproduction, Table, reproduce

_DIFFERS = "bold red"
_WIDTH = 100  # where nobody says how wide the output is


def run(what: str, as_json: bool, output: Path | None) -> int:
    """Compute and print; ``output`` gets the JSON object as well. Always 0: it is no check."""
    found = reproduce(what)
    if output is not None:
        output.write_text(json.dumps(found.to_dict(), indent=2) + "\n", encoding="utf-8")
    if as_json:
        print(json.dumps(found.to_dict()))
        return 0
    console = Console()
    if not console.is_terminal:
        console = Console(width=_WIDTH)
    for part in pictures(found):
        console.print(part)
    return 0


def pictures(found: Reproduction) -> Iterable[Grid | Text]:
    """Every table with its inputs, its notes, and how many cells match."""
    for table in found.tables:
        yield Text(f"\n{table.name}: {table.caption}", style="bold")
        yield from _inputs(table)
        yield _grid(table) if table.grid else _side_by_side(table)
        cells = list(table.cells())
        if cells and table.compared:
            text = Text(f"{table.matching} of {len(cells)} printed cells match")
            if table.matching < len(cells):
                text.append("; ≠ marks the others", style=_DIFFERS)
            yield text
        for note in table.notes:
            yield Text(f"• {note}", style="dim")


def _inputs(table: Table) -> Iterable[Grid]:
    """Costs and acceptance rates, where they are a list and a square (Tables 6 and 7)."""
    costs, rates = table.inputs.get("costs"), table.inputs.get("acceptance")
    if not isinstance(costs, list) or not isinstance(rates, list):
        return
    grid = _empty("inputs: model", "cost", *(f"by M{i + 2}" for i in range(len(costs) - 1)))
    for i, (cost, row) in enumerate(zip(costs, rates, strict=True)):
        shown = ("" if rate is None else f"{rate:.3f}" for rate in row[1:])
        grid.add_row(f"M{i + 1}", f"{cost:g}", *shown)
    yield grid


def _side_by_side(table: Table) -> Grid:
    pairs = [name for column in table.columns for name in (f"{column}\nprinted", "\ncomputed")]
    grid = _empty(table.label, *pairs, *(name.replace("_", " ") for name in table.extra))
    for row in table.rows:
        shown: list[str | Text] = []
        for cell in row.cells:
            differs = table.compared and not cell.matches
            style, mark = (_DIFFERS, "≠ ") if differs else ("", "")
            shown += [cell.printed, Text(f"{mark}{cell.rounded}", style=style)]
        grid.add_row(row.label, *shown, *map(_plainly, row.extra))
    return grid


def _grid(table: Table) -> Grid:
    """Computed numbers, what they belong to, and below them the printed ones that differ."""
    grid = _empty(table.label, *table.columns)
    for row in table.rows:
        grid.add_row(row.label, *(_cell(cell) for cell in row.cells))
    return grid


def _cell(cell: Cell) -> Text:
    # The target stands first in every hierarchy: the others tell them apart.
    others = cell.detail.replace("-", "")[1:]
    text = Text(f"{cell.rounded} {others:<2}", style="" if cell.matches else _DIFFERS)
    if not cell.matches:
        text.append(f"\n≠{cell.printed}   ")
    return text


def _empty(first: str, *others: str) -> Grid:
    grid = Grid(box=None, pad_edge=False, header_style="dim")
    grid.add_column(first)
    for name in others:
        grid.add_column(name, justify="right")
    return grid


def _plainly(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4f}"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
