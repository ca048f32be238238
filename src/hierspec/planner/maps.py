"""Many plans over a grid, for the maps: which exits to take, whether a further model pays.

Heat maps: two choices along the edges, what comes of them in the cells.

:func:`exits_map` asks P3's question (Figures 5 and 8): after which layers should the draft and the
intermediate verifier leave the trunk? :func:`cost_acceptance_map` asks P1's (Table 9): what must a
further model cost, and how well must it guess, to be worth a level?
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np

from hierspec.errors import HierspecError
from hierspec.plotting.figures import (
    BLUE,
    GREEN,
    GREY,
    INK,
    ORANGE,
    PALE,
    PURPLE,
    SKY,
    VERMILION,
    checked,
    new_figure,
    plotting,
    save,
    style,
)

from .estimates import Chain, Estimates, ideal
from .latency import Latency, latency

Price = Callable[[Estimates, Chain], Latency]


@dataclass(frozen=True, slots=True, eq=False)
class Sweep:
    """A grid of plans.

    Attributes:
        rows, cols: what the edges say.
        values: [rows, cols] speed-up over plain decoding; NaN: no such plan.
        details: [rows, cols] budgets, ``"4, 6"``.
        groups: [rows, cols] numbers into ``group_names``: which kind of hierarchy is best.
    """

    rows: tuple[str, ...]
    cols: tuple[str, ...]
    values: np.ndarray
    details: tuple[tuple[str, ...], ...]
    groups: np.ndarray | None = None
    group_names: tuple[str, ...] = ()


def pairs_of_exits(
    estimates: Estimates,
    exits: Mapping[int, int],
    budgets: tuple[int, int] | None = None,
    largest: int = 8,
) -> Sweep:
    """Rows: the intermediate verifier's exit; columns: the draft's; the lower triangle.

    Args:
        exits: layer → model number.
        budgets: of draft and verifier (on the diagonal the draft's); ``None``: the best ones up
            to ``largest`` for each pair.

    Raises:
        ValueError: no exits, or one whose number is not that of a model below the target.
    """
    for layer, number in exits.items():
        if not 0 <= number < estimates.target:
            raise HierspecError(
                f"exit {layer} is model {number}, but the models below the target are "
                f"0 to {estimates.target - 1}"
            )
    if not exits:
        raise HierspecError("there are no exits; give {layer: model number, ...}")
    layers = sorted(exits)
    count = len(layers)
    values = np.full((count, count), np.nan)
    details = [[""] * count for _ in layers]
    for r, c in product(range(count), range(count)):
        draft, middle = exits[layers[c]], exits[layers[r]]
        levels = (draft, estimates.target) if r == c else (draft, middle, estimates.target)
        if r < c or not all(estimates.can_draft(*pair) for pair in pairwise(levels)):
            continue
        choices = [budgets[: len(levels) - 1]] if budgets else None
        chain, ms = cheapest(estimates, levels, choices, largest)
        values[r, c] = estimates.plain_ms / ms
        details[r][c] = ", ".join(str(budget) for budget in chain.budgets)
    labels = tuple(str(layer) for layer in layers)
    return Sweep(labels, labels, values, tuple(map(tuple, details)))


def further_model(
    costs: Sequence[float],
    acceptances: Sequence[float],
    target_cost: float = 1024.0,
    drafter_cost: float = 256.0,
    acceptance: float = 0.5,
    largest: int = 15,
    price: Price = latency,
) -> Sweep:
    """P1 Table 9: target A, drafter B, and a model C of each cost (columns) and acceptance (rows).

    C's tokens are accepted by A as rarely as the triangle inequality allows: max(0, α_CB + α_BA −
    1). All budgets up to ``largest`` are tried, and priced by the exact model, overshoot handed up;
    the paper's own numbers come of ``price=corollary``.
    """
    hierarchies = {"A alone": (2,), "A-B": (1, 2), "A-C": (0, 2), "A-B-C": (0, 1, 2)}
    values = np.empty((len(acceptances), len(costs)))
    groups = np.empty(values.shape, dtype=int)
    details = [[""] * len(costs) for _ in acceptances]
    for (r, rate), (c, cost) in product(enumerate(acceptances), enumerate(costs)):
        through = max(0.0, rate + acceptance - 1)
        rates = [[None, rate, through], [None, None, acceptance], [None] * 3]
        estimates = ideal([cost, drafter_cost, target_cost], rates, longest=2 * largest + 1)
        found = [
            cheapest(estimates, levels, None, largest, price) for levels in hierarchies.values()
        ]
        # A tie goes to the smaller hierarchy: a model that saves nothing is not worth loading.
        groups[r, c] = min(range(len(found)), key=lambda i: (round(found[i][1], 9), i))
        chain, ms = found[groups[r, c]]
        values[r, c] = target_cost / ms
        details[r][c] = ", ".join(str(budget) for budget in chain.budgets)
    return Sweep(
        tuple(f"{rate:g}" for rate in acceptances),
        tuple(f"{cost:g}" for cost in costs),
        values,
        tuple(map(tuple, details)),
        groups,
        tuple(hierarchies),
    )


def cheapest(
    estimates: Estimates,
    levels: tuple[int, ...],
    choices: Iterable[tuple[int, ...]] | None = None,
    largest: int = 8,
    price: Price = latency,
) -> tuple[Chain, float]:
    """The best budgets for these levels, and its milliseconds a token; tries all of them."""
    if choices is None:
        choices = product(range(1, largest + 1), repeat=len(levels) - 1)
    priced = ((price(estimates, Chain(levels, tuple(b))).ms_per_token, b) for b in choices)
    ms, budgets = min(priced)
    return Chain(levels, tuple(budgets)), ms


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
    """Cells with their values, the best one framed.

    Args:
        values: [rows, cols]; NaN: an empty cell.
        path: ends in ``.svg`` or ``.png``.
        details: [rows, cols], a smaller second line of each cell.
        centre: a value that matters (1 for speed-ups): worse is orange, better is blue. Without
            it colours run from dark to light.
        best: ``"max"``, ``"min"``, or ``None``: frame no cell.
        groups: [rows, cols] numbers into ``group_names``, which then give the colours.
        note: a line below.
    """
    path = checked(path)
    cells = np.asarray(values, dtype=np.float64)
    if cells.shape != (len(row_labels), len(col_labels)):
        raise HierspecError(
            f"{len(row_labels)} row labels and {len(col_labels)} column labels do not fit "
            f"values of shape {cells.shape}"
        )
    if not np.isfinite(cells).any():
        raise HierspecError("every cell is empty: there is nothing to draw")
    rows, cols = cells.shape
    side = 0.72 if details is not None else 0.56
    left = 0.75 + 0.085 * max(len(str(label)) for label in row_labels)
    top, bottom = 0.75, 0.62 + (0.28 if note else 0) + (0.32 if groups is not None else 0)
    right = 0.35 if groups is not None else 1.15
    width = max(left + cols * side + right, 0.099 * len(title) + 0.5)
    height = rows * side * 0.8 + top + bottom
    with style():
        figure = new_figure(width, height)
        box = (left / width, bottom / height, cols * side / width, rows * side * 0.8 / height)
        axes = figure.add_axes(box)
        paint = _painted(axes, cells, centre, groups, group_names)
        if groups is None:
            bar_box = (box[0] + box[2] + 0.18 / width, box[1], 0.16 / width, box[3])
            bar = figure.colorbar(paint, cax=figure.add_axes(bar_box))
            bar.outline.set_visible(False)
            bar.ax.tick_params(labelsize=8, length=2)
            bar.ax.set_title(value_title, fontsize=8, loc="left", color=GREY)
        if cols <= LEGIBLE:
            _write(axes, cells, paint, value_format, details)
        if best:
            _frame(axes, cells, best)
        axes.set_xticks(range(cols), [str(label) for label in col_labels], fontsize=9)
        axes.set_yticks(range(rows), [str(label) for label in row_labels], fontsize=9)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        axes.set_xlabel(col_title, fontsize=10, labelpad=6)
        axes.set_ylabel(row_title, fontsize=10, labelpad=6)
        figure.text(0.25 / width, 1 - 0.3 / height, title, fontsize=12, weight="bold", va="center")
        if groups is not None:
            _legend(figure, np.asarray(groups), group_names, (0.27 if note else 0.05) / height)
        if note:
            figure.text(0.25 / width, 0.17 / height, note, fontsize=8, color=GREY, va="center")
        save(figure, path)


def exits_map(
    estimates: Estimates,
    exits: Mapping[int, int],
    path: str | Path,
    budgets: tuple[int, int] | None = None,
    *,
    largest: int = 8,
    title: str = "Speed-up over plain decoding, by exits",
) -> Sweep:
    """Predicted speed-up over (draft exit, intermediate exit) [P3, Figures 5 and 8].

    Args:
        exits: layer → model number, the target left out.
        budgets: (draft's, intermediate verifier's); ``None``: the best up to ``largest`` for each
            pair, printed in its cell. On the diagonal one exit drafts for the target.
    """
    sweep = pairs_of_exits(estimates, exits, budgets, largest)
    said = f"Budgets {budgets[0]} and {budgets[1]}." if budgets else "Small: the best budgets."
    heat_map(
        sweep.values,
        sweep.rows,
        sweep.cols,
        path,
        title,
        row_title="intermediate verifier: exit after layer",
        col_title="draft: exit after layer",
        value_title="speed-up",
        details=None if budgets else sweep.details,
        centre=1.0,
        note=f"{said} Diagonal: no intermediate verifier. Framed: the fastest.",
    )
    return sweep


def cost_acceptance_map(
    costs: Sequence[float],
    acceptances: Sequence[float],
    path: str | Path,
    *,
    target_cost: float = 1024.0,
    drafter_cost: float = 256.0,
    acceptance: float = 0.5,
    largest: int = 15,
    price: Price = latency,
    title: str = "When a further model is worth a level",
) -> Sweep:
    """Speed-up with a model C of each cost and acceptance below A and B [P1, Table 9].

    Args:
        costs, acceptances: of C: per call; its tokens by B.
        target_cost, drafter_cost, acceptance: of A; of B; of B's tokens by A.
        price: ``latency``, the exact model, or ``corollary``, the paper's.
    """
    sweep = further_model(costs, acceptances, target_cost, drafter_cost, acceptance, largest, price)
    heat_map(
        sweep.values,
        sweep.rows,
        sweep.cols,
        path,
        title,
        row_title="acceptance of C's tokens by B",
        col_title="cost of a call of C",
        groups=sweep.groups,
        group_names=sweep.group_names,
        best=None,
        note=f"A costs {target_cost:g}, B {drafter_cost:g}; "
        f"A accepts {100 * acceptance:g} % of B's tokens.",
    )
    return sweep


def _painted(
    axes: Any,
    cells: np.ndarray,
    centre: float | None,
    groups: np.ndarray | Sequence[Sequence[int]] | None,
    names: Sequence[str],
) -> Any:
    colors = plotting("colors")
    shown = np.ma.masked_invalid(cells)
    if groups is not None:
        numbers = np.ma.masked_array(np.asarray(groups, dtype=float), shown.mask)
        palette = colors.ListedColormap(GROUPS[: len(names)])
        return axes.imshow(
            numbers, cmap=palette, vmin=-0.5, vmax=len(names) - 0.5, aspect="auto", alpha=0.55
        )
    if centre is None:
        return axes.imshow(shown, cmap="cividis", aspect="auto")
    # One scale on both sides, so that equal shades are equal gains and losses.
    reach = max(float(np.abs(shown - centre).max()), 1e-9)
    low, high = float(shown.min()), float(shown.max())
    whole = colors.LinearSegmentedColormap.from_list("gain", [VERMILION, "#FBFBFB", BLUE])
    ends = [(min(low, centre) - centre + reach) / (2 * reach)]
    ends.append((max(high, centre) - centre + reach) / (2 * reach))
    part = colors.ListedColormap(whole(np.linspace(ends[0], ends[1], 256)))
    return axes.imshow(
        shown, cmap=part, vmin=min(low, centre), vmax=max(high, centre), aspect="auto"
    )


def _write(
    axes: Any,
    cells: np.ndarray,
    paint: Any,
    value_format: str,
    details: Sequence[Sequence[str]] | None,
) -> None:
    shades = paint.to_rgba(paint.get_array(), alpha=None)
    for r, c in np.argwhere(np.isfinite(cells)):
        red, green, blue, _ = shades[r, c]
        dark = paint.get_alpha() is None and 0.3 * red + 0.59 * green + 0.11 * blue < 0.58
        ink = "white" if dark else INK
        detail = details[r][c] if details is not None else ""
        lift = 0.16 if detail else 0.0
        text = value_format.format(cells[r, c])
        axes.text(c, r - lift, text, ha="center", va="center", fontsize=9, color=ink)
        if detail:
            axes.text(c, r + 0.24, detail, ha="center", va="center", fontsize=6.5, color=ink)


def _frame(axes: Any, cells: np.ndarray, best: str) -> None:
    pick = np.nanargmax if best == "max" else np.nanargmin
    r, c = np.unravel_index(int(pick(cells)), cells.shape)
    rectangle = plotting("patches").Rectangle
    axes.add_patch(
        rectangle(
            (c - 0.5, r - 0.5), 1, 1, fill=False, edgecolor="black", linewidth=2.5, clip_on=False
        )
    )


def _legend(figure: Any, groups: np.ndarray, names: Sequence[str], low: float) -> None:
    """Of the groups there are, ``low`` [of the figure's height] above its lower edge."""
    patch = plotting("patches").Patch
    there = [number for number in range(len(names)) if (groups == number).any()]
    handles = [
        patch(facecolor=GROUPS[number], alpha=0.55, edgecolor=PALE, label=names[number])
        for number in there
    ]
    figure.legend(
        handles=handles, loc="lower left", bbox_to_anchor=(0.01, low), ncols=len(handles),
        frameon=False, fontsize=8.5, handlelength=1.2,
    )  # fmt: skip
