"""What stands in a picture: the letters of an SVG, which must parse."""

from xml.etree import ElementTree


def letters(svg: bytes | str) -> list[str]:
    root = ElementTree.fromstring(svg)
    assert root.tag.endswith("}svg")
    return ["".join(node.itertext()) for node in root.iter() if node.tag.endswith("}text")]
