"""What a claim is, and how the result files are read."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"


@dataclass(frozen=True)
class Claim:
    """``said`` stands on ``page`` once its gaps are filled with what ``figures`` computes."""

    page: str
    said: str
    figures: Callable[[], Iterable[object]] = tuple

    def text(self) -> str:
        return flat(self.said.format(*self.figures()))


def flat(text: str) -> str:
    """Text as a line: pages break lines where they like."""
    return " ".join(text.split())


@cache
def data(name: str) -> Any:
    """A result file of a script."""
    path = RESULTS / f"{name}.json"
    packed = path.with_name(f"{path.name}.gz")
    return json.loads(gzip.decompress(packed.read_bytes()) if packed.exists() else path.read_text())


def percent(value: float, decimals: int = 1) -> str:
    return f"{100 * value:.{decimals}f} %"


def words(number: int) -> str:
    """Small numbers as prose writes them."""
    return {5: "five", 6: "six", 7: "seven", 8: "eight", 9: "nine"}.get(number, str(number))


def short(value: float, digits: int = 2) -> str:
    """A figure without the zero before its point, as in ``.07``; two digits where it is small."""
    if abs(value) < 1e-12:  # rounding
        return "0"
    shown = f"{value:.{digits}f}"
    if abs(value) < 0.01 and digits == 2:
        shown = f"{value:.2g}"
    return shown[1:] if shown.startswith("0.") else shown
