"""Figures of a reproduction as pictures."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from hierspec.errors import HierspecError
from hierspec_lab.plotting.figures import (
    BLUE,
    BROWN,
    GREEN,
    INK,
    ORANGE,
    PALE,
    PURPLE,
    RULES,
    SKY,
    VERMILION,
    matplotlib,
    picture_path,
    save,
    sheet,
    style,
)
from hierspec_lab.plotting.heat_map import heat_map

from .tables import Curve, Figure, Grid, Reproduction

# For lines and bars, so that legends tell them apart without colours.
DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (8, 2)), (0, (1, 1)), (0, (3, 3)))
HATCHES = ("", "///", "...", "xx", "---", "\\\\", "oo", "++")
COLOURS = (BLUE, ORANGE, GREEN, PURPLE, VERMILION, SKY, INK, BROWN)
MARKERS = "os^Dv<>P"
WIDTH, HEIGHT = 7.6, 4.6  # inches
_LATENCY_WORDS = re.compile(r"\b(ms|seconds|latency|latencies|time per token)\b", re.I)


def draw(figure: Figure, path: str | Path) -> None:
    """Draw curves, or a grid with its best cell framed.

    The best cell is the largest, or the smallest where the caption speaks of latency.

    Args:
        path: ends in ``.svg`` or ``.png``.

    Raises:
        HierspecError: another ending, nothing to draw, curves whose lengths differ, or matplotlib
            is not installed.
    """
    path = picture_path(path)
    if not drawable(figure):
        raise HierspecError(f"{figure.name} holds no numbers: there is nothing to draw")
    if figure.grid is not None:
        _draw_grid(figure, figure.grid, path)
    else:
        _draw_curves(figure, path)


def draw_all(reproduction: Reproduction, folder: str | Path) -> list[Path]:
    """Draw every figure that holds numbers into ``folder``: ``p3-exits-figure-5.svg``.

    The folder is made where it is missing. Raises as :func:`draw`.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    paths: list[Path] = []
    for figure in filter(drawable, reproduction.figures):
        stem, number = f"{reproduction.what}-{_slug(figure.name)}", 1
        path = folder / f"{stem}.svg"
        while path in paths:
            number += 1
            path = folder / f"{stem}-{number}.svg"
        draw(figure, path)
        paths.append(path)
    return paths


def drawable(figure: Figure) -> bool:
    """Return whether the figure holds a number."""
    if figure.grid is not None:
        return any(_is_number(value) for row in figure.grid.values for value in row)
    return any(_is_number(y) for curve in figure.curves for y in curve.y)


def smallest_is_best(figure: Figure) -> bool:
    """Return whether a grid's caption is about latency, and not about a speed-up."""
    return bool(_LATENCY_WORDS.search(figure.caption)) and "speed" not in figure.caption.lower()


def best_cell(figure: Figure, grid: Grid) -> tuple[int, int]:
    """Return row and column of the best value."""
    cells = [
        (value, row, column)
        for row, values in enumerate(grid.values)
        for column, value in enumerate(values)
        if value is not None and _is_number(value)
    ]
    pick = min if smallest_is_best(figure) else max
    _, row, column = pick(cells, key=lambda cell: cell[0])
    return row, column


def _draw_grid(figure: Figure, grid: Grid, path: Path) -> None:
    values = [[math.nan if value is None else value for value in row] for row in grid.values]
    largest = max(abs(value) for row in values for value in row if _is_number(value))
    row, column = best_cell(figure, grid)
    heat_map(
        values,
        grid.rows,
        grid.columns,
        path,
        textwrap.shorten(f"{figure.name}: {figure.caption}", 90, placeholder=" …"),
        row_title=figure.y,
        col_title=figure.x,
        value_format="{:.0f}" if largest >= 100 else "{:.1f}" if largest >= 10 else "{:.2f}",
        best="min" if smallest_is_best(figure) else "max",
        note=f"Framed: {grid.values[row][column]:.4g} at {grid.rows[row]}, {grid.columns[column]}.",
    )


