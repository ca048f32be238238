"""What ``hierspec bench`` shows: methods, the table, and results in other forms."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..bench import spec_bench as questions
from ..bench.catalogue import Entry
from ..bench.table import pictures
from .bench_options import Options

_WIDTH = 140  # where nobody says how wide the output is


def show_list(known: Mapping[str, Entry], as_json: bool) -> int:
    keys = ("name", "title", "group", "source", "summary", "lossless")
    if as_json:
        print(json.dumps([{key: getattr(entry, key) for key in keys} for entry in known.values()]))
        return 0
    grid = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("method", "group", "source", ""):
        grid.add_column(column, overflow="fold")
    for entry in known.values():
        lossy = "" if entry.lossless else " (not lossless)"
        row = (entry.name, entry.group, entry.source, f"{entry.summary}{lossy}")
        grid.add_row(*map(Text, row))
    _console(listing=True).print(grid)
    return 0


def show(
    data: dict[str, Any],
    options: Options,
    tokenizer: Any,
    asked: Sequence[questions.Question],
) -> int:
    """The table or the object, and whatever files were asked for."""
    notes = Console(stderr=True)
    if options.as_json:
        print(json.dumps(data))
    else:
        console = _console()
        for part in pictures(data):
            console.print(part)
    if options.plots is not None:
        from ..bench.pictures import draw

        for path in draw(data, options.plots):
            say(notes, f"drawn: {path}")
    if options.report is not None:
        from ..bench.page import write as write_page

        write_page(data, options.report)
        say(notes, f"written: {options.report}")
    if options.spec_bench is not None:
        written = questions.write(data, options.spec_bench, tokenizer, asked)
        example = f", such as {written[0]}" if written else ""
        say(notes, f"written: {len(written)} answer files{example}")
    return 0


def _console(listing: bool = False) -> Console:
    """As wide as the terminal. A table that is piped keeps all its columns, whatever ``COLUMNS``
    says; a list folds."""
    console = Console()
    known = console.is_terminal or (listing and os.environ.get("COLUMNS", "").isdigit())
    return console if known else Console(width=_WIDTH)


def say(notes: Console, text: str) -> None:
    """A line as it is: names may hold brackets, and paths must not be broken."""
    notes.print(text, highlight=False, markup=False, soft_wrap=True)
