"""Output for people: notes on standard error, progress; in its modules, single commands'."""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from hierspec.errors import HierspecWarning
from hierspec.utils import terminal

if TYPE_CHECKING:
    from rich.console import Console

    from hierspec.profiling.settings import Report


_QUIET = 60.0  # seconds without a line, at most, while a stage goes on
GOES_ON = "the same command continues where it stopped"


def notes() -> Console:
    """Return a console on standard error, which keeps standard output for results."""
    return terminal.console(stderr=True)


def say(console: Console, text: str) -> None:
    """Print a line as it is: names may hold brackets, and paths must not be broken."""
    console.print(text, highlight=False, markup=False, soft_wrap=True)


@contextlib.contextmanager
def own_notes(console: Console) -> Iterator[None]:
    """Print warnings of ours as notes; leave those of other libraries as they are."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", HierspecWarning)
        yield
    for warning in caught:
        if issubclass(warning.category, HierspecWarning):
            console.print(f"hierspec: note: {warning.message}", soft_wrap=True, highlight=False)
        else:
            warnings.warn_explicit(
                warning.message, warning.category, warning.filename, warning.lineno
            )


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
    """Show progress: a bar on a terminal; elsewhere a line per stage, and of a long one a line
    each minute."""
    if not console.is_terminal:
        last, began = "", time.monotonic()
        said = began

        def report(stage: str, share: float) -> None:
            nonlocal last, said
            if stage != last or time.monotonic() - said > _QUIET:
                said = time.monotonic()
                say(console, f"{title}: {100 * share:3.0f} %  {stage}{_left(began, share)}")
            last = stage

        yield report
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.percentage:3.0f} %  {task.fields[stage]}", markup=False),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]}", style="dim"),
    )
    began = time.monotonic()

    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(title, total=1.0, stage="", left="")
        yield lambda stage, share: bar.update(
            task, completed=share, stage=stage, left=_left(began, share)
        )


def _left(began: float, share: float) -> str:
    """Return how long the rest takes if it goes on like this; nothing before that can be told."""
    spent = time.monotonic() - began
    if not 0.05 <= share < 1 or spent < 3:
        return ""
    seconds = spent * (1 - share) / share
    return (
        f", about {seconds:.0f} s left" if seconds < 90 else f", about {seconds / 60:.0f} min left"
    )
