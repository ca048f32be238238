"""What all pictures share: matplotlib on demand, colours that everyone can tell apart, the file."""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hierspec.errors import HierspecError
from hierspec.utils.files import write_whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito's colours, which survive every common colour blindness.
BLUE, ORANGE, GREEN, VERMILION = "#0072B2", "#E69F00", "#009E73", "#D55E00"
SKY, PURPLE = "#56B4E9", "#CC79A7"
INK, GREY, PALE = "#222222", "#767676", "#ECEFF3"
ENDINGS = (".svg", ".png")
STYLE = {
    "font.family": "DejaVu Sans",
    "svg.fonttype": "none",  # letters stay letters: small files that can be searched
    "svg.hashsalt": "hierspec",  # the same picture, the same file
    "axes.edgecolor": GREY,
    "text.color": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
}


def plotting(module: str = "figure") -> Any:
    """A module of matplotlib.

    Raises:
        ValueError: matplotlib is not installed.
    """
    try:
        return importlib.import_module(f"matplotlib.{module}" if module else "matplotlib")
    except ImportError:
        raise HierspecError(
            "pictures need matplotlib; install it with: pip install 'hierspec[plot]'"
        ) from None


def checked(path: str | Path) -> Path:
    """The path of a picture; its ending says the format."""
    path = Path(path)
    if path.suffix.lower() not in ENDINGS:
        raise HierspecError(f"{str(path)!r}: a picture ends in {' or '.join(ENDINGS)}")
    return path


def style() -> Any:
    """A context in which figures are made and saved; nothing global changes."""
    return plotting("").rc_context(STYLE)


def new_figure(width: float, height: float) -> Figure:
    """An empty figure; inches."""
    return plotting().Figure(figsize=(width, height), facecolor="white")


def save(figure: Figure, path: Path) -> None:
    """Write the picture, without the date, so that it can be compared and committed.

    Raises:
        ValueError: it cannot be written; what was there before stays.
    """
    kind = path.suffix.lower().removeprefix(".")
    metadata = {"Date": None} if kind == "svg" else None

    def write(target: Path) -> None:  # whose own ending says nothing
        figure.savefig(target, format=kind, dpi=150, metadata=metadata)

    write_whole(path, write, "the picture")


def shortened(name: str, longest: int) -> str:
    """A name that fits; the ends of names say more than their beginnings, so they keep more."""
    if len(name) <= longest:
        return name
    head = (longest - 1) // 3
    return f"{name[:head]}…{name[len(name) - (longest - 1 - head) :].lstrip('.-_')}"


def distinct(names: Sequence[str]) -> list[str]:
    """Names without directories, and without a last word (``-Instruct``) that several share."""
    short = [name.rstrip("/").rsplit("/", 1)[-1] for name in names]
    ends = Counter(name.rpartition("-")[2] for name in short if "-" in name)
    cut = [
        name.rpartition("-")[0] if ends[name.rpartition("-")[2]] > 1 and "-" in name else name
        for name in short
    ]
    return cut if len(set(cut)) == len(set(names)) else list(names)


def chained(names: Sequence[str], budgets: Sequence[int], room: int) -> str:
    """``tiny 4 → mid 9 → target``, the longest names cut until about ``room`` letters suffice."""
    longest = max(map(len, names))
    while True:
        parts = [shortened(name, longest) for name in names]
        numbered = [f"{part} {budget}" for part, budget in zip(parts, budgets, strict=False)]
        text = " → ".join([*numbered, parts[-1]])
        if len(text) <= room or longest <= 5:
            return text
        longest -= 1
