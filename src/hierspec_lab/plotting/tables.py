"""Tables for terminals, all in one style, that never truncate a cell."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import cast

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from hierspec.utils import terminal
from hierspec.utils.terminal import UNLIMITED

# Widths in characters
_MIN_FOLDED = 24  # of a folded column of text
_MAX_PIPED = 48  # of a column of text where the width of the output is not known
_INDENT = 4
_NUMBER = re.compile(r"[\d.,]+")


class Borderless(Table):
    """A table without lines whose numbers and headers are never cut or broken.

    Columns of text fold where they are too wide. If the table is still too wide, every row becomes
    a paragraph: its first cell that is not empty (a number with its header), and below it the other
    cells with their headers.
    """

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        gaps = (len(self.columns) - 1) * (self.padding[1] + self.padding[3])
        if self._set_min_widths(console, options) + gaps <= options.max_width:
            segments = cast(Iterable[Segment], super().__rich_console__(console, options))
        else:
            segments = self._paragraphs(console, options)
        for line in Segment.split_lines(segments):
            yield from _without_trailing_blanks(line)

    def _set_min_widths(self, console: Console, options: ConsoleOptions) -> int:
        unlimited = options.update(width=UNLIMITED)
        for column in self.columns:
            parts = [column.header, *column.cells]
            widths = [Measurement.get(console, unlimited, part).maximum for part in parts]
            header_width, full_width = widths[0], max(widths)
            if column.no_wrap:
                column.min_width = full_width
                continue
            column.min_width = min(full_width, max(header_width, _MIN_FOLDED))
            if not console.is_terminal and options.max_width == UNLIMITED:
                column.max_width = max(header_width, _MAX_PIPED)
        return sum(column.min_width or 0 for column in self.columns)

    def _paragraphs(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        if self.title:
            yield from console.render(self.title, options)
        for row in range(self.row_count):
            for part in self._paragraph(row, options.max_width - _INDENT):
                yield from console.render(part, options)

    def _paragraph(self, row: int, width: int) -> Iterator[RenderableType]:
        cells = [(column.header, list(column.cells)[row]) for column in self.columns]
        (header, title), *cells = [(header, cell) for header, cell in cells if str(cell).strip()]
        is_number = isinstance(title, str | Text) and _NUMBER.fullmatch(str(title))
        yield _with_header(header, title) if is_number else title
        line = Text()
        for header, cell in cells:
            part = _with_header(header, cell)
            if line and line.cell_len + part.cell_len + 2 > width:
                yield Padding(line, (0, 0, 0, _INDENT))
                line = Text()
            if part.cell_len > width and header:  # on separate lines, so that no number breaks
                yield Padding(_one_line_text(header, "dim"), (0, 0, 0, _INDENT))
                part = _one_line_text(cell)
            line = Text("  ").join((line, part)) if line else part
        if line:
            yield Padding(line, (0, 0, 0, _INDENT))


def _without_trailing_blanks(line: list[Segment]) -> Iterator[Segment]:
    """Yield a line's segments and its end; blanks would wrap where the terminal is narrower."""
    while line and not line[-1].text.strip():
        line.pop()
    yield from line[:-1]
    if line:
        yield line[-1]._replace(text=line[-1].text.rstrip())
    yield Segment.line()


def _with_header(header: RenderableType, cell: RenderableType) -> Text:
    header, text = _one_line_text(header, "dim"), _one_line_text(cell)
    return Text(" ").join((header, text)) if header else text


def _one_line_text(part: RenderableType, style: str = "") -> Text:
    """Return a header or cell as one line, without the blanks at the ends of its lines."""
    text = part if isinstance(part, Text) else Text(str(part))
    if style:
        text = Text(text.plain, style)
    lines = [line.copy() for line in text.split()]
    for line in lines:
        line.rstrip()
    return Text(" ").join(line for line in lines if line)


def borderless(left: Iterable[str], right: Iterable[str] = (), title: str | None = None) -> Table:
    """Return a table as :func:`hierspec.utils.terminal.borderless`, but one that cuts nothing."""
    table = terminal.borderless(left, right, Borderless)
    table.title = None if title is None else Text(title, "italic")
    table.title_justify = "left"
    return table
