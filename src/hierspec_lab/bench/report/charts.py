"""Charts of a temperature: speed-ups, tokens per call, time, acceptance, and predictions.

Each function takes the results and a temperature's record, and returns a figure or ``None`` where
the results have no numbers for it. matplotlib's constrained layout finds room for labels.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from hierspec_lab.bench.method_records import GROUPS, PLAIN, MethodRecord
from hierspec_lab.bench.records import BenchResults, TemperatureRecord
from hierspec_lab.plotting.figures import (
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
    sheet,
    shortened,
)

from .columns import prediction_errors

WIDTH = 8.2  # inches: about 790 pixels of an SVG in a browser, unscaled
ROW, BAR = 0.27, 0.62  # inches from bar to bar; the share of it that a bar fills
GROUP_COLOURS = {
    "plain": GREY, "planned": BLUE, "paper": GREEN, "baseline": ORANGE, "peer": PURPLE,
}  # fmt: skip
LEVEL_COLOURS = (BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILION)  # the target, and below it
MARKERS = ("", "o", "s", "^", "D", "v")
REST, HATCH = "#AEB6C2", "///"
WHOLE = "not split"
# Patterns of the parts, so that levels can be told apart without colours.
_HATCHES = {WHOLE: HATCH, "1 below": "\\\\\\", "2 below": "xxx", "3 below": "---", "4 below": "++"}
ACROSS, BAND = 4, 0.10  # panels of acceptance in a row; predictions are good within ±10 %
_HATCHED = (
    "Not split: the method does not report its levels apart; where it does not report the prompt's "
    "reading apart either, that is included."
)
_ROOFLINE = (
    "The roofline: what reading the target's weights takes, once per token (of a batch: once for a "
    "token of each), at the best bandwidth of memory that was measured: an estimate."
)


def speedups(results: BenchResults, cell: TemperatureRecord) -> Any:
    """Draw median speed-ups over plain decoding with their 95 % intervals, fastest first."""
    rows = [(m, speed) for m in cell.measured if (speed := m.median_speedup) is not None]
    if all(method.name == PLAIN for method, _ in rows):
        return None
    rows.sort(key=lambda pair: -pair[1])
    methods = [method for method, _ in rows]
    lossy = [method.name for method in methods if not method.lossless]
    figure, axes = _sheet(
        "Speed-up over plain decoding",
        results.conditions(cell),
        ROW * len(rows),
        key=_group_key(methods),
        caption=[
            "Wall time, the prompt's reading included; paired per prompt: median, and a 95 % "
            "bootstrap interval of it.",
            *([f"Not lossless: {'; '.join(lossy)}."] if lossy else []),
            *_not_drawn(cell),
        ],
    )
    _label_rows(axes, methods)
    end = 1.0
    for row, (method, median) in enumerate(rows):
        axes.barh(row, median, height=BAR, color=_colour(method), zorder=2)
        words, right, ratio = f"{median:.2f}×", median, method.final_summary.speedup
        if ratio and (ends := ratio.interval):
            axes.plot(ends, [row, row], color=INK, linewidth=1.3, zorder=3)
            for x in ends:
                axes.plot([x, x], [row - 0.16, row + 0.16], color=INK, linewidth=1.3, zorder=3)
            words, right = f"{words}  [{ends[0]:.2f}, {ends[1]:.2f}]", max(median, ends[1])
        _write_value(axes, row, right, words)
        end = max(end, ratio.high95 if ratio else median)
    axes.axvline(1.0, color=VERMILION, linestyle="--", linewidth=1.3, zorder=4)
    axes.set_xlim(0, 1.02 * end)
    axes.set_xlabel("times as fast as plain decoding (dashed: 1×)", fontsize=9, loc="left")
    return figure


def tokens_per_call(results: BenchResults, cell: TemperatureRecord) -> Any:
    """Draw mean acceptance lengths by method, longest first."""
    rows = [(m, n) for m in cell.measured if (n := m.final_summary.mean_acceptance_length)]
    if not rows:
        return None
    rows.sort(key=lambda pair: -pair[1])
    methods = [method for method, _ in rows]
    unknown = [m.name for m in cell.measured if not m.final_summary.mean_acceptance_length]
    figure, axes = _sheet(
        "Tokens per call of the target",
        results.conditions(cell),
        ROW * len(rows),
        key=_group_key(methods),
        caption=[
            "Mean acceptance length: tokens after the first over calls of the target, the token "
            "that every call adds included; pooled over prompts.",
            *([f"Unknown for: {'; '.join(unknown)}."] if unknown else []),
            *_not_drawn(cell),
        ],
    )
    _label_rows(axes, methods)
    for row, (method, length) in enumerate(rows):
        axes.barh(row, length, height=BAR, color=_colour(method), zorder=2)
        _write_value(axes, row, length, f"{length:.2f}")
    axes.set_xlim(left=0)
    axes.set_xlabel("tokens", fontsize=9, loc="left")
    return figure


def time_spent(results: BenchResults, cell: TemperatureRecord) -> Any:
    """Draw mean ms a token by level and overhead, fastest first, beside the roofline."""
    rows = sorted(((m, _parts(m)) for m in cell.measured), key=lambda row: sum(row[1].values()))
    if not rows:
        return None
    colours = _part_colours([parts for _, parts in rows])
    roofline = results.roofline
    figure, axes = _sheet(
        "Where the time goes",
        results.conditions(cell),
        ROW * len(rows),
        key=colours | ({"roofline of plain decoding": _line(INK, ":")} if roofline else {}),
        caption=[
            "Mean ms per token after the first, inside the forwards of the target and of the "
            "levels below it (1: the next one), and outside of all (overhead).",
            *([_HATCHED] if WHOLE in colours else []),
            *([_ROOFLINE] if roofline else []),
            *_not_drawn(cell),
        ],
    )
    _label_rows(axes, [method for method, _ in rows])
    for row, (_, parts) in enumerate(rows):
        start = 0.0
        for name, colour in colours.items():
            if ms := parts.get(name):
                axes.barh(
                    row, ms, BAR, start, color=colour, hatch=_HATCHES.get(name),
                    edgecolor="white", linewidth=0.4, zorder=2,
                )  # fmt: skip
                start += ms
        _write_value(axes, row, start, f"{start:.1f}")
    if roofline:
        axes.axvline(roofline.ms_per_token, color=INK, linestyle=":", linewidth=1.5, zorder=4)
    axes.set_xlim(left=0)
    axes.set_xlabel("ms per token", fontsize=9, loc="left")
    return figure


def _parts(method: MethodRecord) -> dict[str, float]:
    """Split ms a token into named parts; a negative overhead (noise of the clocks) counts as 0."""
    summary = method.final_summary
    if not summary.levels or summary.overhead_ms_per_token is None:
        return {WHOLE: (summary.decode_ms_per_token or summary.ms_per_token).mean}
    levels = enumerate(reversed(summary.levels))
    parts = {_level_name(depth): level.forward_ms_per_token for depth, level in levels}
    return parts | {"overhead": max(0.0, summary.overhead_ms_per_token.mean)}


def _level_name(depth: int) -> str:
    """Name a level by its distance to the target, since models differ between methods."""
    return f"{depth} below" if depth else "target"


def _part_colours(rows: Sequence[Mapping[str, float]]) -> dict[str, str]:
    """Assign a colour to each part, in the order in which parts are stacked."""
    used = {name for parts in rows for name in parts}
    names = [_level_name(depth) for depth in range(len(used))]
    out = {name: _level_colour(depth) for depth, name in enumerate(names) if name in used}
    return out | {name: c for name, c in (("overhead", GREY), (WHOLE, REST)) if name in used}


def _level_colour(depth: int) -> str:
    return LEVEL_COLOURS[min(depth, len(LEVEL_COLOURS) - 1)]


def acceptance(results: BenchResults, cell: TemperatureRecord) -> Any:
    """Draw acceptance by position in the draft: a panel per method, a curve per level."""
    panels = [(method, curves) for method in cell.measured if (curves := _curves(method))]
    if not panels:
        return None
    down = -(-len(panels) // ACROSS)
    deepest = max(depth for _, curves in panels for depth, _ in curves)
    longest = max(len(shares) for _, curves in panels for _, shares in curves)
    key = {f"{_level_name(depth)} the target": _curve(depth) for depth in range(1, deepest + 1)}
    figure, _ = _sheet(
        "Kept of drafts, by position",
        results.conditions(cell),
        1.75 * down,
        key=key,
        caption=[
            "Share of a level's drafts whose token at this position the level above kept; 1 is a "
            "draft's first token. Drafts that stopped short of a position count as not kept there."
        ],
        panels=(down, ACROSS),
    )
    for axes, (method, curves) in zip(figure.axes, panels, strict=False):
        axes.set_title(shortened(method.name, 25), fontsize=9, loc="left", pad=4)
        axes.grid(axis="y", color=PALE, linewidth=0.8)
        axes.set_axisbelow(True)
        for depth, shares in curves:
            axes.add_line(_curve(depth, shares))
    first = figure.axes[0]
    first.set_xlim(0.5, longest + 0.5)
    first.set_ylim(0, 1.04)
    first.set_yticks([0, 0.5, 1], ["0", "0.5", "1"])
    first.set_xticks(range(1, longest + 1, max(1, -(-longest // 6))))
    for axes in figure.axes[len(panels) :]:
        axes.axis("off")
    for axes in figure.axes[max(0, len(panels) - ACROSS) : len(panels)]:
        axes.tick_params(labelbottom=True)
        axes.set_xlabel("position in the draft", fontsize=8.5, labelpad=2)
    return figure


def _curves(method: MethodRecord) -> list[tuple[int, list[float]]]:
    """Return (distance from the target, shares accepted) per level that has some, nearest first."""
    shares = method.final_summary.acceptance_per_position
    order = [level.name for level in reversed(method.final_summary.levels)]
    order += [name for name in reversed(shares) if name not in order]
    return [(depth, shares[name]) for depth, name in enumerate(order) if shares.get(name)]


def _curve(depth: int, shares: Sequence[float] = ()) -> Any:
    return matplotlib("lines").Line2D(
        range(1, len(shares) + 1), shares, color=_level_colour(depth), linewidth=1.4,
        marker=MARKERS[min(depth, len(MARKERS) - 1)], markersize=3.2,
    )  # fmt: skip


def predictions(results: BenchResults, cell: TemperatureRecord) -> Any:
    """Draw predicted against measured latency: numbered points, and their list beside."""
    rows = sorted(cell.predictions, key=lambda pair: pair[1].measured)
    if not rows:
        return None
    errors = [abs(prediction.error) for _, prediction in rows]
    num_within = sum(error <= BAND for error in errors)
    figure, axes = _sheet(
        "Predicted and measured latency",
        results.conditions(cell),
        max(3.7, 0.2 * (len(rows) + 2)),
        key={
            **_group_key([method for method, _ in rows]),
            "as predicted": _line(REST, "-"),
            f"± {100 * BAND:.0f} %": PALE,
        },
        caption=[
            f"Mean ms per token after the first; {num_within} of {len(rows)} within "
            f"{100 * BAND:.0f} %. {prediction_errors(cell)}"
        ],
        panels=(1, 2),
    )
    axes, names = figure.axes
    values = [ms for _, prediction in rows for ms in (prediction.predicted, prediction.measured)]
    ends = (0.85 * min(values), 1.1 * max(values))
    low, high = ([end * (1 + sign * BAND) for end in ends] for sign in (-1, 1))
    axes.fill_between(ends, low, high, color=PALE, linewidth=0, zorder=1)
    axes.plot(ends, ends, color=REST, linewidth=1.4, zorder=2)
    axes.set(xlim=ends, ylim=ends, box_aspect=1)
    axes.set_xlabel("measured, ms per token", fontsize=9, loc="left")
    axes.set_ylabel("predicted, ms per token", fontsize=9)
    names.axis("off")
    names.set(xlim=(0, 1), ylim=(max(len(rows), 18), -1))
    for x, head in ((0.78, "measured"), (1.0, "prediction")):
        names.text(x, -0.9, head, fontsize=8, color=GREY, ha="right")
    offsets = ((1, -1), (-1, 1), (1, 1), (-1, -1))
    for row, (method, prediction) in enumerate(rows):
        point = (prediction.measured, prediction.predicted)
        axes.scatter(
            *([value] for value in point), s=34, color=_colour(method), edgecolors="white",
            linewidths=0.7, zorder=4,
        )  # fmt: skip
        dx, dy = offsets[row % len(offsets)]  # numbers of neighbours must not overlap
        axes.annotate(
            str(row + 1), point, (8 * dx, 8 * dy), textcoords="offset points", fontsize=8,
            ha="center", va="center", zorder=5,
        )  # fmt: skip
        names.plot([0.07], [row], marker="o", markersize=4.5, color=_colour(method))
        line = {"fontsize": 8.5, "va": "center_baseline"}
        names.text(0.045, row, str(row + 1), ha="right", **line)
        names.text(0.095, row, shortened(method.name, 27), **line)
        error = f"{100 * prediction.error:+.1f} %".replace("-", "−")
        names.text(0.78, row, f"{prediction.measured:.1f}", ha="right", **line)
        names.text(1.0, row, error, ha="right", **line)
    return figure


def _sheet(
    title: str,
    subtitle: str,
    tall: float,
    *,
    key: Mapping[str, Any],
    caption: Sequence[str],
    panels: tuple[int, int] = (1, 1),
) -> tuple[Any, Any]:
    """Make a sheet with axes and a legend; return it and its first axes.

    Args:
        tall: inches of the axes without their labels.
        key: the legend: name → colour or artist.
        panels: rows and columns of axes, which share their scales except as (1, 2).
    """
    height = tall + 0.55 + 0.2 * -(-len(key) // 3)  # with the labels of axes, and the legend
    figure = sheet(WIDTH, height, title, subtitle, caption)
    shared = panels != (1, 2)
    grid: Any = figure.subplots(*panels, sharex=shared, sharey=shared, squeeze=False)
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=8.5, length=3)
    legend_below(figure, [_legend_handle(name, look) for name, look in key.items()])
    return figure, grid[0, 0]


def _legend_handle(name: str, look: Any) -> Any:
    if isinstance(look, str):
        return matplotlib("patches").Patch(
            facecolor=look, label=name, hatch=_HATCHES.get(name), edgecolor="white", linewidth=0
        )
    look.set_label(name)
    return look


def _line(colour: str, dashes: str) -> Any:
    return matplotlib("lines").Line2D([], [], color=colour, linestyle=dashes, linewidth=1.4)


def _label_rows(axes: Any, methods: Sequence[MethodRecord]) -> None:
    """Label a row per method, the first one on top."""
    axes.set_yticks(range(len(methods)), [shortened(m.name, 34) for m in methods], fontsize=9)
    axes.set_ylim(len(methods) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)


def _group_key(methods: Sequence[MethodRecord]) -> dict[str, Any]:
    """Return the legend of the methods' groups: name → colour."""
    used = {method.group for method in methods}
    return {words: GROUP_COLOURS[name] for name, words in GROUPS.items() if name in used}


def _colour(method: MethodRecord) -> str:
    return GROUP_COLOURS.get(method.group, REST)


def _write_value(axes: Any, row: int, x: float, words: str) -> None:
    """Write ``words`` at the end of a bar, clear of it and of lines."""
    axes.annotate(
        words, (x, row), (5, 0), textcoords="offset points", va="center", fontsize=8.5,
        annotation_clip=False, zorder=6, bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},
    )  # fmt: skip


def _not_drawn(cell: TemperatureRecord) -> list[str]:
    """List the methods without numbers in a paragraph, each with its reason."""
    names = [
        f"{m.name} ({textwrap.shorten(m.skipped or 'not measured', 90, placeholder=' …')})"
        for m in cell.unmeasured
    ]
    return [f"Not run: {'; '.join(names)}."] if names else []
