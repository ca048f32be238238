"""All pictures of a bench's results, the same bytes for the same results."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hierspec.bench.records import BenchResults
from hierspec.bench.report import charts
from hierspec.errors import HierspecError
from hierspec.plotting.figures import ENDINGS, plotting, style
from hierspec.utils.files import write_whole

CHARTS = {  # file's beginning → (what it shows, how it is drawn)
    "speedup": ("speed-up over plain decoding", charts.speedups),
    "time": ("where the time goes", charts.time_spent),
    "tokens-per-call": ("tokens per call of the target", charts.tokens_per_call),
    "acceptance": ("kept of drafts, by position", charts.acceptance),
    "predicted": ("predicted and measured latency", charts.predictions),
}
# A list of families, so that machines without the first one show the others' letters.
_RC = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial"],
    "text.parse_math": False,  # a dollar sign in a name is a dollar sign
}
_METADATA = {
    "svg": {"Date": None, "Creator": None, "Format": None, "Type": None},
    "png": {"Software": None},
}


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture of one temperature.

    Attributes:
        stem: of its file: ``speedup-t0``.
        title: what it shows.
        content: the file's, per format.
    """

    stem: str
    title: str
    temperature: float
    content: dict[str, bytes]


@contextmanager
def drawing() -> Iterator[None]:
    """Figures are made and saved in here; nothing global changes.

    Raises:
        HierspecError: matplotlib is not installed.
    """
    with style(), plotting("").rc_context(_RC):
        yield


def pictures(results: BenchResults, formats: Sequence[str] = ("svg",)) -> list[Picture]:
    """Every picture that the results have numbers for, temperature by temperature.

    Args:
        formats: ``svg``, ``png``.

    Raises:
        HierspecError: another format, or matplotlib is not installed.
    """
    for kind in formats:
        if f".{kind}" not in ENDINGS:
            raise HierspecError(f"pictures are svg or png, not {kind!r}")
    found = []
    with drawing():
        for cell in results.cells:
            for stem, (title, chart) in CHARTS.items():
                figure = chart(results, cell)
                if figure is not None:
                    content = {kind: _rendered(figure, kind) for kind in formats}
                    name = f"{stem}-t{cell.temperature:g}"
                    found.append(Picture(name, f"{title}, {cell.title}", cell.temperature, content))
    return found


def _rendered(figure: Any, kind: str) -> bytes:
    """The file's content. The same figure gives the same bytes."""
    file = io.BytesIO()
    figure.savefig(file, format=kind, dpi=150, metadata=_METADATA[kind])
    return file.getvalue()


def draw(
    results: BenchResults, folder: str | Path, formats: Sequence[str] = ("svg",)
) -> list[Path]:
    """Write every picture into ``folder``, which is made where it is missing.

    Returns:
        The files, in order: per temperature ``speedup``, ``time``, ``tokens-per-call``,
        ``acceptance`` and ``predicted``, those without numbers left out.

    Raises:
        HierspecError: as :func:`pictures`, or a file cannot be written.
    """
    paths = []
    for picture in pictures(results, formats):
        for kind, content in picture.content.items():
            path = Path(folder) / f"{picture.stem}.{kind}"
            write_whole(path, content, "a picture")
            paths.append(path)
    return paths
