"""Pictures to embed in a page: our own, stripped of what it does not need, and others', checked to
be harmless."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from hierspec.errors import HierspecError

_HEAD = re.compile(r"^.*?(?=<svg\b)", re.S)  # XML declaration, document type
_COMMENT = re.compile(r"<!--.*?-->", re.S)
_METADATA = re.compile(r"<metadata>.*?</metadata>", re.S)
_SHEET = re.compile(r"<defs>\s*<style\b[^>]*>.*?</style>\s*</defs>", re.S)
_LOADS = re.compile(r"@import|url\((?!\s*['\"]?#)", re.I)
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


def foreign(svg: str) -> str:
    """Check a picture drawn elsewhere (a timeline), and return it ready to be embedded.

    Raises:
        HierspecError: it is no SVG, or could run a script or load a resource.
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
        tag = node.tag.rpartition("}")[2]
        if tag in ("script", "foreignObject", "image", "a"):
            raise HierspecError(f"a timeline may not hold <{tag}>")
        for name, value in node.attrib.items():
            refers = name.rpartition("}")[2] == "href" and not value.startswith("#")
            if name.startswith("on") or refers:
                raise HierspecError(f"a timeline may not hold the attribute {name}")
        if any(_LOADS.search(value) for value in (node.text or "", *node.attrib.values())):
            raise HierspecError("a timeline may not load anything")
    return _NAMESPACE.sub("", _COMMENT.sub("", _HEAD.sub("", svg)))
