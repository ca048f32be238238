"""What the pictures share: colours for light and dark, words, numbers, escaping."""

from __future__ import annotations

from collections.abc import Callable
from xml.sax.saxutils import escape

from ..planner.figures import BLUE, GREEN, GREY, INK, ORANGE, PALE, PURPLE, SKY, VERMILION

Texts = Callable[[int], str]

FATES = {
    "text": (GREEN, "kept to the text"),
    "dropped": (ORANGE, "kept by the level above, thrown away later"),
    "rejected": (VERMILION, "rejected by the level above"),
    "unseen": (GREY, "never verified"),
}
KINDS = {
    "drafted": "drafted",
    "kept": "kept from the level below",
    "corrected": "corrected",
    "bonus": "bonus",
    "plain": "without a draft",
    "follow-up": "drawn after the check",
}
_LEVELS = (BLUE, PURPLE, SKY, "#8C6D31", "#7B61C4", "#1B9E9E")
# Attributes say the light colours, so that viewers without style sheets show them.
CSS = (
    "text{font:11px system-ui,sans-serif}"
    ".text{font:12px ui-monospace,monospace;white-space:pre}"
    "@media(prefers-color-scheme:dark){"
    ".paper{fill:#15181c}.ink{fill:#e6e8ea}.soft{fill:#9aa0a6}.pale{fill:#2a2f36}"
    ".line{stroke:#3a4048}.level{filter:brightness(1.35)}}"
)
PAPER, SOFT, LINE = "#ffffff", GREY, "#c9ced6"
__all__ = ["CSS", "FATES", "GREEN", "INK", "KINDS", "LINE", "PALE", "PAPER", "SOFT"]


def level_colour(index: int, levels: dict[int, str]) -> tuple[str, str]:
    """Colour and class of a level; the target has the ink's."""
    place = list(levels).index(index)
    if place == len(levels) - 1:
        return INK, "ink"
    return _LEVELS[place % len(_LEVELS)], "level"


def duration(seconds: float) -> str:
    """In the unit that suits it: ``12.3 ms``."""
    if seconds >= 1:
        return f"{seconds:.3g} s"
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} µs"


def quoted(text: str) -> str:
    """Text that XML may hold and a line can show: breaks and tabs as signs."""
    signs = {"\n": "⏎", "\t": "⇥", "\r": "␍"}
    return escape(
        "".join(
            signs.get(c) or (" " if c.isspace() else c if c.isprintable() else "�") for c in text
        ),
        {'"': "&quot;"},
    )


def token_words(token: int, texts: Texts | None) -> str:
    """A token for a hover title: its id, and its text where it is known."""
    return f"{token}" if texts is None else f"{token} “{quoted(texts(token))}”"
