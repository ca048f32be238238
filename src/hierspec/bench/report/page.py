"""One page with everything a bench found; it needs nothing but itself."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from hierspec.bench.records import GROUPS, BenchResults, MethodRecord, Roofline, TuningTrial
from hierspec.bench.report import columns
from hierspec.bench.report.pictures import pictures
from hierspec.bench.report.svg import chart, foreign
from hierspec.errors import HierspecError
from hierspec.plotting import figures
from hierspec.utils.files import write_whole

Timelines = Sequence[tuple[str, str]]
TITLE = "Speculative decoding, method by method"
_COLOURS = ("ink", "grey", "pale", "blue", "green", "orange", "vermilion", "purple")
_DARK = {  # what a dark page puts in the place of the pictures' colours
    "#ffffff": "paper",
    figures.INK.lower(): "ink",
    figures.GREY.lower(): "soft",
    figures.PALE.lower(): "pale",
}


def write(results: BenchResults, path: str | Path, timelines: Timelines = ()) -> None:
    """Write the page of one result.

    Args:
        results: an unfinished one says so.
        path: the ``.html`` file; its folder is made where it is missing.
        timelines: title and SVG of generations (:func:`hierspec.timeline.svg`).

    Raises:
        HierspecError: a timeline that is no harmless SVG, or a file that cannot be written.
    """
    write_many({TITLE: results}, path, timelines)


def write_many(
    results: Mapping[str, BenchResults], path: str | Path, timelines: Timelines = ()
) -> None:
    """Write several results, by title, on one page; otherwise as :func:`write`."""
    write_whole(Path(path), html(results, timelines), "the page")


def html(results: Mapping[str, BenchResults], timelines: Timelines = ()) -> str:
    """The page's text."""
    generations = [(name, Markup(foreign(svg))) for name, svg in timelines]  # before any work
    environment = Environment(
        loader=PackageLoader("hierspec.bench.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.globals.update(_FUNCTIONS)
    return environment.get_template("page.html.j2").render(
        title=next(iter(results)) if len(results) == 1 else TITLE,
        results=[
            _part(f"r{number}", title, found)
            for number, (title, found) in enumerate(results.items())
        ],
        timelines=generations,
        groups=GROUPS,
        colours={name: getattr(figures, name.upper()) for name in _COLOURS},
        dark=_DARK,
    )


def _part(name: str, title: str, results: BenchResults) -> dict[str, Any]:
    """What the template says of one result."""
    drawn, missing = _drawn(results, name)
    machine = {key: _words(value) for key, value in results.environment.to_dict().items()}
    if results.roofline is not None:
        machine["plain decoding's roofline, estimated"] = _roofline(results.roofline)
    settings = results.settings.to_dict()
    prompts = settings.pop("prompts")
    settings |= {f"prompts: {key}": value for key, value in prompts.items()}
    return {
        "id": name,
        "title": title,
        "results": results,
        "when": _when(results),
        "pictures": drawn,
        "no_pictures": missing,
        "machine": machine,
        "settings": {key: _words(value) for key, value in settings.items()},
        "command": command(results),
    }


def _drawn(results: BenchResults, prefix: str) -> tuple[list[dict[str, Any]], str]:
    """The pictures; without matplotlib none, and the line that installs it."""
    try:
        found = pictures(results)
    except HierspecError as error:
        return [], str(error)
    drawn = []
    for number, picture in enumerate(found):
        svg = Markup(chart(picture.content["svg"].decode(), f"{prefix}p{number}-"))
        drawn.append({"title": picture.title, "temperature": picture.temperature, "svg": svg})
    return drawn, ""


def _when(results: BenchResults) -> str:
    settings, environment = results.settings, results.environment
    return (
        f"{settings.num_prompts} prompts × {settings.max_new_tokens} tokens on "
        f"{settings.target}; {environment.accelerator or environment.cpu}; "
        f"hierspec {environment.versions.get('hierspec', '')} ({environment.commit}), "
        f"{results.created}"
    )


def _roofline(found: Roofline) -> str:
    return (
        f"{found.ms_per_token:.2f} ms per token: {found.weight_bytes / 1e6:.0f} MB of "
        f"weights at {found.bytes_per_second / 1e9:.1f} GB/s ({found.sampled})"
    )


def command(results: BenchResults) -> str:
    """The command line that measures the same again."""
    settings = results.settings
    words = ["hierspec", "bench", "--target", settings.target]
    for draft in settings.drafts:
        words += ["--draft", draft]
    if settings.prompts.get("sha256"):  # those built in have none
        words += ["--prompts", str(settings.prompts["file"])]
    numbers = ("num_prompts", "tune_prompts", "tune_tokens", "max_new_tokens", "batch_size", "seed")
    for name in ("dtype", "device", *numbers):
        words += [f"--{name.replace('_', '-')}", str(getattr(settings, name))]
    if results.environment.threads:
        words += ["--threads", str(results.environment.threads)]
    for temperature in settings.temperatures:
        words += ["--temperature", f"{temperature:g}"]
    words += ["--methods", ",".join(settings.methods)]
    return shlex.join([*words, "-o", "results.json", "--report", "report.html"])


def _best_first(trials: Sequence[TuningTrial]) -> list[TuningTrial]:
    return sorted(trials, key=lambda trial: trial.ms_per_token or float("inf"))


def _category_names(methods: Sequence[MethodRecord]) -> list[str]:
    return list(dict.fromkeys(name for method in methods for name in method.summed.by_category))


def _decimals(value: float | None, decimals: int) -> str:
    return "" if value is None else f"{value:.{decimals}f}"


def _json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, indent=indent, ensure_ascii=False)


def _words(value: Any) -> str:
    """A setting as words."""
    if value is None:
        return "none"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_words(part)}" for name, part in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(_words, value)) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


_FUNCTIONS = {
    "columns_of": columns.columns_of,
    "fastest": columns.fastest,
    "fastest_first": columns.fastest_first,
    "best_first": _best_first,
    "category_names": _category_names,
    "decimals": _decimals,
    "json": _json,
}
