"""Escaping, tables of two columns, and pictures that become a part of the page."""

from __future__ import annotations

import re
from collections.abc import Mapping
from html import escape
from typing import Any
from xml.etree import ElementTree

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
        raise ValueError(f"a timeline must be an SVG: {error}") from None
    if "<![CDATA[" in svg:  # which HTML may read as markup
        raise ValueError("a timeline may not hold CDATA")
    if root.tag.rpartition("}")[2] != "svg":
        raise ValueError("a timeline must be an SVG")
    for node in root.iter():
        if node.tag.rpartition("}")[2] in ("script", "foreignObject", "image", "a"):
            raise ValueError(f"a timeline may not hold <{node.tag.rpartition('}')[2]}>")
        for name, value in node.attrib.items():
            refers = name.rpartition("}")[2] == "href" and not value.startswith("#")
            if name.startswith("on") or refers:
                raise ValueError(f"a timeline may not hold the attribute {name}")
        if any(_LOADS.search(value) for value in (node.text or "", *node.attrib.values())):
            raise ValueError("a timeline may not load anything")
    return _NAMESPACE.sub("", _COMMENT.sub("", _HEAD.sub("", svg)))
