"""Output on terminals: how wide it is, tables without lines, numbers of things."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable

from rich.console import Console
from rich.table import Table
from rich.text import Text

# Widths in characters
UNLIMITED = 4096  # of a file or a pipe, where lines are as long as they need to be
_MIN_TERMINAL = 40  # narrower terminals are treated as if they were as wide as this


def console(stderr: bool = False) -> Console:
    """Return a console as wide as ``COLUMNS`` says, or its terminal is.

    Without either, in files and pipes, lines are as long as they need to be.
    """
    output = Console(stderr=stderr, highlight=False)
    if output.is_terminal or os.environ.get("COLUMNS", "").isdigit():
        output.width = max(_MIN_TERMINAL, output.width)
    else:
        output.width = UNLIMITED
    return output


def announce(log: logging.Logger, text: str) -> None:
    """Say on standard error what a long step is about to do, or did, where no bar can show it.

    Where ``log`` takes such lines, as a service's does, it is said there.
    """
    screen = console(stderr=True)
    if log.isEnabledFor(logging.INFO):
        log.info(text)
    elif not screen.is_terminal:
        screen.print(f"hierspec: {text}", markup=False, soft_wrap=True)


def borderless(left: Iterable[str], right: Iterable[str] = (), kind: type[Table] = Table) -> Table:
    """Return a table without lines.

    Args:
        left: headers of the columns of text, which fold where they are too wide.
        right: headers of the columns of numbers, aligned right and never broken.
        kind: the class to make one of.
    """
    table = kind(box=None, pad_edge=False, header_style="dim")
    for name in left:
        table.add_column(Text(name), overflow="fold")
    for name in right:
        table.add_column(Text(name), justify="right", no_wrap=True)
    return table


def counted(number: int, noun: str) -> str:
    """Return ``1 prompt``, ``2 prompts``."""
    return f"{number} {noun}{'s' * (number != 1)}"
