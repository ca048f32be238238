"""One self-contained HTML page with everything a bench found."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from hierspec.errors import HierspecError
from hierspec.utils.files import write_atomically
from hierspec.utils.terminal import counted
from hierspec_lab.bench.method_records import GROUPS, TuningTrial
from hierspec_lab.bench.records import BenchResults, Roofline
from hierspec_lab.plotting import figures
from hierspec_lab.plotting.pages import render_page

from . import columns
from .pictures import pictures
from .svg import chart

TITLE = "Speculative decoding, method by method"
_COLOURS = ("ink", "grey", "pale", "blue", "green", "orange", "vermilion", "purple")
_DARK = {  # colours of the pictures → variables of the style sheet that replace them when dark
    "#ffffff": "paper",
    figures.INK.lower(): "ink",
    figures.GREY.lower(): "soft",
    figures.PALE.lower(): "pale",
}


def write(results: BenchResults, path: str | Path) -> None:
    """Write the page of one bench.

    Args:
        results: the page says where they are unfinished.
        path: the ``.html`` file; its folder is made where it is missing.

    Raises:
        HierspecError: the file cannot be written.
    """
    write_atomically(Path(path), html({TITLE: results}), "the page")


def html(results: Mapping[str, BenchResults]) -> str:
    """Render the page of benches by title."""
    values = {
        **_FUNCTIONS,
        "title": next(iter(results)) if len(results) == 1 else TITLE,
        "results": [
            _part(f"r{number}", title, bench)
            for number, (title, bench) in enumerate(results.items())
        ],
        "groups": GROUPS,
        "colours": {name: getattr(figures, name.upper()) for name in _COLOURS},
        "dark": _DARK,
    }
    return render_page("hierspec_lab.bench.report", values, "templates")


def _part(name: str, title: str, results: BenchResults) -> dict[str, Any]:
    """Return what the template says of one bench; ``name`` is its id in the page."""
    drawn, missing = _svg_pictures(results, name)
    machine = {key: _in_words(value) for key, value in results.environment.to_dict().items()}
    if results.roofline is not None:
        machine["plain decoding's roofline, estimated"] = _roofline(results.roofline)
    settings = results.settings.to_dict()
    prompts = settings.pop("prompts")
    settings |= {f"prompts: {key}": value for key, value in prompts.items()}
    return {
        "id": name,
        "title": title,
        "results": results,
        "when": _conditions(results),
        "pictures": drawn,
        "no_pictures": missing,
        "machine": machine,
        "settings": {key: _in_words(value) for key, value in settings.items()},
        "command": command(results),
    }


def _svg_pictures(results: BenchResults, prefix: str) -> tuple[list[dict[str, Any]], str]:
    """Return the pictures, or none and the line that installs matplotlib where it is missing."""
    try:
        available = pictures(results)
    except HierspecError as error:
        return [], str(error)
    drawn = []
    for number, picture in enumerate(available):
        svg = Markup(chart(picture.content.decode(), f"{prefix}p{number}-"))
        drawn.append({"title": picture.title, "temperature": picture.temperature, "svg": svg})
    return drawn, ""


def _conditions(results: BenchResults) -> str:
    settings, environment = results.settings, results.environment
    return (
        f"{counted(settings.num_prompts, 'prompt')} × {settings.max_new_tokens} tokens on "
        f"{settings.target}; {environment.accelerator or environment.cpu}; "
        f"hierspec {environment.versions.get('hierspec', '')} ({environment.commit}), "
        f"{results.created}"
    )


def _roofline(roofline: Roofline) -> str:
    return (
        f"{roofline.ms_per_token:.2f} ms per token: {roofline.weight_bytes / 1e6:.0f} MB of "
        f"weights at {roofline.bytes_per_second / 1e9:.1f} GB/s ({roofline.samples_text})"
    )


def command(results: BenchResults) -> str:
    """Return the command line that measures the same again."""
    settings = results.settings
    words = ["hierspec", "bench", "--target", settings.target]
    for draft in settings.drafts:
        words += ["--draft", draft]
    if settings.prompts.get("sha256"):  # built-in prompts have none
        words += ["--prompts", str(settings.prompts["file"])]
    numbers = ("num_prompts", "tune_prompts", "tune_tokens", "max_new_tokens", "batch_size", "seed")
    for name in ("dtype", "device", *numbers):
        words += [f"--{name.replace('_', '-')}", str(getattr(settings, name))]
    if results.environment.threads:
        words += ["--threads", str(results.environment.threads)]
    for temperature in settings.temperatures:
        words += ["--temperature", f"{temperature:g}"]
    words += ["--chat"] * settings.chat + ["--until-eos"] * settings.until_eos
    words += ["--methods", ",".join(settings.methods)]
    return shlex.join([*words, "-o", "results.json", "--report", "report.html"])


def _best_first(trials: Sequence[TuningTrial]) -> list[TuningTrial]:
    return sorted(trials, key=lambda trial: trial.ms_per_token or float("inf"))


def _decimals(value: float | None, decimals: int) -> str:
    return "" if value is None else f"{value:.{decimals}f}"


def _json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, indent=indent, ensure_ascii=False)


def _in_words(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_in_words(part)}" for name, part in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(_in_words, value)) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


_FUNCTIONS = {
    "columns_of": columns.columns_of,
    "fastest": columns.fastest,
    "fastest_first": columns.fastest_first,
    "best_first": _best_first,
    "category_names": columns.category_names,
    "decimals": _decimals,
    "json": _json,
}
