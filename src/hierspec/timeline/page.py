"""A page with the picture of every sequence; it needs nothing but itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from .drawing import FATES, Texts, draw, duration, quoted
from .story import Story, stories


def html(events: Sequence[Mapping[str, Any]], texts: Texts | None = None) -> str:
    """The page; hovering over a bar or a token says what it is.

    Args:
        texts: the text of a token id; without it the text is left out.

    Raises:
        HierspecError: an event cannot be drawn, or there is none.
    """
    from jinja2 import Template

    # Pictures and names are escaped already, as XML needs it.
    page = Path(__file__).with_name("page.html").read_text(encoding="utf-8")
    template = Template(page, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
    found = stories(events)
    parts = [{"table": list(_table(one)), "picture": draw(one, texts)} for one in found]
    return template.render(sequences=parts)


def _table(story: Story) -> Iterator[list[str | int]]:
    """Calls, seconds and fates of every level, target first, below their names."""
    yield ["level", "calls", "time", *(words for _, words in FATES.values())]
    fates = story.fates()
    for index, name in reversed(story.levels.items()):
        calls = [call for call in story.calls if call.index == index]
        seconds = duration(sum(call.seconds for call in calls))
        yield [quoted(name), len(calls), seconds, *(fates[index][fate] for fate in FATES)]
