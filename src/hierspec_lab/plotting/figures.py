"""Palette, sheets, labels and files for the figures of planner, bench, timeline and papers.

A figure is made and saved inside :func:`style`; :func:`sheet` gives it a heading and a note, and
leaves the layout between them to matplotlib's constrained layout. matplotlib is imported
when the first figure is made.
"""

from __future__ import annotations

import importlib
import io
import re
import textwrap
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hierspec.errors import HierspecError
from hierspec.utils.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito's colours, which survive every common colour blindness.
BLUE, ORANGE, GREEN, VERMILION = "#0072B2", "#E69F00", "#009E73", "#D55E00"
SKY, PURPLE, BROWN = "#56B4E9", "#CC79A7", "#8C6D31"
# One colour for a rule wherever rules are drawn; names of several words begin with the rule's.
RULES = {
    "tokenwise": BLUE, "block": ORANGE, "naive": GREEN, "leading": SKY, "uncapped": VERMILION,
    "rrs": PURPLE, "block-rrs": BROWN, "rrs-without-replacement": "#444444",
    "traversal": "#A6761D", "induced-block": "#7B3294",
}  # fmt: skip
INK, GREY, PALE = "#222222", "#767676", "#ECEFF3"
ENDINGS = (".svg", ".png")
# What an SVG does not need: decimals below a thousandth of a point, blanks between elements.
_DECIMALS = re.compile(rb"(?<=\d\.\d{3})\d+")
_INDENTATION = re.compile(rb"(?<=>)\s+(?=<)")
STYLE = {
    # A list of families, so that machines without the first one show the others' letters.
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial"],
    "text.parse_math": False,  # a dollar sign in a name is a dollar sign
    "svg.fonttype": "none",  # letters stay letters: small files that can be searched
    "svg.hashsalt": "hierspec",  # the same picture, the same file
    "axes.edgecolor": GREY,
    "text.color": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
}
_WITHOUT_DATE = {
    "svg": {"Date": None, "Creator": None, "Format": None, "Type": None},
    "png": {"Software": None},
}
_MARGIN = 0.2  # inches left and right of heading and note
_LINE = 0.17  # inches a line of a note


def matplotlib(module: str = "") -> Any:
    """Import a module of matplotlib, by default the package itself.

    Raises:
        HierspecError: matplotlib is not installed.
    """
    try:
        return importlib.import_module(f"matplotlib.{module}" if module else "matplotlib")
    except ImportError:
        raise HierspecError(
            "pictures need matplotlib; install it with: pip install 'hierspec[plot]'"
        ) from None


def style() -> Any:
    """Return a context in which to make and save figures; nothing global changes."""
    return matplotlib().rc_context(STYLE)


def new_figure(width: float, height: float) -> Figure:
    """Make an empty figure of ``width`` × ``height`` inches."""
    return matplotlib("figure").Figure(figsize=(width, height), facecolor="white")


def sheet(
    width: float, height: float, title: str, subtitle: str = "", note: Sequence[str] = ()
) -> Figure:
    """Make a figure with a heading and a note; constrained layout places all between them.

    Args:
        width: inches; more where the title needs it.
        height: inches between heading and note, for axes, their labels, legends, colour bars.
        subtitle, note: paragraphs in grey, wrapped to the width.
    """
    width = max(width, text_width(title, 12.5) + 2 * _MARGIN)
    note_lines = [line for text in note for line in wrapped(text, width - 2 * _MARGIN, 8)]
    subtitle_lines = wrapped(subtitle, width - 2 * _MARGIN, 9)
    head = 0.46 + (0.06 + 0.19 * len(subtitle_lines) if subtitle_lines else 0.0)
    foot = 0.1 + (0.04 + _LINE * len(note_lines) if note_lines else 0.0)
    total_height = head + height + foot
    figure = new_figure(width, total_height)
    left = _MARGIN / width
    figure.text(left, 1 - 0.27 / total_height, title, fontsize=12.5, weight="bold", va="center")
    for i, line in enumerate(subtitle_lines):
        y = 1 - (0.55 + 0.19 * i) / total_height
        figure.text(left, y, line, fontsize=9, color=GREY, va="center")
    for i, line in enumerate(reversed(note_lines)):
        figure.text(
            left, (0.14 + _LINE * i) / total_height, line, fontsize=8, color=GREY, va="center"
        )
    rectangle = (0.1 / width, foot / total_height, 1 - 0.2 / width, height / total_height)
    figure.set_layout_engine("constrained", rect=rectangle)
    return figure


