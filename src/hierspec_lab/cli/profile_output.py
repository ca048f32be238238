"""A profile on a terminal: what calls cost, and how often models agree."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.text import Text

from hierspec.cli.rendering import say
from hierspec.utils import terminal
from hierspec_lab.plotting.tables import borderless

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from hierspec.profiling.profile import Profile
    from hierspec.profiling.schema import MeasuredPair, TimeSummary

_LEGEND = (
    "kept by: how often the first drafted token is kept; in brackets the tokens that one call of "
    "the verifier writes with the longest drafts, by the rule block"
)


def show(profile: Profile, console: Console) -> None:
    """Print a table for each temperature, and what they say as a note on ``console``."""
    for table in _tables(profile):
        terminal.console().print(table)
    say(console, _LEGEND)


def _tables(profile: Profile) -> Iterator[Table]:
    names = _shorten([model.name for model in profile.models])
    for label, measured in profile.temperatures.items():
        calls = {row.verifier: row.check[0] for row in measured.costs if row.drafter is None}
        pairs = {(pair.drafter, pair.verifier): pair for pair in measured.pairs}
        columns = ("ms a call, quartiles", *(f"kept by {name}" for name in names[1:]))
        table = borderless(("model",), columns, title=f"temperature {float(label):g}")
        for i, name in enumerate(names):
            ms = _milliseconds(calls[i]) if i in calls else "–"
            rates = (_acceptance(pairs.get((i, k))) for k in range(1, len(names)))
            table.add_row(Text(name), ms, *rates)
        yield table


def _milliseconds(times: TimeSummary) -> str:
    return f"{times.mean:.2f}  [{times.low:.2f}, {times.high:.2f}]"


def _shorten(names: list[str]) -> list[str]:
    """Return only the last parts of folders, if these differ."""
    short = [name.rsplit("/", 1)[-1] if name[0] in "/.~" else name for name in names]
    return short if len(set(short)) == len(short) else names


def _acceptance(pair: MeasuredPair | None) -> str:
    """Return the share of first draft tokens kept, and tokens a call at the largest budget."""
    if pair is None:
        return ""
    return f"{pair.survival.block[1]:.2f}  ({pair.tokens_per_call:.1f} a call)"
