"""Pictures of a generation, from its trace: who called when, what became of every drafted token.

``read`` a trace (:mod:`hierspec.engine.trace`), then draw it: ``svg`` (one sequence), ``html`` (a
page with every sequence), or ``chrome`` (for Perfetto and chrome://tracing). After P1 Figure 1,
whose stack of calls the rows of levels are, and P5 Figure 8, whose windows the last row shows.
"""

from .drawing import svg
from .events import read
from .page import html
from .perfetto import chrome
from .story import Call, Story, TokenCell, stories

__all__ = ["Call", "Story", "TokenCell", "chrome", "html", "read", "stories", "svg"]
