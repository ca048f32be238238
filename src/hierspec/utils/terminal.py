"""Tables on terminals, all in one style."""

from __future__ import annotations

from collections.abc import Iterable

from rich.table import Table
from rich.text import Text


def borderless(left: Iterable[str], right: Iterable[str] = (), title: str | None = None) -> Table:
    """Return a table without lines.

    Args:
        left: headers of the columns of text, which fold where they are too wide.
        right: headers of those of numbers, set flush right.
    """
    table = Table(
        title=None if title is None else Text(title, "italic"),
        title_justify="left",
        box=None,
        pad_edge=False,
        header_style="dim",
    )
    for name in left:
        table.add_column(Text(name), overflow="fold")
    for name in right:
        table.add_column(Text(name), justify="right")
    return table
