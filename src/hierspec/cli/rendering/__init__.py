"""Output for people: notes on standard error, progress; in its modules, single commands'."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

if TYPE_CHECKING:
    from hierspec.profiling.settings import Report


GOES_ON = "the same command goes on where it was"


def notes() -> Console:
    """Return a console on standard error, which keeps standard output for results."""
    return Console(stderr=True)


def output(width: int) -> Console:
    """Return a console on standard output, ``width`` columns wide where that is no terminal."""
    console = Console()
    return console if console.is_terminal else Console(width=width)


def say(console: Console, text: str) -> None:
    """Print a line as it is: names may hold brackets, and paths must not be broken."""
    console.print(text, highlight=False, markup=False, soft_wrap=True)


@contextlib.contextmanager
def interruptible(console: Console, advice: Callable[[], str] = lambda: GOES_ON) -> Iterator[None]:
    """End the command with status 130 and a line of advice where the user cuts it short."""
    try:
        yield
    except KeyboardInterrupt:
        say(console, f"interrupted: {advice()}")
        raise typer.Exit(130) from None


@contextlib.contextmanager
def progress(console: Console, title: str) -> Iterator[Report]:
    """Show progress: a bar on a terminal, a line per stage elsewhere."""
    if not console.is_terminal:
        last = ""

        def report(stage: str, share: float) -> None:
            nonlocal last
            if stage != last:
                say(console, f"{title}: {100 * share:3.0f} %  {stage}")
            last = stage

        yield report
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.percentage:3.0f} %  {task.fields[stage]}", markup=False),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(title, total=1.0, stage="")
        yield lambda stage, share: bar.update(task, completed=share, stage=stage)
