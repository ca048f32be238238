"""Heat maps: a value for every pair of two choices, as a coloured and labelled grid."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hierspec.errors import HierspecError

from .figures import (
    BLUE,
    GREEN,
    GREY,
    INK,
    ORANGE,
    PALE,
    PURPLE,
    SKY,
    VERMILION,
    legend_below,
    matplotlib,
    picture_path,
    save,
    sheet,
    style,
    text_width,
)

LEGIBLE = 40  # columns; beyond, numbers in the cells would be too small to read
GROUPS = (SKY, ORANGE, GREEN, PURPLE, VERMILION, BLUE)


def heat_map(
    values: np.ndarray | Sequence[Sequence[float]],
    row_labels: Sequence[object],
    col_labels: Sequence[object],
    path: str | Path,
    title: str,
    *,
    row_title: str = "",
    col_title: str = "",
    value_title: str = "",
    value_format: str = "{:.2f}",
    details: Sequence[Sequence[str]] | None = None,
    centre: float | None = None,
    best: str | None = "max",
    groups: np.ndarray | Sequence[Sequence[int]] | None = None,
    group_names: Sequence[str] = (),
    note: str = "",
) -> None:
    """Draw a grid of values as a picture file, the best cell framed.

    Args:
        values: [rows, cols]; NaN leaves a cell empty.
        path: ends in ``.svg`` or ``.png``.
        details: [rows, cols], a second line of each cell in smaller type.
        centre: the neutral value (1 for speed-ups): below is orange, above is blue. Without it
            colours run from dark to light.
        best: ``"max"``, ``"min"``, or ``None``: frame no cell.
        groups: [rows, cols] indices into ``group_names``; cells are coloured by group.
        note: a line below the map.

    Raises:
        HierspecError: labels do not fit the values, every cell is empty, or as
            :func:`~hierspec_lab.plotting.figures.save`.
    """
    path = picture_path(path)
    cells = np.asarray(values, dtype=np.float64)
    if cells.shape != (len(row_labels), len(col_labels)):
        raise HierspecError(
            f"{len(row_labels)} row labels and {len(col_labels)} column labels do not fit "
            f"values of shape {cells.shape}"
        )
    if not np.isfinite(cells).any():
        raise HierspecError("every cell is empty: there is nothing to draw")
    rows, cols = cells.shape
    cell_size = 0.78 if details is not None else 0.56
    label_width = max(text_width(str(label), 9) for label in row_labels)
    with style():
        width = cols * cell_size + label_width + (0.8 if groups is not None else 1.4)
        map_height = max(rows * cell_size * 0.8, text_width(row_title, 10))
        height = map_height + (1.0 if groups is not None else 0.65)
        figure = sheet(width, height, title, note=[note] if note else [])
        axes = figure.add_subplot()
        image = _colour(axes, cells, centre, groups, group_names)
        if groups is None:
            bar = figure.colorbar(image, ax=axes, aspect=max(6.0, rows * cell_size * 5), pad=0.02)
            bar.ax.spines["outline"].set_visible(False)
            bar.ax.tick_params(labelsize=8, length=2)
            bar.set_label(value_title, fontsize=9, color=GREY)
        else:
            legend_below(figure, _legend_handles(np.asarray(groups), group_names))
        if cols <= LEGIBLE:
            _write_values(axes, cells, image, value_format, details)
        if best:
            _frame(axes, cells, best)
        axes.set_xticks(range(cols), [str(label) for label in col_labels], fontsize=9)
        axes.set_yticks(range(rows), [str(label) for label in row_labels], fontsize=9)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        axes.set_xlabel(col_title, fontsize=10, labelpad=6)
        axes.set_ylabel(row_title, fontsize=10, labelpad=6)
        save(figure, path)


def _colour(
    axes: Any,
    cells: np.ndarray,
    centre: float | None,
    groups: np.ndarray | Sequence[Sequence[int]] | None,
    names: Sequence[str],
) -> Any:
    colors = matplotlib("colors")
    masked = np.ma.masked_invalid(cells)
    if groups is not None:
        numbers = np.ma.masked_array(np.asarray(groups, dtype=float), masked.mask)
        palette = colors.ListedColormap(GROUPS[: len(names)])
        return axes.imshow(
            numbers, cmap=palette, vmin=-0.5, vmax=len(names) - 0.5, aspect="auto", alpha=0.55
        )
    if centre is None:
        return axes.imshow(masked, cmap="cividis", aspect="auto")
    # One scale on both sides, so that equal shades are equal gains and losses.
    reach = max(float(np.abs(masked - centre).max()), 1e-9)
    low, high = min(float(masked.min()), centre), max(float(masked.max()), centre)
    gradient = colors.LinearSegmentedColormap.from_list("gain", [VERMILION, "#FBFBFB", BLUE])
    start, end = ((value - centre + reach) / (2 * reach) for value in (low, high))
    visible = colors.ListedColormap(gradient(np.linspace(start, end, 256)))
    return axes.imshow(masked, cmap=visible, vmin=low, vmax=high, aspect="auto")


def _write_values(
    axes: Any,
    cells: np.ndarray,
    image: Any,
    value_format: str,
    details: Sequence[Sequence[str]] | None,
) -> None:
    shades = image.to_rgba(image.get_array(), alpha=None)
    for r, c in np.argwhere(np.isfinite(cells)):
        red, green, blue, _ = shades[r, c]
        dark = image.get_alpha() is None and 0.3 * red + 0.59 * green + 0.11 * blue < 0.58
        font = {"ha": "center", "va": "center", "color": "white" if dark else INK}
        detail = details[r][c] if details is not None else ""
        text = value_format.format(cells[r, c])
        axes.text(c, r - (0.16 if detail else 0.0), text, fontsize=9, **font)
        if detail:
            axes.text(c, r + 0.24, detail, fontsize=7.5, **font)


def _frame(axes: Any, cells: np.ndarray, best: str) -> None:
    arg_best = np.nanargmax if best == "max" else np.nanargmin
    r, c = np.unravel_index(int(arg_best(cells)), cells.shape)
    place = (c - 0.5, r - 0.5)
    border = {"fill": False, "edgecolor": "black", "linewidth": 2.5, "clip_on": False}
    axes.add_patch(matplotlib("patches").Rectangle(place, 1, 1, **border))


def _legend_handles(groups: np.ndarray, names: Sequence[str]) -> list[Any]:
    patch = matplotlib("patches").Patch
    return [
        patch(facecolor=GROUPS[number], alpha=0.55, edgecolor=PALE, label=name)
        for number, name in enumerate(names)
        if (groups == number).any()
    ]
