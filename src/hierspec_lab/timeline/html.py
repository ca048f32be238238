"""A self-contained HTML page with the picture of every sequence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from markupsafe import Markup

from hierspec_lab.plotting.pages import render_page

from .drawing import FATES, TokenText, draw, duration
from .events import TraceEvent
from .sequence import Timeline, timelines


def html(events: Sequence[TraceEvent], texts: TokenText | None = None) -> str:
    """Render the page; hovering over a bar or a token explains it.

    Args:
        texts: token id → text; without it the text is left out.

    Raises:
        HierspecError: an event cannot be drawn, or there is none.
    """
    parts = [
        {"table": list(_table(each)), "picture": Markup(draw(each, texts))}
        for each in timelines(events)
    ]
    return render_page("hierspec_lab.timeline", {"sequences": parts})


def _table(timeline: Timeline) -> Iterator[list[str | int]]:
    """Yield a heading, then calls, time and fates of each level, the target first."""
    yield ["level", "calls", "time", *(words for _, words in FATES.values())]
    fates = timeline.fates()
    for index, name in reversed(timeline.levels.items()):
        calls = [call for call in timeline.calls if call.index == index]
        seconds = duration(sum(call.seconds for call in calls))
        yield [name, len(calls), seconds, *(fates[index][fate] for fate in FATES)]