def legend_below(figure: Figure, handles: Sequence[Any]) -> None:
    """Add a legend between the axes of a :func:`sheet` and its note, in as many lines as needed.

    Args:
        handles: labelled artists.
    """
    width, height = figure.get_size_inches()
    widest = max(text_width(handle.get_label(), 9) for handle in handles) + 0.5
    columns = max(1, min(len(handles), int((width - 2 * _MARGIN) / widest)))
    layout: Any = figure.get_layout_engine()
    x, y, span, above = layout.get()["rect"]
    figure.legend(
        handles=handles, ncols=columns, loc="lower left", bbox_to_anchor=(0.1 / width, y),
        borderaxespad=0.2, frameon=False, fontsize=9, handlelength=1.4, columnspacing=1.4,
    )  # fmt: skip
    legend_height = (0.12 + 0.2 * -(-len(handles) // columns)) / height
    layout.set(rect=(x, y + legend_height, span, above - legend_height))


def picture_path(path: str | Path) -> Path:
    """Return the path of a picture, whose suffix names its format.

    Raises:
        HierspecError: the suffix is none of ``ENDINGS``.
    """
    path = Path(path)
    if path.suffix.lower() not in ENDINGS:
        raise HierspecError(f"{str(path)!r}: a picture ends in {' or '.join(ENDINGS)}")
    return path


def rendered(figure: Figure, kind: str) -> bytes:
    """Render the figure, its layout settled, as an ``svg`` or ``png`` file without the date."""
    _settle(figure)
    file = io.BytesIO()
    figure.savefig(file, format=kind, dpi=150, metadata=_WITHOUT_DATE[kind])
    content = file.getvalue()
    return _INDENTATION.sub(b"", _DECIMALS.sub(b"", content)) if kind == "svg" else content


def _settle(figure: Figure) -> None:
    """Settle the layout in rounded numbers, since the solver's last digits vary between runs."""
    if figure.get_layout_engine() is None:
        return
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    for axes in figure.axes:
        x, y, width, height = (round(float(value), 6) for value in axes.get_position().bounds)
        axes.set_position((x, y, width, height))


def save(figure: Figure, path: Path) -> None:
    """Write the picture, whole or not at all.

    Raises:
        HierspecError: the file cannot be written; an earlier one stays.
    """
    kind = path.suffix.lower().removeprefix(".")
    write_atomically(path, rendered(figure, kind), "the picture")


def text_width(text: str, size: float) -> float:
    """Estimate how many inches ``text`` takes in a font of ``size`` points."""
    return 0.0079 * size * len(text)


def wrapped(text: str, width: float, size: float) -> list[str]:
    """Wrap ``text``, set in ``size`` points, into lines of about ``width`` inches."""
    return textwrap.wrap(text, max(12, int(width / text_width("x", size))))


def shortened(name: str, longest: int) -> str:
    """Cut letters from the middle of a name, down to ``longest``; more of its end is kept."""
    if len(name) <= longest:
        return name
    head = (longest - 1) // 3
    return f"{name[:head]}…{name[len(name) - (longest - 1 - head) :].lstrip('.-_')}"


def distinct(names: Sequence[str]) -> list[str]:
    """Return names without directories and without a last word that several share (``-Instruct``).

    Names that this would make equal are returned as they are.
    """
    short = [name.rstrip("/").rsplit("/", 1)[-1] for name in names]
    ends = Counter(name.rpartition("-")[2] for name in short if "-" in name)
    cut = [
        name.rpartition("-")[0] if ends[name.rpartition("-")[2]] > 1 and "-" in name else name
        for name in short
    ]
    return cut if len(set(cut)) == len(set(names)) else list(names)


def chained(names: Sequence[str], budgets: Sequence[int], longest: int) -> str:
    """Return ``tiny 4 → mid 9 → target``, long names cut to fit about ``longest`` letters."""
    limit = max(map(len, names))
    while True:
        parts = [shortened(name, limit) for name in names]
        numbered = [f"{part} {budget}" for part, budget in zip(parts, budgets, strict=False)]
        text = " → ".join([*numbered, parts[-1]])
        if len(text) <= longest or limit <= 5:
            return text
        limit -= 1
