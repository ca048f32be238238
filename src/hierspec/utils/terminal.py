"""Tables for terminals, all in one style, that never truncate a cell."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

_MIN_FOLDED = 24  # characters: a column of text is not folded to less
_MAX_PIPED = 72  # characters of a column of text where the width of the output is not known
_ENDLESS = 4096  # columns of a file or a pipe: lines there are as long as they need to be
_INDENT = 4
_MIN_TERMINAL = 40  # columns: narrower terminals are written to as if they had as many


def console(stderr: bool = False, columns: bool = False) -> Console:
    """Return a console as wide as its terminal; files and pipes get lines of any length.

    Args:
        columns: obey the variable ``COLUMNS`` where there is no terminal.
    """
    found = Console(stderr=stderr, highlight=False)
    if found.is_terminal or (columns and os.environ.get("COLUMNS", "").isdigit()):
        found.width = max(_MIN_TERMINAL, found.width)
    else:
        found.width = _ENDLESS
    return found


class Borderless(Table):
    """A table without lines whose numbers and headers are never cut or broken.

    Columns of text fold where they are too wide. If the table is still too wide, every row becomes
    a paragraph: its first cell, and below it the others with their headers.
    """

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        gaps = sum(self.padding[1] for _ in self.columns[1:])
        if self._fit(console, options) + gaps <= options.max_width:
            yield from super().__rich_console__(console, options)
            return
        if self.title:
            yield self.title
        for row in range(self.row_count):
            yield from self._paragraph(row, options.max_width - _INDENT)

    def _fit(self, console: Console, options: ConsoleOptions) -> int:
        """Set every column's minimum width and return their sum."""
        wide = options.update(width=_ENDLESS)
        for column in self.columns:
            parts = [column.header, *column.cells]
            whole = max(Measurement.get(console, wide, part).maximum for part in parts)
            head = Measurement.get(console, wide, column.header).maximum
            if column.no_wrap:
                column.min_width = whole
                continue
            column.min_width = min(whole, max(head, _MIN_FOLDED))
            if not console.is_terminal and options.max_width == _ENDLESS:
                column.max_width = max(head, _MAX_PIPED)
        return sum(column.min_width or 0 for column in self.columns)

    def _paragraph(self, row: int, width: int) -> Iterator[RenderableType]:
        first, *others = (list(column.cells)[row] for column in self.columns)
        yield first
        cells = zip(self.columns[1:], others, strict=True)
        texts = [(_text(column.header, "dim"), _text(cell)) for column, cell in cells]
        line = Text()
        for header, text in texts:
            if not text:
                continue
            part = Text(" ").join((header, text)) if header else text
            if line and line.cell_len + part.cell_len + 2 > width:
                yield Padding(line, (0, 0, 0, _INDENT))
                line = Text()
            if part.cell_len > width:  # header and cell on separate lines, so that no number breaks
                yield Padding(header, (0, 0, 0, _INDENT))
                part = text
            line = Text("  ").join((line, part)) if line else part
        if line:
            yield Padding(line, (0, 0, 0, _INDENT))


def _text(part: RenderableType, style: str = "") -> Text:
    """Return a header or cell as one line, without the blanks at the ends of its lines."""
    text = part if isinstance(part, Text) else Text(str(part))
    if style:
        text = Text(text.plain, style)
    lines = [line.copy() for line in text.split()]
    for line in lines:
        line.rstrip()
    return Text(" ").join(line for line in lines if line)


def borderless(
    left: Iterable[str], right: Iterable[str] = (), title: str | None = None
) -> Borderless:
    """Return a table without lines.

    Args:
        left: headers of the columns of text, which fold where they are too wide.
        right: headers of the columns of numbers, aligned right and never broken.
    """
    table = Borderless(
        title=None if title is None else Text(title, "italic"),
        title_justify="left",
        box=None,
        pad_edge=False,
        header_style="dim",
    )
    for name in left:
        table.add_column(Text(name), overflow="fold")
    for name in right:
        table.add_column(Text(name), justify="right", no_wrap=True)
    return table
