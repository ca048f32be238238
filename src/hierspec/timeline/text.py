"""The text below the picture, each token in the colour of the level that first wrote it."""

from __future__ import annotations

import unicodedata

from .story import Story
from .style import SOFT, Texts, level_colour, quoted

_WIDTH, _LINE, _COLUMNS = 7.25, 17.0, 100


def text_lines(story: Story, texts: Texts, left: float, y: float) -> tuple[list[str], float]:
    """Lines of ``text`` elements, and where they end."""
    out, y = _key(story, left, y)
    column, position = 0, None
    for cell, writer in story.text:
        if position is not None and cell.position > position:
            out.append(_piece("…", left, column, y, SOFT, "soft", "tokens the trace does not tell"))
            column += 1
        position = cell.position + 1
        colour, kind = level_colour(writer, story.levels)
        title = f"{cell.token} at {cell.position}; written by {quoted(story.levels[writer])}"
        for piece in _broken(texts(cell.token)):
            if piece == "\n":
                out.append(_piece("⏎", left, column, y, colour, kind, title))
                column, y = 0, y + _LINE
                continue
            if column + _columns(piece) > _COLUMNS and column:
                column, y = 0, y + _LINE
            out.append(_piece(piece, left, column, y, colour, kind, title))
            column += _columns(piece)
    return out, y + 6


def _key(story: Story, left: float, y: float) -> tuple[list[str], float]:
    out, column = [_piece("written by", left, 0, y + 10, SOFT, "soft")], 12
    for index, name in story.levels.items():
        colour, kind = level_colour(index, story.levels)
        out.append(_piece(f"■ {name}", left, column, y + 10, colour, kind))
        column += len(name) + 5
    return out, y + 32


def _broken(text: str) -> list[str]:
    """Runs without line breaks, short enough for a line, and the breaks."""
    out: list[str] = []
    for i, line in enumerate(text.split("\n")):
        out += ["\n"] if i else []
        out += [line[at : at + _COLUMNS // 2] for at in range(0, len(line), _COLUMNS // 2)]
    return out


def _columns(text: str) -> int:
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def _piece(
    text: str, left: float, column: int, y: float, colour: str, kind: str, title: str = ""
) -> str:
    place = (
        f'x="{left + column * _WIDTH:.2f}" y="{y:.1f}" textLength="{_columns(text) * _WIDTH:.2f}"'
    )
    weight = ' font-weight="bold"' if kind == "ink" else ""
    start = f'<text class="text {kind}" xml:space="preserve" font-family="monospace" {place}'
    inner = f"<title>{title}</title>" if title else ""
    return f'{start} font-size="12" fill="{colour}"{weight}>{inner}{quoted(text)}</text>'
