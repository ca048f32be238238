"""How much is kept of drafts, position by position: a small panel per method."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hierspec.plotting.figures import GREY, PALE, shortened

from .bars import level_name
from .records import conditions, ran
from .sheet import LEVEL_COLOURS, WIDTH, line, sheet

ACROSS = 4
PANEL, GAP = 1.25, 0.62  # inches: height of a panel, and what stands above the next one
MARKERS = ("", "o", "s", "^", "D", "v")
SHORT = 25  # letters of a panel's title


def by_position(results: Mapping[str, Any], cell: Mapping[str, Any]) -> Any:
    """A curve per level of every method; ``None`` where no method knows its acceptance."""
    panels = [(method, curves) for method in ran(cell) if (curves := _curves(method))]
    if not panels:
        return None
    down = -(-len(panels) // ACROSS)
    deepest = max(depth for _, curves in panels for depth, _, _ in curves)
    longest = max(len(shares) for _, curves in panels for _, _, shares in curves)
    tall = down * (PANEL + GAP) - GAP + 0.2
    figure, frame = sheet(
        "Kept of drafts, by position",
        conditions(results, cell),
        tall,
        left=0.55,
        key={f"{level_name(d)} the target": _looks(d) for d in range(1, deepest + 1)},
        caption=[
            "Share of a level's drafts whose token at this position the level above kept; 1 is a "
            "draft's first token. Drafts that stopped short of a position count as not kept there."
        ],
    )
    frame.axis("off")
    box = frame.get_position()
    height = figure.get_size_inches()[1]
    wide = (box.width * WIDTH - (ACROSS - 1) * 0.28) / ACROSS
    for number, (method, curves) in enumerate(panels):
        row, column = divmod(number, ACROSS)
        left = box.x0 * WIDTH + column * (wide + 0.28)
        low = box.y1 * height - 0.2 - row * (PANEL + GAP) - PANEL
        axes = figure.add_axes((left / WIDTH, low / height, wide / WIDTH, PANEL / height))
        axes.set_title(shortened(method["name"], SHORT), fontsize=9, loc="left", pad=4)
        _panel(axes, curves, longest)
        if column:
            axes.tick_params(axis="y", labelleft=False)
        if number + ACROSS >= len(panels):
            axes.set_xlabel("position in the draft", fontsize=8.5, labelpad=2)
    return figure


def _panel(axes: Any, curves: list[tuple[int, str, list[float]]], longest: int) -> None:
    axes.set_xlim(0.5, longest + 0.5)
    axes.set_ylim(0, 1.04)
    axes.set_yticks([0, 0.5, 1], ["0", "0.5", "1"])
    step = max(1, -(-longest // 6))
    axes.set_xticks(range(1, longest + 1, step))
    axes.grid(axis="y", color=PALE, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(GREY)
    axes.tick_params(labelsize=8, length=2.5)
    for depth, _, shares in curves:
        look = _looks(depth)
        axes.plot(
            range(1, len(shares) + 1), shares, color=look.get_color(), marker=look.get_marker(),
            markersize=3.2, linewidth=1.4,
        )  # fmt: skip


def _curves(method: Mapping[str, Any]) -> list[tuple[int, str, list[float]]]:
    """(Distance from the target, level, shares), nearest first; empty ones are left out."""
    summary = method["summary"]
    shares = summary.get("acceptance_per_position") or {}
    order = [level["name"] for level in reversed(summary.get("levels") or [])]
    order += [name for name in reversed(shares) if name not in order]
    return [(d, name, shares[name]) for d, name in enumerate(order) if shares.get(name)]


def _looks(depth: int) -> Any:
    depth = min(depth, len(LEVEL_COLOURS) - 1)
    out = line(LEVEL_COLOURS[depth], "-")
    out.set_marker(MARKERS[depth])
    out.set_markersize(4)
    return out
