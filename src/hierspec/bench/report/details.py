"""Escaping, tables of two columns, and pictures that become a part of the page.

Where it was measured, with which settings, and what every method was configured to do.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from html import escape
from typing import Any
from xml.etree import ElementTree

from hierspec.errors import HierspecError

from .records import called, ran, sampled

_HEAD = re.compile(r"^.*?(?=<svg\b)", re.S)  # XML declaration, document type
_COMMENT = re.compile(r"<!--.*?-->", re.S)
_METADATA = re.compile(r"<metadata>.*?</metadata>", re.S)
_SHEET = re.compile(r"<defs>\s*<style\b[^>]*>.*?</style>\s*</defs>", re.S)
_LOADS = re.compile(r"@import|url\((?!\s*['\"]?#)", re.I)
_NAMESPACE = re.compile(r'\s+xmlns(?::\w+)?="[^"]*"')


def text(value: Any) -> str:
    """Escaped, for elements and attributes."""
    return escape(str(value), quote=True)


def listing(values: Mapping[str, Any]) -> str:
    """A table of names and values."""
    rows = "".join(
        f'<tr><td>{text(name)}</td><td class="words">{text(value)}</td></tr>\n'
        for name, value in values.items()
    )
    return f"<table><tbody>\n{rows}</tbody></table>"


def chart(svg: str, prefix: str) -> str:
    """A picture of matplotlib as a part of the page.

    Args:
        prefix: of its ids, which must differ between the pictures of a page.
    """
    for pattern in (_HEAD, _COMMENT, _METADATA, _SHEET, _NAMESPACE):
        svg = pattern.sub("", svg)
    svg = re.sub(r'\bid="', f'id="{prefix}', svg)
    svg = re.sub(r'(?:xlink:)?href="#', f'href="#{prefix}', svg)
    svg = svg.replace("url(#", f"url(#{prefix}")
    return svg.replace("<svg", '<svg class="chart"', 1)


def foreign(svg: str) -> str:
    """A picture drawn elsewhere (a timeline), as it is.

    Raises:
        ValueError: it is no SVG, or could run something or load something.
    """
    try:
        root = ElementTree.fromstring(svg)
    except ElementTree.ParseError as error:
        raise HierspecError(f"a timeline must be an SVG: {error}") from None
    if "<![CDATA[" in svg:  # which HTML may read as markup
        raise HierspecError("a timeline may not hold CDATA")
    if root.tag.rpartition("}")[2] != "svg":
        raise HierspecError("a timeline must be an SVG")
    for node in root.iter():
        if node.tag.rpartition("}")[2] in ("script", "foreignObject", "image", "a"):
            raise HierspecError(f"a timeline may not hold <{node.tag.rpartition('}')[2]}>")
        for name, value in node.attrib.items():
            refers = name.rpartition("}")[2] == "href" and not value.startswith("#")
            if name.startswith("on") or refers:
                raise HierspecError(f"a timeline may not hold the attribute {name}")
        if any(_LOADS.search(value) for value in (node.text or "", *node.attrib.values())):
            raise HierspecError("a timeline may not load anything")
    return _NAMESPACE.sub("", _COMMENT.sub("", _HEAD.sub("", svg)))


def where(results: Mapping[str, Any]) -> str:
    """Environment and settings, side by side in two lists."""
    environment, settings = results["environment"], results["settings"]
    prompts = settings.get("prompts") or {}
    machine = {name: _words(value) for name, value in environment.items()}
    asked = {name: _words(value) for name, value in settings.items() if name != "prompts"}
    asked |= {f"prompts: {name}": _words(value) for name, value in prompts.items()}
    floor = results.get("floor")
    more = {} if floor is None else {"plain decoding's floor, estimated": _floor(floor)}
    return f"<h3>Machine and versions</h3>\n{listing(machine | more)}\n<h3>Settings</h3>\n" + (
        listing(asked)
    )


def command(results: Mapping[str, Any]) -> str:
    """The command line that measures the same again."""
    settings, environment = results["settings"], results["environment"]
    words = ["hierspec", "bench", "--target", settings["target"]]
    for draft in settings.get("drafts") or ():
        words += ["--draft", draft]
    if (settings.get("prompts") or {}).get("sha256"):  # those built in have none
        words += ["--prompts", settings["prompts"]["file"]]
    numbers = ("num_prompts", "tune_prompts", "tune_tokens", "max_new_tokens", "batch_size", "seed")
    for name in ("dtype", "device", *numbers):
        if settings.get(name) is not None:
            words += [f"--{name.replace('_', '-')}", str(settings[name])]
    if environment.get("threads"):
        words += ["--threads", str(environment["threads"])]
    for temperature in settings.get("temperatures") or ():
        words += ["--temperature", f"{temperature:g}"]
    words += ["--methods", ",".join(settings["methods"])]
    return shlex.join([*words, "-o", "results.json", "--report", "report.html"])


def configurations(cell: Mapping[str, Any]) -> str:
    """Per method: its configuration, what was tuned, and what each level did."""
    parts = []
    for method in ran(cell):
        configuration = json.dumps(method["configuration"], indent=2, ensure_ascii=False)
        parts.append(
            f"<details><summary>{text(called(method))}</summary>\n"
            f"<pre>{text(configuration)}</pre>\n{_levels(method)}{_tuning(method)}</details>"
        )
    return "<h3>Configuration of each method</h3>\n" + "\n".join(parts) if parts else ""


def _levels(method: Mapping[str, Any]) -> str:
    levels = method["summary"].get("levels") or []
    if not levels:
        return ""
    keys = {
        "calls_per_token": ("calls / token", 3),
        "ms_per_token": ("ms / token", 2),
        "forward_ms_per_token": ("of it in forwards", 2),
        "acceptance_rate": ("acceptance rate", 3),
    }
    heads = "".join(f"<th>{name}</th>" for name, _ in keys.values())
    rows = ""
    for level in levels:
        cells = "".join(
            f"<td>{'' if level.get(key) is None else format(level[key], f'.{decimals}f')}</td>"
            for key, (_, decimals) in keys.items()
        )
        rows += f"<tr><td>{text(level['name'])}</td>{cells}</tr>\n"
    return f"<table><thead><tr><th>level</th>{heads}</tr></thead><tbody>\n{rows}</tbody></table>\n"


def _tuning(method: Mapping[str, Any]) -> str:
    tuning = method.get("tuning")
    if not tuning or not tuning.get("trials"):
        return ""
    rows = "".join(
        f'<tr><td class="words">{text(json.dumps(trial["configuration"], ensure_ascii=False))}</td>'
        f"<td>{_ms(trial.get('ms_per_token'))}</td></tr>\n"
        for trial in sorted(
            tuning["trials"], key=lambda trial: trial.get("ms_per_token") or float("inf")
        )
    )
    size = tuning.get("batch_size", 1)
    together = f", {text(size)} at once" if size > 1 else ""
    return (
        f"<table><thead><tr><th>tried on {text(tuning['prompts'])} other prompts{together}</th>"
        f"<th>median ms/token</th></tr></thead><tbody>\n{rows}</tbody></table>\n"
    )


def _ms(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _floor(floor: Mapping[str, float]) -> str:
    return (
        f"{floor['ms_per_token']:.2f} ms per token: {floor['weight_bytes'] / 1e6:.0f} MB of "
        f"weights at {floor['bytes_per_second'] / 1e9:.1f} GB/s ({sampled(floor)})"
    )


def _words(value: Any) -> str:
    """A setting as words."""
    if value is None:
        return "none"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_words(part)}" for name, part in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(_words, value)) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value)
