"""A page with the picture of every sequence; it needs nothing but itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .drawing import FATES, Texts, draw, duration, quoted
from .story import Story, stories

_STYLE = """
:root{color-scheme:light dark}
body{margin:1.5rem;font:14px system-ui,sans-serif;background:#fff;color:#222}
.scroll{overflow-x:auto}
h1{font-size:1.3rem}h2{font-size:1rem;margin-top:2rem}
table{border-collapse:collapse;margin:.5rem 0 1rem}
td,th{padding:.15rem .8rem .15rem 0;text-align:right;font-variant-numeric:tabular-nums}
td:first-child,th:first-child{text-align:left}
th{font-weight:400;color:#767676}
@media(prefers-color-scheme:dark){body{background:#15181c;color:#e6e8ea}th{color:#9aa0a6}}
"""


def html(events: Sequence[dict[str, Any]], texts: Texts | None = None) -> str:
    """The page; hovering over a bar or a token says what it is.

    Args:
        texts: the text of a token id; without it the text is left out.

    Raises:
        ValueError: an event cannot be drawn, or there is none.
    """
    parts = [_section(i, story, texts) for i, story in enumerate(stories(events))]
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8"/>\n'
        '<meta name="viewport" content="width=device-width"/>\n<title>Timeline</title>\n'
        f"<style>{_STYLE}</style>\n</head>\n<body>\n<h1>Who called when, and what was kept</h1>\n"
        + "\n".join(parts)
        + "\n</body>\n</html>\n"
    )


def _section(number: int, story: Story, texts: Texts | None) -> str:
    heading = f"<h2>Sequence {number}</h2>"
    return f'{heading}\n{_table(story)}\n<div class="scroll">\n{draw(story, texts)}</div>'


def _table(story: Story) -> str:
    """Calls, seconds and fates of every level, target first."""
    names = ["level", "calls", "time", *(words for _, words in FATES.values())]
    lines = ["<tr>" + "".join(f"<th>{name}</th>" for name in names) + "</tr>"]
    fates = story.fates()
    for index, name in reversed(story.levels.items()):
        calls = [call for call in story.calls if call.index == index]
        seconds = duration(sum(call.seconds for call in calls))
        cells = [quoted(name), len(calls), seconds, *(fates[index][fate] for fate in FATES)]
        lines.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    return "<table>\n" + "\n".join(lines) + "\n</table>"
