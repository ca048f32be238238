"""A reproduction on a terminal: printed tables beside ours, and figures as numbers or blocks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rich.table import Table as Columns
from rich.text import Text

from hierspec_lab.plotting.tables import borderless

from .drawing import best_cell, drawable
from .tables import Cell, Figure, Grid, Reproduction, Table

_DIFFERS = "bold red"
_SPARKS = "▁▂▃▄▅▆▇█"
_MAX_SHOWN = 10  # points of a curve, and columns of a grid, that are shown one by one
_SPARKLINE_LENGTH = 40


def rendered(reproduction: Reproduction) -> Iterable[Columns | Text]:
    """Yield every table with its inputs, its notes, and how many cells match; then the figures."""
    if reproduction.measured_on:
        yield Text(_setting(reproduction.measured_on), style="dim")
    for table in reproduction.tables:
        yield Text(f"\n{table.name}: {table.caption}", style="bold")
        yield from _inputs(table)
        yield _grid(table) if table.grid else _side_by_side(table)
        cells = list(table.cells())
        if cells and table.compared:
            text = Text(f"{table.matching} of {len(cells)} printed cells match")
            if table.matching < len(cells):
                text.append("; ≠ marks the others", style=_DIFFERS)
            yield text
        elif cells:
            yield Text(
                "printed on the paper's models and machines: compare the shape, not the digits",
                style="dim",
            )
        yield from _notes(table.notes)
    for figure in reproduction.figures:
        yield Text(f"\n{figure.name}: {figure.caption}", style="bold")
        yield from _figure(figure)
        yield from _notes(figure.notes)


def _setting(measured_on: dict[str, Any]) -> str:
    """Describe models and prompts in a line."""
    prompts = measured_on.get("prompts") or {}
    dtype = measured_on.get("dtype", "auto")
    words = [
        f"measured on {measured_on.get('target')}" + ("" if dtype == "auto" else f", {dtype}"),
        f"drafts {', '.join(measured_on.get('drafts') or ()) or 'none'}",
        f"{prompts.get('count')} prompts × {measured_on.get('max_new_tokens')} tokens",
    ]
    return "; ".join(words)


def _notes(notes: Sequence[str]) -> Iterable[Text]:
    return (Text(f"• {note}", style="dim") for note in notes)


def _inputs(table: Table) -> Iterable[Columns]:
    """Yield costs and acceptance rates, if they are a list and a square (P1 Tables 6 and 7)."""
    costs, rates = table.inputs.get("costs"), table.inputs.get("acceptance")
    if not isinstance(costs, list) or not isinstance(rates, list):
        return
    grid = _columns("inputs: model", "cost", *(f"by M{i + 2}" for i in range(len(costs) - 1)))
    for i, (cost, row) in enumerate(zip(costs, rates, strict=True)):
        cells = ("" if rate is None else f"{rate:.3f}" for rate in row[1:])
        grid.add_row(f"M{i + 1}", f"{cost:g}", *cells)
    yield grid


def _side_by_side(table: Table) -> Columns:
    ours = "computed" if table.compared else "measured"
    pairs = [name for column in table.columns for name in (f"{column}\nprinted", f"\n{ours}")]
    grid = _columns(table.label, *pairs, *(name.replace("_", " ") for name in table.extra))
    for row in table.rows:
        cells: list[str | Text] = []
        for cell in row.cells:
            differs = table.compared and not cell.matches
            style, mark = (_DIFFERS, "≠ ") if differs else ("", "")
            cells += [Text(cell.printed), Text(f"{mark}{cell.rounded}", style=style)]
        grid.add_row(Text(row.label), *cells, *map(_extra_cell, row.extra))
    return grid


def _grid(table: Table) -> Columns:
    """Return a table of our numbers and their details, printed ones that differ below them."""
    grid = _columns(table.label, *table.columns)
    for row in table.rows:
        grid.add_row(Text(row.label), *(_cell(cell, table.compared) for cell in row.cells))
    return grid


def _cell(cell: Cell, compared: bool) -> Text:
    # The target is first in every hierarchy, so only the drafters are shown.
    drafters = cell.detail.replace("-", "")[1:]
    differs = compared and not cell.matches
    text = Text(f"{cell.rounded} {drafters:<2}", style=_DIFFERS if differs else "")
    if differs:
        text.append(f"\n≠{cell.printed}   ")
    elif not compared:
        text.append(f"\n({cell.printed})  ", style="dim")
    return text


def _figure(figure: Figure) -> Iterable[Columns | Text]:
    if figure.grid is not None:
        yield from _heat(figure, figure.grid)
        return
    if not figure.curves:
        yield Text("no curve", style="dim")
        return
    positions = sorted({x for curve in figure.curves for x in curve.x})
    if any(len(set(curve.x)) < len(curve.x) for curve in figure.curves):
        yield Text(f"({figure.x}, {figure.y}):", style="dim")
        for curve in figure.curves:
            pairs = (f"({_short(x)}, {_short(y)})" for x, y in zip(curve.x, curve.y, strict=True))
            yield Text(f"{curve.label}: {' '.join(pairs)}")
        return
    if len(positions) <= _MAX_SHOWN:
        yield Text(f"{figure.y}, by {figure.x}", style="dim")
        grid = _columns("", *map(_short, positions))
        for curve in figure.curves:
            values = dict(zip(curve.x, curve.y, strict=True))
            grid.add_row(Text(curve.label), *(_short(values.get(x)) for x in positions))
        yield grid
        return
    all_values = [y for curve in figure.curves for y in curve.y]
    yield Text(
        f"{figure.y}, over {figure.x} from {_short(positions[0])} to {_short(positions[-1])}",
        style="dim",
    )
    grid = _columns("", "", "first", "last", "lowest", "highest")
    for curve in figure.curves:
        if ys := curve.y:
            ends = (ys[0], ys[-1], min(ys), max(ys))
            sparks = _sparks(ys, min(all_values), max(all_values))
            grid.add_row(Text(curve.label), sparks, *map(_short, ends))
    yield grid


def _heat(figure: Figure, grid: Grid) -> Iterable[Columns | Text]:
    """Yield the heat map where it is small, and its best cell."""
    if not drawable(figure):
        yield Text("no numbers", style="dim")
        return
    row, column = best_cell(figure, grid)
    if len(grid.columns) <= _MAX_SHOWN:
        yield Text(f"{figure.y}, by {figure.x}", style="dim")
        table = _columns("", *grid.columns)
        for i, values in enumerate(grid.values):
            cells = [
                Text(_short(value), style="bold" if (i, j) == (row, column) else "")
                for j, value in enumerate(values)
            ]
            table.add_row(Text(grid.rows[i]), *cells)
        yield table
    best = f"best: {_short(grid.values[row][column])} at {grid.rows[row]}, {grid.columns[column]}"
    yield Text(best)


def _sparks(values: Sequence[float], low: float, high: float) -> str:
    """Return a sparkline of the values; of long curves it shows every n-th."""
    step = -(-len(values) // _SPARKLINE_LENGTH)
    top = len(_SPARKS) - 1
    return "".join(
        _SPARKS[round(top * (value - low) / (high - low)) if high > low else 0]
        for value in values[::step]
    )


def _short(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


def _columns(first: str, *titles: str) -> Columns:
    table = borderless((first,), titles)
    table.columns[0].min_width = 12
    return table


def _extra_cell(value: Any) -> str | Text:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4f}"
    return Text(", ".join(map(str, value)) if isinstance(value, list) else str(value))
