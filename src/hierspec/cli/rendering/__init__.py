"""Output for people: notes and progress on standard error; a module for each command's results."""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from hierspec.errors import HierspecWarning
from hierspec.utils import terminal

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from hierspec.profiling.settings import ReportProgress


_MOST_LONGER = 1.5  # than said before: an estimate of the time left
_MAX_SILENCE = 60.0  # seconds between lines of progress during one stage
RESUMES = "the same command continues where it stopped"


def notes() -> Console:
    """Return a console on standard error, which keeps standard output for results."""
    return terminal.console(stderr=True)


def say(console: Console, text: str) -> None:
    """Print a line unchanged: rich would read brackets in names as markup, and break paths."""
    console.print(text, highlight=False, markup=False, soft_wrap=True)


@contextlib.contextmanager
def warnings_as_notes(console: Console) -> Iterator[None]:
    """Print hierspec's warnings as notes, each text once; show those of other libraries as ever."""
    shown: set[str] = set()

    def show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        if not issubclass(category, HierspecWarning):
            show_others(message, category, *where, **more)
        elif str(message) not in shown:
            shown.add(str(message))
            console.print(f"hierspec: note: {message}", soft_wrap=True, highlight=False)

    with warnings.catch_warnings():
        warnings.simplefilter("always", HierspecWarning)
        show_others, warnings.showwarning = warnings.showwarning, show
        yield


@contextlib.contextmanager
def interruptible(console: Console, advice: Callable[[], str] = lambda: RESUMES) -> Iterator[None]:
    """End the command on Ctrl-C, with exit status 130, a line of advice, and what is left of it."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        for note in getattr(interrupt, "__notes__", ()):
            say(console, note)
        say(console, f"interrupted: {advice()}")
        raise typer.Exit(130) from None


@contextlib.contextmanager
def progress(console: Console, title: str) -> Iterator[ReportProgress]:
    """Show progress: a bar on a terminal, elsewhere a line per stage and one each minute."""
    time_left = _TimeLeft()
    if not console.is_terminal:
        last_stage, last_printed = "", time.monotonic()

        def report(stage: str, share: float) -> None:
            nonlocal last_stage, last_printed
            if stage != last_stage or time.monotonic() - last_printed > _MAX_SILENCE:
                last_printed = time.monotonic()
                line = stage.replace("\n", "; ")
                say(console, f"{title}: {100 * share:3.0f} %  {line}{time_left.text(share)}")
            last_stage = stage

        yield report
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.percentage:3.0f} %  {task.fields[stage]}", markup=False),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]}", style="dim"),
    )
    with _Bar(*columns, console=console, transient=True) as bar:
        task = bar.add_task(title, total=1.0, stage="", left="")

        def update(stage: str, share: float) -> None:
            stage, _, bar.below = stage.partition("\n")
            bar.update(task, completed=share, stage=stage, left=time_left.text(share))

        yield update


class _Bar(Progress):
    """A bar with a line below it."""

    below = ""

    def get_renderables(self) -> Iterable[RenderableType]:
        yield from super().get_renderables()
        if self.below:
            yield Text(self.below, style="dim")


class _TimeLeft:
    """Estimates the time left at the pace so far; silent where it would take back what it said.

    The pace is that since the first progress: models load before it, and what an earlier run has
    done took no time of this one.
    """

    def __init__(self) -> None:
        self.first_share: float | None = None
        self.began = self.share_at_start = 0.0
        self.promised_end = float("inf")

    def text(self, share: float) -> str:
        """Return the rest of a line; empty at the start, when there is no pace yet."""
        now = time.monotonic()
        if self.first_share is None:
            self.first_share = share
        if share > self.first_share and not self.began:
            self.began, self.share_at_start = now, share
        spent, done = now - self.began, share - self.share_at_start
        if not self.began or done < 0.05 or share >= 1 or spent < 3:
            return ""
        seconds = spent * (1 - share) / done
        if seconds > _MOST_LONGER * max(self.promised_end - now, 0.0):
            return ""
        self.promised_end = min(self.promised_end, now + seconds)
        amount = f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
        return f", about {amount} left"
