"""All pictures of a bench's results as files; equal results give equal bytes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hierspec.utils.files import write_atomically
from hierspec_lab.bench.records import BenchResults
from hierspec_lab.plotting.figures import rendered, style

from . import charts

CHARTS = {  # first word of the file's name → (what it shows, the function that draws it)
    "speedup": ("speed-up over plain decoding", charts.speedups),
    "time": ("where the time goes", charts.time_spent),
    "tokens-per-call": ("tokens per call of the target", charts.tokens_per_call),
    "acceptance": ("kept of drafts, by position", charts.acceptance),
    "predicted": ("predicted and measured latency", charts.predictions),
}


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture of the results at one temperature.

    Attributes:
        stem: name of its file without the suffix, such as ``speedup-t0``.
        title: what it shows.
        content: bytes of the SVG.
    """

    stem: str
    title: str
    temperature: float
    content: bytes


def pictures(results: BenchResults) -> list[Picture]:
    """Draw every picture that the results have numbers for, temperature by temperature.

    Raises:
        HierspecError: matplotlib is not installed.
    """
    drawn = []
    with style():
        for cell in results.cells:
            for stem, (title, chart) in CHARTS.items():
                figure = chart(results, cell)
                if figure is not None:
                    content = rendered(figure, "svg")
                    name = f"{stem}-t{cell.temperature:g}"
                    drawn.append(Picture(name, f"{title}, {cell.title}", cell.temperature, content))
    return drawn


def draw(results: BenchResults, folder: str | Path) -> list[Path]:
    """Write every picture into ``folder``, which is made where it is missing.

    Returns:
        The files, in order: per temperature ``speedup``, ``time``, ``tokens-per-call``,
        ``acceptance`` and ``predicted``, those without numbers left out.

    Raises:
        HierspecError: as :func:`pictures`, or a file cannot be written.
    """
    paths = []
    for picture in pictures(results):
        path = Path(folder) / f"{picture.stem}.svg"
        write_atomically(path, picture.content, "a picture")
        paths.append(path)
    return paths
