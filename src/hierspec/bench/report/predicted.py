"""What the planner predicted, against what was measured."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from hierspec.plotting.figures import GREY, PALE, plotting, shortened

from .records import conditions, error_of_prediction, ran
from .sheet import REST, WIDTH, colour_of, group_key, line, sheet

BAND = 0.10
SIDE = 3.7  # inches of the square
SHORT = 27  # letters of a method in the list


def against_measured(results: Mapping[str, Any], cell: Mapping[str, Any]) -> Any:
    """Points by the diagonal, numbered, and the list of them; ``None`` without predictions."""
    found = [(m, error) for m in ran(cell) if (error := error_of_prediction(m))]
    found.sort(key=lambda pair: pair[1][1])
    if not found:
        return None
    errors = [abs(error) for _, (_, _, error) in found]
    within = sum(error <= BAND for error in errors)
    tall = max(SIDE, 0.2 * (len(found) + 2))
    figure, axes = sheet(
        "Predicted and measured latency",
        conditions(results, cell),
        tall,
        left=0.6,
        right=WIDTH - 0.6 - SIDE,
        key={
            **group_key([method for method, _ in found]),
            "as predicted": line(REST, "-"),
            f"± {100 * BAND:.0f} %": PALE,
        },
        caption=[
            f"Mean ms per token after the first. Median error {_percent(statistics.median(errors))}"
            f", worst {_percent(max(errors))}; {within} of {len(found)} within "
            f"{100 * BAND:.0f} %."
        ],
    )
    box, height = axes.get_position(), figure.get_size_inches()[1]
    axes.set_position((box.x0, box.y1 - SIDE / height, box.width, SIDE / height))  # a square
    values = [value for _, (predicted, measured, _) in found for value in (predicted, measured)]
    low, high = 0.85 * min(values), 1.1 * max(values)
    axes.fill_between(
        [low, high], [low * (1 - BAND), high * (1 - BAND)], [low * (1 + BAND), high * (1 + BAND)],
        color=PALE, linewidth=0, zorder=1,
    )  # fmt: skip
    axes.plot([low, high], [low, high], color=REST, linewidth=1.4, zorder=2)
    axes.set_xlim(low, high)
    axes.set_ylim(low, high)
    axes.set_xlabel("measured, ms per token", fontsize=9, loc="left")
    axes.set_ylabel("predicted, ms per token", fontsize=9)
    for method, (predicted, measured, _) in found:
        axes.scatter(
            [measured], [predicted], s=34, color=colour_of(method), edgecolors="white",
            linewidths=0.7, zorder=4,
        )  # fmt: skip
    _number(axes, [(measured, predicted) for _, (predicted, measured, _) in found], high - low)
    _list(figure, axes, found)
    return figure


def _number(axes: Any, points: list[tuple[float, float]], extent: float) -> None:
    """1, 2, … beside the points, each where the least stands in its way."""
    aside = 0.032 * extent
    ways = [(1, -1), (-1, 1), (1, 1), (-1, -1), (1.9, 0), (-1.9, 0), (0, 2), (0, -2)]
    taken = list(points)
    for number, (x, y) in enumerate(points, 1):
        spots = [(x + aside * dx, y + aside * dy) for dx, dy in ways]

        def crowd(spot: tuple[float, float]) -> float:
            return sum(
                max(0.0, 1.9 - ((spot[0] - a) ** 2 + (spot[1] - b) ** 2) ** 0.5 / aside)
                for a, b in taken
                if (a, b) != (x, y)  # noqa: B023  used at once
            )

        spot = min(spots, key=crowd)
        taken.append(spot)
        axes.text(*spot, str(number), fontsize=8, ha="center", va="center", zorder=5)


def _list(figure: Any, axes: Any, found: list[tuple[Any, tuple[float, float, float]]]) -> None:
    """Number, method, error: right of the square, from its upper edge down."""
    height = figure.get_size_inches()[1]
    top = axes.get_position().y1 * height
    left = (0.6 + SIDE + 0.3) / WIDTH
    ends = ((WIDTH - 0.95) / WIDTH, (WIDTH - 0.2) / WIDTH)
    figure.text(ends[0], (top - 0.05) / height, "measured", fontsize=8, color=GREY, ha="right")
    figure.text(ends[1], (top - 0.05) / height, "prediction", fontsize=8, color=GREY, ha="right")
    dot = plotting("lines").Line2D
    for i, (method, (_, measured, error)) in enumerate(found):
        y = (top - 0.25 - 0.2 * i) / height
        figure.add_artist(
            dot([left + 0.27 / WIDTH], [y], marker="o", markersize=4.5, color=colour_of(method))
        )
        shared = {"fontsize": 8.5, "va": "center_baseline"}
        figure.text(left + 0.16 / WIDTH, y, str(i + 1), ha="right", **shared)
        figure.text(left + 0.38 / WIDTH, y, shortened(method["name"], SHORT), **shared)
        figure.text(ends[0], y, f"{measured:.1f}", ha="right", **shared)
        figure.text(ends[1], y, _signed(error), ha="right", **shared)


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _signed(share: float) -> str:
    return f"{100 * share:+.1f} %".replace("-", "−")
