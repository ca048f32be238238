"""Tables on terminals, all in one style, in which nothing is ever cut."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

_ROOM = 24  # characters to which a column of text may be folded
_PIPED = 72  # characters at which it folds where nobody says how wide the output is
_ENDLESS = 4096  # columns of a file or a pipe: lines there are as long as they need to be
_INDENT = 4
_LEAST = 40  # columns of the narrowest terminal that is written for


def console(stderr: bool = False, columns: bool = False) -> Console:
    """Return a console as wide as its terminal; files and pipes get lines of any length.

    Args:
        columns: obey the variable ``COLUMNS`` where there is no terminal.
    """
    found = Console(stderr=stderr, highlight=False)
    told = columns and os.environ.get("COLUMNS", "").isdigit()
    if found.is_terminal or told:
        found.width = max(_LEAST, found.width)
    else:
        found.width = _ENDLESS
    return found


class Borderless(Table):
    """A table without lines whose numbers and headers are never cut or broken.

    Columns of text fold where they are too wide. Where even that leaves too little room, every row
    is a paragraph: its first cell, and below it the others with their headers.
    """

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        gaps = sum(self.padding[1] for _ in self.columns[1:])
        if self._fit(console, options) + gaps <= options.max_width:
            yield from super().__rich_console__(console, options)
            return
        if self.title:
            yield self.title
        for at in range(self.row_count):
            yield from self._paragraph(at, options.max_width - _INDENT)

    def _fit(self, console: Console, options: ConsoleOptions) -> int:
        """Give every column the least width it can do with; return their sum."""
        wide = options.update(width=_ENDLESS)
        for column in self.columns:
            parts = [column.header, *column.cells]
            whole = max(Measurement.get(console, wide, part).maximum for part in parts)
            head = Measurement.get(console, wide, column.header).maximum
            if column.no_wrap:
                column.min_width = whole
                continue
            column.min_width = min(whole, max(head, _ROOM))
            if not console.is_terminal and options.max_width == _ENDLESS:
                column.max_width = max(head, _PIPED)
        return sum(column.min_width or 0 for column in self.columns)

    def _paragraph(self, at: int, width: int) -> Iterator[RenderableType]:
        first, *others = (list(column.cells)[at] for column in self.columns)
        yield first
        cells = zip(self.columns[1:], others, strict=True)
        worded = [(_text(c.header, "dim"), _text(cell)) for c, cell in cells]
        worded = [(header, text) for header, text in worded if text]
        line = Text()
        for header, text in worded:
            part = Text(" ").join((header, text)) if header else text
            if line and line.cell_len + part.cell_len + 2 > width:
                yield Padding(line, (0, 0, 0, _INDENT))
                line = Text()
            if part.cell_len > width:  # a line each rather than a break within the numbers
                yield Padding(header, (0, 0, 0, _INDENT))
                part = text
            line = Text("  ").join((line, part)) if line else part
        if line:
            yield Padding(line, (0, 0, 0, _INDENT))


def _text(part: RenderableType, style: str = "") -> Text:
    """Return a header or cell in one line; empty for one without letters."""
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
        right: headers of those of numbers, set flush right and never broken.
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
