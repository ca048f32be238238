"""Pictures to embed in a page, stripped of what they do not need."""

from __future__ import annotations

import re

_HEAD = re.compile(r"^.*?(?=<svg\b)", re.S)  # XML declaration, document type
_COMMENT = re.compile(r"<!--.*?-->", re.S)
_METADATA = re.compile(r"<metadata>.*?</metadata>", re.S)
_SHEET = re.compile(r"<defs>\s*<style\b[^>]*>.*?</style>\s*</defs>", re.S)
_NAMESPACE = re.compile(r'\s+xmlns(?::\w+)?="[^"]*"')


def chart(svg: str, prefix: str) -> str:
    """Strip a picture of matplotlib so that it can be embedded in a page.

    Args:
        prefix: put before its ids, which must differ between the pictures of a page.
    """
    for pattern in (_HEAD, _COMMENT, _METADATA, _SHEET, _NAMESPACE):
        svg = pattern.sub("", svg)
    svg = re.sub(r'\bid="', f'id="{prefix}', svg)
    svg = re.sub(r'(?:xlink:)?href="#', f'href="#{prefix}', svg)
    svg = svg.replace("url(#", f"url(#{prefix}")
    return svg.replace("<svg", '<svg class="chart"', 1)
