"""One sequence as an SVG: a row per level, bars of calls, columns of tokens, windows, the text.

The target's row is on top. A bar is a call; below it hang the tokens it handed up, first one on
top, so the height of a column is a window, and its colours say what became of it [P1 Figure 1].
The row of windows shows what the target was offered in each round, and kept [P5 Figure 8].
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .linking import stories
from .scale import COLUMN, MARGIN, Scale, room, rows, scale_of, ticks
from .story import Call, Cell, Story
from .style import (
    CSS,
    FATES,
    GREEN,
    INK,
    KINDS,
    LINE,
    PALE,
    PAPER,
    SOFT,
    Texts,
    duration,
    level_colour,
    quoted,
    token_words,
)  # fmt: skip
from .text import text_lines

_BAR, _CELL, _UNIT, _REPEAT = 9.0, 6.0, 4.0, 1400.0
_HEADER = 16.0


def svg(events: Sequence[dict[str, Any]], sequence: int = 0, texts: Texts | None = None) -> str:
    """The picture of one sequence.

    Args:
        sequence: which, from 0; those of later batches in the same trace count on.
        texts: the text of a token id; without it the row of text is left out.

    Raises:
        ValueError: there is no such sequence, or an event that cannot be drawn.
    """
    found = stories(events)
    if not 0 <= sequence < len(found):
        raise ValueError(f"the trace holds sequences 0 to {len(found) - 1}; got {sequence}")
    return draw(found[sequence], texts)


def draw(story: Story, texts: Texts | None = None) -> str:
    """The picture of a story, a whole SVG document."""
    scale = scale_of(story)
    out, y = _legend(), 44.0
    top = y
    axis, y = _axis(story, scale, y)
    parts: list[str] = []
    for index, calls in reversed(rows(story).items()):
        lines, y = _row(story, index, calls, scale, y, texts)
        parts += lines
    lines, y = _windows(story, scale, y)
    parts += lines
    bottom = y
    if texts is not None:
        lines, y = text_lines(story, texts, MARGIN, y + 8)
        parts += lines
    out += axis + _rounds(story, scale, top + 14, bottom) + parts
    width = f"{max(scale.width, 760):.0f}"
    size = f'width="{width}" height="{y + 8:.0f}" viewBox="0 0 {width} {y + 8:.0f}"'
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="11">'
    )
    paper = f'<rect class="paper" width="{width}" height="{y + 8:.0f}" fill="{PAPER}"/>'
    return "\n".join([head, f"<style>{CSS}</style>", paper, *out, "</svg>\n"])


def label(x: float, y: float, words: str, *, soft: bool = False) -> str:
    kind, colour = ("soft", SOFT) if soft else ("ink", INK)
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" fill="{colour}">{quoted(words)}</text>'


def box(
    x: float, y: float, width: float, height: float, colour: str, title: str = "", kind: str = ""
) -> str:
    attributes = f'x="{x:.2f}" y="{y:.2f}" width="{width:.2f}" height="{height:.2f}"'
    start = f'<rect class="{kind}" {attributes} fill="{colour}"'
    return f"{start}><title>{title}</title></rect>" if title else f"{start}/>"


def _legend() -> list[str]:
    out, x = [], MARGIN
    for colour, words in FATES.values():
        out += [box(x, 8, COLUMN, _CELL, colour, kind="key"), label(x + 11, 14.5, words)]
        x += 28 + 6 * len(words)
    x = MARGIN
    for kind, words in (("corrected", "corrected token"), ("bonus", "bonus token")):
        out += [box(x, 24, COLUMN, _CELL, SOFT, kind="key"), _mark(x, 24, COLUMN, kind)]
        out.append(label(x + 11, 30.5, words))
        x += 28 + 6 * len(words)
    out.append(label(x, 30.5, "a bar is a call; below it, the tokens it handed up", soft=True))
    return out


def _axis(story: Story, scale: Scale, y: float) -> tuple[list[str], float]:
    seconds = max(call.began + call.seconds for call in story.calls) - scale.start
    out = []
    for at in ticks(scale, seconds):
        x = scale.x(scale.start + at)
        out.append(f'<path class="line" d="M{x:.1f} {y + 12:.1f}v5" stroke="{LINE}"/>')
        out.append(label(x, y + 10, duration(at) if at else "0", soft=True))
    return out, y + 20


def _rounds(story: Story, scale: Scale, top: float, bottom: float) -> list[str]:
    """Where the target's rounds end."""
    ends = [c.began + c.seconds for c in story.calls if c.index == story.root and c.kind == "check"]
    path = "".join(f"M{scale.x(end):.1f} {top:.1f}V{bottom:.1f}" for end in ends)
    return [f'<path class="line" d="{path}" stroke="{LINE}" stroke-width="0.5"/>']