def _draw_curves(figure: Figure, path: Path) -> None:
    labels = [curve.label for curve in figure.curves]
    # A few short labels fit inside, where the curves leave room; others go to the right.
    is_beside = len(labels) > 4 or max(map(len, labels)) > 22
    with style():
        canvas = sheet(WIDTH, HEIGHT, figure.name, figure.caption)
        axes = canvas.add_subplot()
        bars = [curve for curve in figure.curves if curve.kind == "bars"]
        for curve, number, colour in _styled(figure.curves):
            _draw_curve(axes, curve, number, colour, bars)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", color=PALE, linewidth=0.8)
        axes.set_axisbelow(True)
        axes.tick_params(labelsize=8.5, length=3)
        axes.set_xlabel(figure.x, fontsize=9.5)
        axes.set_ylabel(figure.y, fontsize=9.5)
        if all(x == round(x) for curve in figure.curves for x in curve.x):
            axes.xaxis.set_major_locator(matplotlib("ticker").MaxNLocator(integer=True))
        if bars:
            ticks = sorted({x for curve in bars for x in curve.x})
            if len(ticks) <= 20:
                axes.set_xticks(ticks, [f"{x:g}" for x in ticks])
        if is_beside and any(labels):
            axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False, fontsize=8.5)
        elif any(labels):
            axes.legend(loc="best", frameon=False, fontsize=8.5)
        save(canvas, path)


def _styled(curves: Sequence[Curve]) -> Iterator[tuple[Curve, int, str]]:
    """Yield curves with the number of their style and their colour.

    A rule has the same style in every figure, whatever follows its name: ``block, measured``.
    """
    rules = list(RULES)
    for number, curve in enumerate(curves):
        rule = re.split(r"[, ]", curve.label)[0]
        if rule in RULES:
            yield curve, rules.index(rule), RULES[rule]
        else:
            yield curve, number, COLOURS[number % len(COLOURS)]


def _draw_curve(axes: Any, curve: Curve, number: int, colour: str, bars: Sequence[Curve]) -> None:
    if len(curve.x) != len(curve.y) or len(curve.spread) not in (0, len(curve.y)):
        raise HierspecError(
            f"curve {curve.label!r} has {len(curve.x)} x, {len(curve.y)} y and "
            f"{len(curve.spread)} spreads"
        )
    marker = MARKERS[number % len(MARKERS)]
    dashes, hatch = DASHES[number % len(DASHES)], HATCHES[number % len(HATCHES)]
    if curve.kind == "bars":
        index = [bar is curve for bar in bars].index(True)
        width = 0.8 * _gap(bars) / len(bars)
        x = [x + width * (index - (len(bars) - 1) / 2) for x in curve.x]
        axes.bar(
            x, curve.y, width * 0.92, color=colour, edgecolor="white", linewidth=0, hatch=hatch,
            label=curve.label, yerr=curve.spread or None,
            error_kw={"elinewidth": 1.2, "capsize": 2.5, "ecolor": INK},
        )  # fmt: skip
    elif curve.kind == "points":
        axes.errorbar(
            curve.x, curve.y, yerr=curve.spread or None, fmt=marker, color=colour, markersize=4.5,
            elinewidth=1.1, capsize=2.5, label=curve.label,
        )  # fmt: skip
    elif curve.kind == "line":
        markers = marker if len(curve.x) <= 30 else ""
        axes.plot(
            curve.x, curve.y, linestyle=dashes, color=colour, marker=markers, markersize=3.5,
            linewidth=1.6, label=curve.label,
        )  # fmt: skip
        if curve.spread:
            low = [y - s for y, s in zip(curve.y, curve.spread, strict=True)]
            high = [y + s for y, s in zip(curve.y, curve.spread, strict=True)]
            axes.fill_between(curve.x, low, high, color=colour, alpha=0.18, linewidth=0)
    else:
        raise HierspecError(
            f"curve {curve.label!r}: kind {curve.kind!r} is not line, points or bars"
        )


def _gap(bars: Sequence[Curve]) -> float:
    """Return the smallest distance between the positions of bars."""
    positions = sorted({x for curve in bars for x in curve.x})
    return min((b - a for a, b in pairwise(positions)), default=1.0)


def _slug(name: str) -> str:
    """Convert a figure's name for a file's: ``Figure 5 (left)`` → ``figure-5-left``."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "figure"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
