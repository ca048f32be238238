"""What the pictures share: a sheet of one width, its colours, a row per method, the file."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from hierspec.plotting.figures import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    SKY,
    VERMILION,
    new_figure,
    plotting,
    shortened,
    style,
)

from .records import GROUPS

WIDTH = 8.2  # inches: about 790 pixels of an SVG in a browser, unscaled
ROW = 0.27  # inches a bar and its room
KEY = 0.25  # inches a line of the legend
LINE = 0.165  # inches a line of the caption
COLUMNS = 122  # letters a line of the caption
LONGEST = 34  # letters of a row's label
GROUP_COLOURS = {
    "plain": GREY, "planned": BLUE, "paper": GREEN, "baseline": ORANGE, "peer": PURPLE,
}  # fmt: skip
LEVEL_COLOURS = (BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILION)  # the target, and below it
REST, HATCH = "#AEB6C2", "///"
# A list of families, so that machines without the first one show the others' letters.
_RC = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial"],
    "text.parse_math": False,  # a dollar sign in a name is a dollar sign
}
_NO_METADATA = {"Date": None, "Creator": None, "Format": None, "Type": None}


@contextmanager
def drawing() -> Iterator[None]:
    """Figures are made and saved in here; nothing global changes."""
    with style(), plotting("").rc_context(_RC):
        yield


def rendered(figure: Any, kind: str) -> bytes:
    """The file's content: ``svg`` or ``png``. The same figure gives the same bytes."""
    file = io.BytesIO()
    metadata = _NO_METADATA if kind == "svg" else {"Software": None}
    figure.savefig(file, format=kind, dpi=150, metadata=metadata)
    return file.getvalue()


def sheet(
    title: str,
    subtitle: str,
    tall: float,
    *,
    left: float,
    right: float = 0.25,
    caption: Sequence[str] = (),
    key: Mapping[str, Any] | None = None,
    axis: float = 0.5,
) -> tuple[Any, Any]:
    """A figure and its axes: title above, legend and caption below.

    Args:
        tall, left, right: inches: the axes' height, and the room beside them.
        caption: paragraphs; long ones are wrapped.
        key: name → colour or artist of the legend.
        axis: inches between the axes and the legend.
    """
    lines = [line for text in caption for line in textwrap.wrap(text, COLUMNS)]
    keys = _broken(key or {})
    below = axis + KEY * len(keys) + LINE * len(lines) + 0.12
    height = 0.78 + tall + below
    figure = new_figure(WIDTH, height)
    figure.text(0.2 / WIDTH, 1 - 0.26 / height, title, fontsize=13, weight="bold", va="center")
    figure.text(0.2 / WIDTH, 1 - 0.54 / height, subtitle, fontsize=9, color=GREY, va="center")
    box = (left / WIDTH, below / height, 1 - (left + right) / WIDTH, tall / height)
    axes = figure.add_axes(box)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8.5, length=3)
    for i, row in enumerate(reversed(keys)):
        figure.legend(
            handles=[_handle(name, look) for name, look in row.items()],
            loc="lower left", ncols=len(row), frameon=False, fontsize=9, borderaxespad=0.2,
            handlelength=1.4, columnspacing=1.4,
            bbox_to_anchor=(0.1 / WIDTH, (LINE * len(lines) + 0.1 + KEY * i) / height),
        )  # fmt: skip
    for i, line in enumerate(reversed(lines)):
        y = (0.14 + LINE * i) / height
        figure.text(0.2 / WIDTH, y, line, fontsize=8, color=GREY, va="center")
    return figure, axes


def _broken(key: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The legend in lines that fit."""
    out: list[dict[str, Any]] = []
    used = WIDTH
    for name, look in key.items():
        needed = 0.5 + 0.0715 * len(name)
        if used + needed > WIDTH - 0.2:
            out.append({})
            used = 0.0
        out[-1][name] = look
        used += needed
    return out


def _handle(name: str, look: Any) -> Any:
    if isinstance(look, str):
        hatch = HATCH if look == REST else None
        return plotting("patches").Patch(
            facecolor=look, label=name, hatch=hatch, edgecolor="white", linewidth=0
        )
    look.set_label(name)
    return look


def line(colour: str, dashes: str) -> Any:
    """A line for the legend."""
    return plotting("lines").Line2D([], [], color=colour, linestyle=dashes, linewidth=1.4)


def labelled(axes: Any, labels: Sequence[str], longest: int = LONGEST) -> None:
    """A row per label, the first one on top."""
    names = [shortened(label, longest) for label in labels]
    axes.set_yticks(range(len(names)), names, fontsize=9)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)


def room_for(labels: Sequence[str], longest: int = LONGEST) -> float:
    """Inches that row labels need."""
    return 0.35 + 0.0715 * max(min(len(label), longest) for label in labels)


def group_key(methods: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Legend of the groups there are."""
    there = {method["group"] for method in methods}
    return {words: GROUP_COLOURS[name] for name, words in GROUPS.items() if name in there}


def colour_of(method: Mapping[str, Any]) -> str:
    return GROUP_COLOURS.get(method["group"], REST)


def beside(axes: Any, row: int, x: float, words: str) -> None:
    """Words at the end of a bar, clear of it and of lines."""
    axes.annotate(
        words, (x, row), (5, 0), textcoords="offset points", va="center", fontsize=8.5,
        annotation_clip=False, zorder=6, bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},
    )  # fmt: skip