def _row(
    story: Story, index: int, calls: list[Call], scale: Scale, y: float, texts: Texts | None
) -> tuple[list[str], float]:
    name, (colour, kind) = story.levels[index], level_colour(index, story.levels)
    drafted, kept = story.verdicts(index)
    words = f"{name}  ·  {len(calls)} calls"
    if index != story.root:
        words += f"  ·  {kept} of {drafted} tokens kept by the level above"
    x, out = MARGIN, []
    while x < max(scale.width - 200, MARGIN + 1):
        out.append(label(x, y + 11, words if x == MARGIN else name, soft=x > MARGIN))
        x += _REPEAT
    top = y + _HEADER
    for call, free in zip(calls, room(calls, scale), strict=True):
        left = scale.x(call.began)
        width = min(max(call.seconds * scale.per_second, 1.0), max(free, 0.1))
        out.append(box(left, top, width, _BAR, colour, _bar_title(call, name), f"call {kind}"))
        column = max(min(COLUMN, free * 0.85), 0.1)
        for i, cell in enumerate(call.cells):
            at = top + _BAR + 2 + i * (_CELL + 1)
            fill = FATES[cell.fate][0]
            title = _cell_title(cell, name, texts)
            out.append(box(left, at, column, _CELL, fill, title, "cell"))
            out.append(_mark(left, at, column, cell.kind))
    longest = max((len(call.cells) for call in calls), default=0)
    return [line for line in out if line], top + _BAR + 2 + longest * (_CELL + 1) + 8


def _mark(x: float, y: float, width: float, kind: str) -> str:
    """A dot on a corrected token, a stroke on a bonus."""
    if kind == "corrected":
        radius = min(1.9, width / 3)
        at = f'cx="{x + width / 2:.2f}" cy="{y + _CELL / 2:.2f}"'
        return f'<circle {at} r="{radius:.2f}" fill="#fff" pointer-events="none"/>'
    if kind == "bonus":
        path = f"M{x + width * 0.15:.2f} {y + _CELL / 2:.2f}h{width * 0.7:.2f}"
        return f'<path d="{path}" stroke="#fff" stroke-width="1.6" pointer-events="none"/>'
    return ""


def _windows(story: Story, scale: Scale, y: float) -> tuple[list[str], float]:
    """Per round, what the target was offered (pale) and what it kept."""
    checks = [c for c in story.calls if c.index == story.root and c.kind == "check"]
    longest = max((call.drafted for call in checks), default=0)
    out = [label(MARGIN, y + 11, "window of each round: tokens offered to the target, and kept")]
    base, before = y + _HEADER + 12 + longest * _UNIT, scale.start
    for number, call in enumerate(checks):
        left, end = scale.x(before), call.began + call.seconds
        width, before = max(scale.x(end) - left - 1, 0.2), end
        if not call.drafted:
            continue
        title = f"round {number}: {call.accepted} of {call.drafted} kept"
        tall, kept = call.drafted * _UNIT, call.accepted * _UNIT
        out.append(box(left, base - tall, width, tall, PALE, title, "window pale"))
        out.append(box(left, base - kept, width, kept, GREEN, title, "kept"))
        if width >= 30:
            out.append(label(left, base - tall - 3, f"{call.accepted}/{call.drafted}", soft=True))
    return out, base + 10


def _bar_title(call: Call, name: str) -> str:
    words = f"{quoted(name)}, {call.kind}: {duration(call.seconds)} from {duration(call.began)}"
    if call.kind == "check":
        words += f"; {call.accepted} of {call.drafted} kept, {len(call.cells)} handed up"
    elif call.kind == "draft":
        words += f"; {len(call.cells)} drafted"
    return words


def _cell_title(cell: Cell, name: str, texts: Texts | None) -> str:
    token = token_words(cell.token, texts)
    return f"{token} at {cell.position}; {quoted(name)}: {KINDS[cell.kind]}; {FATES[cell.fate][1]}"
