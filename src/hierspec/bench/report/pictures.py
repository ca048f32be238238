"""All pictures of a bench's results, the same bytes for the same results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hierspec.errors import HierspecError
from hierspec.plotting.figures import ENDINGS
from hierspec.utils.files import write_whole

from .acceptance import by_position
from .bars import speedups, time_spent, tokens_per_call
from .predicted import against_measured
from .records import check, warmth
from .sheet import drawing, rendered

CHARTS = {  # file's beginning → (what it shows, how it is drawn)
    "speedup": ("speed-up over plain decoding", speedups),
    "time": ("where the time goes", time_spent),
    "tokens-per-call": ("tokens per call of the target", tokens_per_call),
    "acceptance": ("kept of drafts, by position", by_position),
    "predicted": ("predicted and measured latency", against_measured),
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


def pictures(results: Mapping[str, Any], formats: Sequence[str] = ("svg",)) -> list[Picture]:
    """Every picture that the results have numbers for, temperature by temperature.

    Args:
        results: of ``hierspec bench``, schema 1.
        formats: ``svg``, ``png``.

    Raises:
        ValueError: other results, another format, or matplotlib is not installed.
    """
    check(results)
    for kind in formats:
        if f".{kind}" not in ENDINGS:
            raise HierspecError(f"pictures are svg or png, not {kind!r}")
    found = []
    with drawing():  # raises where matplotlib is missing
        for cell in results["cells"]:
            for stem, (title, chart) in CHARTS.items():
                figure = chart(results, cell)
                if figure is not None:
                    temperature = cell["temperature"]
                    content = {kind: rendered(figure, kind) for kind in formats}
                    heading = f"{title}, {warmth(temperature)}"
                    found.append(Picture(f"{stem}-t{temperature:g}", heading, temperature, content))
    return found


def draw(
    results: Mapping[str, Any], folder: str | Path, formats: Sequence[str] = ("svg",)
) -> list[Path]:
    """Write every picture into ``folder``, which is made where it is missing.

    Returns:
        The files, in order: per temperature ``speedup``, ``time``, ``tokens-per-call``,
        ``acceptance`` and ``predicted``, those without numbers left out.

    Raises:
        ValueError: as :func:`pictures`, or a file cannot be written.
    """
    paths = []
    for picture in pictures(results, formats):
        for kind, content in picture.content.items():
            path = Path(folder) / f"{picture.stem}.{kind}"
            write_whole(path, content, "a picture")
            paths.append(path)
    return paths
