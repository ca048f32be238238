"""One sequence as an SVG: a row per level, bars of calls, columns of tokens, drafts, the text.

The target's row is on top. A bar is a call; the column below it holds the tokens it handed up, the
first one on top, in the colours of their fates [P1 Figure 1]. The row of drafts shows how many
tokens each round offered the target, and how many it accepted [P5 Figure 8]. The text below has
each token in the colour of the level that first wrote it.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from xml.sax.saxutils import escape

from hierspec.errors import HierspecError
from hierspec_lab.plotting.figures import (
    BLUE,
    BROWN,
    GREEN,
    GREY,
    INK,
    ORANGE,
    PALE,
    PURPLE,
    SKY,
    VERMILION,
)

from .events import TraceEvent
from .sequence import Call, Timeline, TokenCell, timelines

TokenText = Callable[[int], str]

FATES = {
    "text": (GREEN, "kept to the text"),
    "dropped": (ORANGE, "kept by the level above, thrown away later"),
    "rejected": (VERMILION, "rejected by the level above"),
    "unseen": (GREY, "never verified"),
}
KINDS = {
    "drafted": "drafted",
    "kept": "kept from the level below",
    "recovered": "recovered",
    "bonus": "bonus",
    "plain": "without a draft",
    "follow-up": "an extra token that the rule needs",
}
_LEVELS = (BLUE, PURPLE, SKY, BROWN, "#7B61C4", "#1B9E9E")
# Attributes have the light colours, which viewers without style sheets show.
CSS = (
    "text{font:11px system-ui,sans-serif}"
    ".text{font:12px ui-monospace,monospace;white-space:pre}"
    "@media(prefers-color-scheme:dark){"
    ".paper{fill:#15181c}.ink{fill:#e6e8ea}.soft{fill:#9aa0a6}.pale{fill:#2a2f36}"
    ".line{stroke:#3a4048}.level{filter:brightness(1.35)}}"
)
PAPER, SOFT, LINE = "#ffffff", GREY, "#c9ced6"
MARGIN, NARROWEST, WIDEST = 10.0, 720.0, 16000.0
COLUMN = 7.0  # width of a column of cells
# Pixels: height of a bar, of a cell, of a token in the row of drafts; distance of a row's labels;
# header.
_BAR, _CELL, _UNIT, _REPEAT, _HEADER = 9.0, 6.0, 4.0, 1400.0, 16.0
# Of the text: pixels a letter and a line; letters a line.
_LETTER, _LINE_HEIGHT, _LETTERS = 7.25, 17.0, 100


def svg(events: Sequence[TraceEvent], sequence: int = 0, texts: TokenText | None = None) -> str:
    """Draw one sequence; return a whole SVG document.

    Args:
        sequence: its index from 0; later batches in the same trace continue the count.
        texts: token id → text; without it the row of text is left out.

    Raises:
        HierspecError: there is no such sequence, or an event that cannot be drawn.
    """
    sequences = timelines(events)
    if not 0 <= sequence < len(sequences):
        last = len(sequences) - 1
        raise HierspecError(f"the trace holds sequences 0 to {last}; got {sequence}")
    return draw(sequences[sequence], texts)


def draw(timeline: Timeline, texts: TokenText | None = None) -> str:
    """Draw a timeline; return a whole SVG document."""
    scale = choose_scale(timeline)
    out, y = _draw_legend(), 44.0
    top = y
    axis, y = _draw_axis(timeline, scale, y)
    parts: list[str] = []
    for index, calls in reversed(calls_by_level(timeline).items()):
        lines, y = _draw_row(timeline, index, calls, scale, y, texts)
        parts += lines
    lines, y = _draw_drafts(timeline, scale, y)
    parts += lines
    bottom = y
    if texts is not None:
        lines, y = draw_text(timeline, texts, MARGIN, y + 8)
        parts += lines
    out += axis + _draw_round_ends(timeline, scale, top + 14, bottom) + parts
    width = f"{max(scale.width, 760):.0f}"
    size = f'width="{width}" height="{y + 8:.0f}" viewBox="0 0 {width} {y + 8:.0f}"'
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="11">'
    )
    paper = f'<rect class="paper" width="{width}" height="{y + 8:.0f}" fill="{PAPER}"/>'
    return "\n".join([head, f"<style>{CSS}</style>", paper, *out, "</svg>\n"])


def level_colour(index: int, levels: dict[int, str]) -> tuple[str, str]:
    """Return colour and CSS class of a level; the target's are those of ink."""
    place = list(levels).index(index)
    if place == len(levels) - 1:
        return INK, "ink"
    return _LEVELS[place % len(_LEVELS)], "level"


