"""One page with everything a bench found; it needs nothing but itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hierspec.utils.files import write_whole

from .details import chart, command, configurations, foreign, text, where
from .look import CSS, SCRIPT
from .methods import by_category, fastest, table
from .pictures import Picture, pictures
from .records import check, warmth

Timelines = Sequence[tuple[str, str]]
TITLE = "Speculative decoding, method by method"


def write(results: Mapping[str, Any], path: str | Path, timelines: Timelines = ()) -> None:
    """Write the page of one result.

    Args:
        results: of ``hierspec bench``, schema 1; an unfinished one says so.
        path: the ``.html`` file; its folder is made where it is missing.
        timelines: title and SVG of generations (:func:`hierspec.timeline.svg`).

    Raises:
        ValueError: other results, a timeline that is no harmless SVG, or a file that cannot be
            written.
    """
    write_many({TITLE: results}, path, timelines)


def write_many(
    results: Mapping[str, Mapping[str, Any]], path: str | Path, timelines: Timelines = ()
) -> None:
    """Write several results, by title, on one page; otherwise as :func:`write`."""
    write_whole(Path(path), html(results, timelines), "the page")


def html(results: Mapping[str, Mapping[str, Any]], timelines: Timelines = ()) -> str:
    """The page's text."""
    for result in results.values():
        check(result)
    generations = [(name, foreign(svg)) for name, svg in timelines]  # refused before any work
    title = next(iter(results)) if len(results) == 1 else TITLE
    parts = [f"<h1>{text(title)}</h1>"]
    if len(results) > 1:
        links = "".join(
            f'<a href="#r{i}">{text(name)}</a>' for i, name in enumerate(results)
        )  # fmt: skip
        parts.append(f"<nav>{links}</nav>")
    for i, (name, result) in enumerate(results.items()):
        if len(results) > 1:
            parts.append(f'<h2 id="r{i}">{text(name)}</h2>')
        parts += _result(result, f"r{i}")
    if generations:
        parts.append("<h2>Timelines: who called when, and what was kept</h2>")
    for name, svg in generations:
        parts.append(f'<h3>{text(name)}</h3>\n<figure><div class="scroll">{svg}</div></figure>')
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8"/>\n'
        '<meta name="viewport" content="width=device-width"/>\n'
        f"<title>{text(title)}</title>\n<style>{CSS}</style>\n</head>\n<body>\n"
        + "\n".join(part for part in parts if part)
        + f"\n<script>{SCRIPT}</script>\n</body>\n</html>\n"
    )


def _result(result: Mapping[str, Any], prefix: str) -> list[str]:
    drawn, missing = _drawn(result)
    parts = [f'<p class="soft">{text(_when(result))}</p>']
    if not result.get("finished", True):
        parts.append(
            '<p class="note alarm">Unfinished: some runs are missing, and what stands here may '
            "still change.</p>"
        )
    parts += [f'<p class="note">{text(note)}</p>' for note in result.get("notes") or ()]
    if missing:
        parts.append(f'<p class="note">No pictures: {text(missing)}</p>')
    for i, cell in enumerate(result["cells"]):
        parts += _cell(cell, drawn, f"{prefix}c{i}")
    parts += [
        "<h2>How it was measured</h2>",
        where(result),
        f"<h3>To measure it again</h3>\n<pre>{text(command(result))}</pre>",
    ]
    return parts


def _cell(cell: Mapping[str, Any], drawn: Sequence[Picture], prefix: str) -> list[str]:
    parts = [f"<h2>{text(warmth(cell['temperature']).capitalize())}</h2>"]
    if best := fastest(cell):
        parts.append(f"<p><strong>{text(best)}</strong></p>")
    parts.append(table(cell))
    for number, picture in enumerate(drawn):
        if picture.temperature == cell["temperature"]:
            svg = chart(picture.content["svg"].decode(), f"{prefix}p{number}-")
            label = f'role="img" aria-label="{text(picture.title)}"'
            parts.append(f"<figure {label}>{svg}</figure>")
    parts += [by_category(cell), configurations(cell)]
    load = {when: values for when, values in (cell.get("load_average") or {}).items() if values}
    if load:
        words = "; ".join(f"{when}: {', '.join(map(str, load[when]))}" for when in load)
        parts.append(f'<p class="soft">Load averages {text(words)}.</p>')
    return parts


def _drawn(result: Mapping[str, Any]) -> tuple[list[Picture], str]:
    """The pictures; without matplotlib none, and the line that installs it."""
    try:
        return pictures(result), ""
    except ValueError as error:  # the results have been checked: matplotlib is missing
        return [], str(error)


def _when(result: Mapping[str, Any]) -> str:
    settings, environment = result["settings"], result["environment"]
    versions = environment.get("versions") or {}
    return (
        f"{settings['num_prompts']} prompts × {settings['max_new_tokens']} tokens on "
        f"{settings['target']}; {environment.get('accelerator') or environment.get('cpu')}; "
        f"hierspec {versions.get('hierspec', '')} ({environment.get('commit')}), "
        f"{result.get('created', '')}"
    )
