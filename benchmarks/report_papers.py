"""Write ``docs/papers/results.md`` from what ``hierspec reproduce`` measured."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import common
from paper_evidence.computed import markdown_table

from hierspec.utils.schema import validate
from hierspec_lab.papers import MEASURED
from hierspec_lab.papers.drawing import draw
from hierspec_lab.papers.tables import Figure

_HALVING = ("p1-models",)  # what profiles on half of its prompts; files count the other half
FOLDER = common.ROOT / "docs" / "papers"
PAGE = FOLDER / "results.md"
INTRO = """# The papers' experiments, measured here

Written by `python benchmarks/report.py` from `benchmarks/results/reproduce-*.json`. Printed values
come from the papers' models and machines: compare the shape, not the digits. `zoo:large` is a
synthetic cost with a real distribution. Prompts are code, mathematics and Spec-Bench's kinds of
text, a domain after the other, cut to their last 64 tokens; every run is in the file, under
`record`. [What holds, here](evidence.md) has verdicts, also on a released model."""


def text() -> str:
    """Return the page on what was measured."""
    parts = [INTRO]
    for name, data in _reproductions().items():
        parts.append(_section(name, MEASURED[name][1], data))
    missing = [f"`{name}`" for name in MEASURED if name not in _reproductions()]
    if missing:
        parts[0] += f" Not here, but there: {', '.join(missing)}."
    return "\n\n".join(parts) + "\n"


def draw_figures() -> None:
    """Draw the figures beside the page."""
    (FOLDER / "pictures").mkdir(exist_ok=True)
    for name, data in _reproductions().items():
        for number, figure in enumerate(data["figures"], 1):
            draw(validate(Figure, figure, "a figure"), FOLDER / _picture(name, number))


@cache
def _reproductions() -> dict[str, dict[str, Any]]:
    """Return the stored results, by the reproduction's name."""
    return {n: json.loads(_path(n).read_text()) for n in MEASURED if _path(n).exists()}


def _picture(name: str, number: int) -> str:
    return f"pictures/{name}-{number}.svg"


def _path(name: str) -> Path:
    return common.RESULTS / f"reproduce-{name}.json"


def _section(name: str, shows: str, data: dict[str, Any]) -> str:
    measured = data["measured_on"]
    prompts = measured["prompts"]
    count = prompts["count"] * (1 + (name in _HALVING))
    parts = [
        f"## {shows}",
        f"`hierspec reproduce {name} --target '{measured['target']}' --dtype "
        f"{measured['dtype']} --prompts {prompts.get('file', 'FILE')} --num-prompts "
        f"{count} --max-new-tokens {measured['max_new_tokens']}`",
    ]
    if name in _HALVING:
        parts.append("Profiled on every other of these prompts, measured on those between.")
    if "environment" in measured:
        parts.append(common.provenance(measured))
    for entry in data["tables"]:
        parts += [f"**{entry['name']}**: {entry['caption']}", _rows(entry)]
        parts += [f"- {note}" for note in entry["notes"]]
    for number, entry in enumerate(data["figures"], 1):
        parts += [f"![{entry['name']}: {entry['caption']}]({_picture(name, number)})"]
        parts += [f"- {note}" for note in entry["notes"]]
    return "\n\n".join(parts)


def _rows(entry: dict[str, Any]) -> str:
    """Return a table of printed and measured values, then of what is only measured."""
    if not (rows := entry["rows"]):
        return ""
    head: list[str] = []
    for key, value in rows[0].items():
        is_cell = isinstance(value, dict) and "printed" in value
        head += [f"{key}, printed", f"{key}, here"] if is_cell else [key.replace("_", " ")]
    body = []
    for row in rows:
        cells: list[str] = []
        for value in row.values():
            if isinstance(value, dict) and "printed" in value:
                cells += [f"{value['printed']:g}", _plainly(value["computed"])]
            else:
                cells.append(_plainly(value))
        body.append(cells)
    return markdown_table(head, body)


def _plainly(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
