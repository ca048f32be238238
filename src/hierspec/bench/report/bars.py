"""Bars by method: speed-ups, tokens per target call, and where the time goes."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from hierspec.plotting.figures import GREY, INK, VERMILION

from .records import conditions, interval, mean, ran, skipped, speedup, why_skipped
from .sheet import (
    HATCH,
    LEVEL_COLOURS,
    REST,
    ROW,
    beside,
    colour_of,
    group_key,
    labelled,
    line,
    room_for,
    sheet,
)

BAR = 0.62  # of a row's height
WHOLE = "not split"
_HATCHED = (
    "Hatched: the method does not tell its levels apart; where it does not tell the prompt's "
    "reading apart either, that is included."
)
_FLOOR = (
    "The floor: what reading the target's weights takes, once per token (of a batch: once for a "
    "token of each), at the best bandwidth of memory that was measured: an estimate."
)


def speedups(results: Mapping[str, Any], cell: Mapping[str, Any]) -> Any:
    """Median speed-up over plain decoding with its 95 % interval, fastest first.

    Returns:
        The figure, or ``None`` where no method has a speed-up.
    """
    found = [(method, ratio) for method in ran(cell) if (ratio := speedup(method))]
    if all(method["name"] == "plain" for method, _ in found):
        return None
    found.sort(key=lambda pair: -pair[1]["median"])
    methods = [method for method, _ in found]
    names = [method["name"] for method in methods]
    figure, axes = sheet(
        "Speed-up over plain decoding",
        conditions(results, cell),
        ROW * len(found) + 0.1,
        left=room_for(names),
        right=1.35,
        key=group_key(methods),
        caption=[
            "Wall time, the prompt's reading included; paired per prompt: median, and a 95 % "
            "bootstrap interval of it.",
            *_lossy(methods),
            *_not_drawn(cell),
        ],
    )
    labelled(axes, names)
    top = max(ratio.get("high95", ratio["median"]) for _, ratio in found)
    for row, (method, ratio) in enumerate(found):
        median = ratio["median"]
        axes.barh(row, median, height=BAR, color=colour_of(method), zorder=2)
        words, end = f"{median:.2f}×", median
        if ends := interval(ratio):
            axes.plot(ends, [row, row], color=INK, linewidth=1.3, zorder=3)
            for x in ends:
                axes.plot([x, x], [row - 0.16, row + 0.16], color=INK, linewidth=1.3, zorder=3)
            words, end = f"{words}  [{ends[0]:.2f}, {ends[1]:.2f}]", max(median, ends[1])
        beside(axes, row, end, words)
    axes.axvline(1.0, color=VERMILION, linestyle="--", linewidth=1.3, zorder=4)
    axes.set_xlim(0, 1.02 * max(top, 1.0))
    axes.set_xlabel("times as fast as plain decoding (dashed: 1×)", fontsize=9, loc="left")
    return figure


def tokens_per_call(results: Mapping[str, Any], cell: Mapping[str, Any]) -> Any:
    """Mean acceptance length by method; ``None`` where no method tells it."""
    methods = [m for m in ran(cell) if m["summary"].get("mean_acceptance_length")]
    methods.sort(key=lambda method: -method["summary"]["mean_acceptance_length"])
    if not methods:
        return None
    names = [method["name"] for method in methods]
    unknown = [m["name"] for m in ran(cell) if not m["summary"].get("mean_acceptance_length")]
    figure, axes = sheet(
        "Tokens per call of the target",
        conditions(results, cell),
        ROW * len(methods) + 0.1,
        left=room_for(names),
        right=0.5,
        key=group_key(methods),
        caption=[
            "Mean acceptance length: tokens after the first over calls of the target, the token "
            "that every call adds included; pooled over prompts.",
            *([f"Unknown for: {'; '.join(unknown)}."] if unknown else []),
            *_not_drawn(cell),
        ],
    )
    labelled(axes, names)
    for row, method in enumerate(methods):
        length = method["summary"]["mean_acceptance_length"]
        axes.barh(row, length, height=BAR, color=colour_of(method), zorder=2)
        beside(axes, row, length, f"{length:.2f}")
    axes.set_xlim(left=0)
    axes.set_xlabel("tokens", fontsize=9, loc="left")
    return figure


def time_spent(results: Mapping[str, Any], cell: Mapping[str, Any]) -> Any:
    """Mean ms a token, by level and overhead, fastest first, with the bandwidth floor."""
    rows = sorted(((m, _parts(m)) for m in ran(cell)), key=lambda row: sum(row[1].values()))
    if not rows:
        return None
    names = [method["name"] for method, _ in rows]
    colours = _part_colours([parts for _, parts in rows])
    floor = (results.get("floor") or {}).get("ms_per_token")
    key: dict[str, Any] = dict(colours)
    if floor is not None:
        key["floor of plain decoding"] = line(INK, ":")
    figure, axes = sheet(
        "Where the time goes",
        conditions(results, cell),
        ROW * len(rows) + 0.1,
        left=room_for(names),
        right=0.55,
        key=key,
        caption=[
            "Mean ms per token after the first, inside the forwards of the target and of the "
            "levels below it (1: the next one), and outside of all (overhead).",
            *([_HATCHED] if WHOLE in colours else []),
            *([_FLOOR] if floor is not None else []),
            *_not_drawn(cell),
        ],
    )
    labelled(axes, names)
    for row, (_, parts) in enumerate(rows):
        start = 0.0
        for name, colour in colours.items():
            if ms := parts.get(name):
                hatch = HATCH if name == WHOLE else None
                axes.barh(
                    row, ms, BAR, start, color=colour, hatch=hatch, edgecolor="white",
                    linewidth=0.4, zorder=2,
                )  # fmt: skip
                start += ms
        beside(axes, row, start, f"{start:.1f}")
    if floor is not None:
        axes.axvline(floor, color=INK, linestyle=":", linewidth=1.5, zorder=4)
    axes.set_xlim(left=0)
    axes.set_xlabel("ms per token", fontsize=9, loc="left")
    return figure


def _parts(method: Mapping[str, Any]) -> dict[str, float]:
    """Part → ms a token; negative overheads (noise of the clocks) are none."""
    summary = method["summary"]
    levels = summary.get("levels") or []
    overhead = mean(summary.get("overhead_ms_per_token"))
    if not levels or overhead is None:
        return {WHOLE: mean(summary.get("decode_ms_per_token") or summary["ms_per_token"]) or 0.0}
    out = {
        level_name(depth): level["forward_ms_per_token"]
        for depth, level in enumerate(reversed(levels))
    }
    return {**out, "overhead": max(0.0, overhead)}


def level_name(depth: int) -> str:
    """By the distance to the target, since models differ between methods."""
    return f"{depth} below" if depth else "target"


def _part_colours(rows: Sequence[Mapping[str, float]]) -> dict[str, str]:
    """In the order in which they are stacked."""
    there = {name for parts in rows for name in parts}
    deepest = next((d for d in range(20, -1, -1) if level_name(d) in there), -1)
    out = {level_name(d): LEVEL_COLOURS[min(d, len(LEVEL_COLOURS) - 1)] for d in range(deepest + 1)}
    return out | {name: c for name, c in (("overhead", GREY), (WHOLE, REST)) if name in there}


def _lossy(methods: Sequence[Mapping[str, Any]]) -> list[str]:
    names = [method["name"] for method in methods if method.get("lossless") is False]
    return [f"Not lossless: {'; '.join(names)}."] if names else []


def _not_drawn(cell: Mapping[str, Any]) -> list[str]:
    """Methods without numbers, each with its reason."""
    names = [
        f"{method['name']} ({textwrap.shorten(why_skipped(method), 90, placeholder=' …')})"
        for method in skipped(cell)
    ]
    return [f"Not run: {'; '.join(names)}."] if names else []