def duration(seconds: float) -> str:
    """Format a duration in a fitting unit: ``12.3 ms``."""
    if seconds >= 1:
        return f"{seconds:.3g} s"
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} µs"


def escaped(text: str) -> str:
    """Prepare text for XML and for one line: breaks and tabs become signs."""
    signs = {"\n": "⏎", "\t": "⇥", "\r": "␍"}
    return escape(
        "".join(
            signs.get(c) or (" " if c.isspace() else c if c.isprintable() else "�") for c in text
        ),
        {'"': "&quot;"},
    )


@dataclass(frozen=True, slots=True)
class TimeScale:
    """A linear scale from seconds to pixels."""

    start: float
    per_second: float
    width: float

    def x(self, seconds: float) -> float:
        return MARGIN + (seconds - self.start) * self.per_second


def choose_scale(timeline: Timeline) -> TimeScale:
    """Choose a scale that gives three quarters of the columns of cells their full width."""
    start = min(call.began for call in timeline.calls)
    span = max(call.began + call.seconds for call in timeline.calls) - start or 1.0
    gaps = sorted(
        following.began - call.began
        for calls in calls_by_level(timeline).values()
        for call, following in pairwise([call for call in calls if call.cells])
        if following.began > call.began
    )
    preferred = (COLUMN + 2) / gaps[len(gaps) // 4] * span if gaps else NARROWEST
    inner = min(max(preferred, NARROWEST), WIDEST)
    return TimeScale(start, inner / span, inner + 2 * MARGIN + COLUMN)


def calls_by_level(timeline: Timeline) -> dict[int, list[Call]]:
    out: dict[int, list[Call]] = {index: [] for index in timeline.levels}
    for call in timeline.calls:
        out[call.index].append(call)
    return out


def ticks(scale: TimeScale, seconds: float) -> list[float]:
    """Return times from 0 for the axis, in round numbers and at least 80 pixels apart."""
    shortest = 80 / scale.per_second
    power = 10.0 ** math.floor(math.log10(shortest))
    step = next(power * m for m in (1, 2, 5, 10) if power * m >= shortest)
    return [i * step for i in range(int(seconds / step) + 1)]


def draw_text(
    timeline: Timeline, texts: TokenText, left: float, y: float
) -> tuple[list[str], float]:
    """Draw the text; return its ``text`` elements and the y below them."""
    out, y = _draw_text_legend(timeline, left, y)
    column, position = 0, None
    for cell, writer in timeline.text:
        if position is not None and cell.position > position:
            out.append(_piece("…", left, column, y, SOFT, "soft", "tokens missing from the trace"))
            column += 1
        position = cell.position + 1
        colour, css_class = level_colour(writer, timeline.levels)
        title = f"{cell.token} at {cell.position}; written by {escaped(timeline.levels[writer])}"
        for piece in _pieces(texts(cell.token)):
            if piece == "\n":
                out.append(_piece("⏎", left, column, y, colour, css_class, title))
                column, y = 0, y + _LINE_HEIGHT
                continue
            if column + _letters(piece) > _LETTERS and column:
                column, y = 0, y + _LINE_HEIGHT
            out.append(_piece(piece, left, column, y, colour, css_class, title))
            column += _letters(piece)
    return out, y + 6


def _draw_text_legend(timeline: Timeline, left: float, y: float) -> tuple[list[str], float]:
    out, column = [_piece("written by", left, 0, y + 10, SOFT, "soft")], 12
    for index, name in timeline.levels.items():
        colour, css_class = level_colour(index, timeline.levels)
        out.append(_piece(f"■ {name}", left, column, y + 10, colour, css_class))
        column += len(name) + 5
    return out, y + 32


def _pieces(text: str) -> list[str]:
    """Split text into line breaks and pieces short enough for a line."""
    out: list[str] = []
    for i, line in enumerate(text.split("\n")):
        out += ["\n"] if i else []
        out += [line[start : start + _LETTERS // 2] for start in range(0, len(line), _LETTERS // 2)]
    return out


def _letters(text: str) -> int:
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def _piece(
    text: str, left: float, column: int, y: float, colour: str, css_class: str, title: str = ""
) -> str:
    x, length = left + column * _LETTER, _letters(text) * _LETTER
    place = f'x="{x:.2f}" y="{y:.1f}" textLength="{length:.2f}"'
    weight = ' font-weight="bold"' if css_class == "ink" else ""
    start = f'<text class="text {css_class}" xml:space="preserve" font-family="monospace" {place}'
    inner = f"<title>{title}</title>" if title else ""
    return f'{start} font-size="12" fill="{colour}"{weight}>{inner}{escaped(text)}</text>'


def label(x: float, y: float, words: str, *, soft: bool = False) -> str:
    css_class, colour = ("soft", SOFT) if soft else ("ink", INK)
    start = f'<text class="{css_class}" x="{x:.1f}" y="{y:.1f}"'
    return f'{start} fill="{colour}">{escaped(words)}</text>'


def box(
    x: float,
    y: float,
    width: float,
    height: float,
    colour: str,
    title: str = "",
    css_class: str = "",
) -> str:
    attributes = f'x="{x:.2f}" y="{y:.2f}" width="{width:.2f}" height="{height:.2f}"'
    start = f'<rect class="{css_class}" {attributes} fill="{colour}"'
    return f"{start}><title>{title}</title></rect>" if title else f"{start}/>"


def _draw_legend() -> list[str]:
    out, x = [], MARGIN
    for colour, words in FATES.values():
        out += [box(x, 8, COLUMN, _CELL, colour, css_class="key"), label(x + 11, 14.5, words)]
        x += 28 + 6 * len(words)
    x = MARGIN
    for kind, words in (("recovered", "recovered token"), ("bonus", "bonus token")):
        out += [box(x, 24, COLUMN, _CELL, SOFT, css_class="key"), _mark(x, 24, COLUMN, kind)]
        out.append(label(x + 11, 30.5, words))
        x += 28 + 6 * len(words)
    out.append(label(x, 30.5, "a bar is a call; below it, the tokens it handed up", soft=True))
    return out


def _draw_axis(timeline: Timeline, scale: TimeScale, y: float) -> tuple[list[str], float]:
    seconds = max(call.began + call.seconds for call in timeline.calls) - scale.start
    out = []
    for time in ticks(scale, seconds):
        x = scale.x(scale.start + time)
        out.append(f'<path class="line" d="M{x:.1f} {y + 12:.1f}v5" stroke="{LINE}"/>')
        out.append(label(x, y + 10, duration(time) if time else "0", soft=True))
    return out, y + 20


def _draw_round_ends(timeline: Timeline, scale: TimeScale, top: float, bottom: float) -> list[str]:
    """Draw a line at the end of each of the target's rounds."""
    ends = [check.began + check.seconds for check in timeline.target_checks]
    path = "".join(f"M{scale.x(end):.1f} {top:.1f}V{bottom:.1f}" for end in ends)
    return [f'<path class="line" d="{path}" stroke="{LINE}" stroke-width="0.5"/>']


def _draw_row(
    timeline: Timeline,
    index: int,
    calls: list[Call],
    scale: TimeScale,
    y: float,
    texts: TokenText | None,
) -> tuple[list[str], float]:
    name, (colour, css_class) = timeline.levels[index], level_colour(index, timeline.levels)
    judged, kept = timeline.count_judged(index)
    words = f"{name}  ·  {len(calls)} calls"
    if index != timeline.root:
        words += f"  ·  {kept} of {judged} tokens kept by the level above"
    x, out = MARGIN, []
    while x < max(scale.width - 200, MARGIN + 1):
        out.append(label(x, y + 11, words if x == MARGIN else name, soft=x > MARGIN))
        x += _REPEAT
    top = y + _HEADER
    next_starts = [*(call.began for call in calls[1:]), float("inf")]
    for call, next_start in zip(calls, next_starts, strict=True):
        left, room = scale.x(call.began), max(next_start - call.began, 0.0) * scale.per_second
        width = min(max(call.seconds * scale.per_second, 1.0), max(room, 0.1))
        out.append(box(left, top, width, _BAR, colour, _bar_title(call, name), f"call {css_class}"))
        column = max(min(COLUMN, room * 0.85), 0.1)
        for i, cell in enumerate(call.cells):
            cell_y = top + _BAR + 2 + i * (_CELL + 1)
            fill = FATES[cell.fate][0]
            title = _cell_title(cell, name, texts)
            out.append(box(left, cell_y, column, _CELL, fill, title, "cell"))
            out.append(_mark(left, cell_y, column, cell.kind))
    longest = max((len(call.cells) for call in calls), default=0)
    return [line for line in out if line], top + _BAR + 2 + longest * (_CELL + 1) + 8


def _mark(x: float, y: float, width: float, kind: str) -> str:
    """Mark a recovered token by a dot, a bonus token by a stroke."""
    if kind == "recovered":
        radius = min(1.9, width / 3)
        centre = f'cx="{x + width / 2:.2f}" cy="{y + _CELL / 2:.2f}"'
        return f'<circle {centre} r="{radius:.2f}" fill="#fff" pointer-events="none"/>'
    if kind == "bonus":
        path = f"M{x + width * 0.15:.2f} {y + _CELL / 2:.2f}h{width * 0.7:.2f}"
        return f'<path d="{path}" stroke="#fff" stroke-width="1.6" pointer-events="none"/>'
    return ""


def _draw_drafts(timeline: Timeline, scale: TimeScale, y: float) -> tuple[list[str], float]:
    """Draw how many tokens the target was offered in each round (pale), and accepted."""
    longest = max((check.drafted for check in timeline.target_checks), default=0)
    out = [label(MARGIN, y + 11, "draft of each round: tokens offered to the target, and kept")]
    base, previous_end = y + _HEADER + 12 + longest * _UNIT, scale.start
    for number, call in enumerate(timeline.target_checks):
        left, end = scale.x(previous_end), call.began + call.seconds
        width, previous_end = max(scale.x(end) - left - 1, 0.2), end
        if not call.drafted:
            continue
        title = f"round {number}: {call.accepted} of {call.drafted} kept"
        offered, kept = call.drafted * _UNIT, call.accepted * _UNIT
        out.append(box(left, base - offered, width, offered, PALE, title, "offered pale"))
        out.append(box(left, base - kept, width, kept, GREEN, title, "kept"))
        if width >= 30:
            out.append(
                label(left, base - offered - 3, f"{call.accepted}/{call.drafted}", soft=True)
            )
    return out, base + 10


def _bar_title(call: Call, name: str) -> str:
    words = f"{escaped(name)}, {call.kind}: {duration(call.seconds)} from {duration(call.began)}"
    if call.kind == "check":
        words += f"; {call.accepted} of {call.drafted} kept, {len(call.cells)} handed up"
    elif call.kind == "draft":
        words += f"; {len(call.cells)} drafted"
    return words


def _cell_title(cell: TokenCell, name: str, texts: TokenText | None) -> str:
    text = "" if texts is None else f" “{escaped(texts(cell.token))}”"
    words = f"{escaped(name)}: {KINDS[cell.kind]}; {FATES[cell.fate][1]}"
    return f"{cell.token}{text} at {cell.position}; {words}"
