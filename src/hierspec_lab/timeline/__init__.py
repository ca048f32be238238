"""Pictures of a generation, from its trace: each level's calls, and the fate of every token.

``read`` a trace (:mod:`hierspec.engine.trace`), then draw it: ``svg`` (one sequence), ``html`` (a
page with every sequence), or ``chrome`` (for Perfetto and chrome://tracing). The rows of levels are
P1 Figure 1's stack of calls; the last row shows draft lengths as P5 Figure 8 does.
"""

from .drawing import svg
from .events import read
from .html import html
from .perfetto import chrome
from .sequence import Call, Timeline, TokenCell, timelines

__all__ = ["Call", "Timeline", "TokenCell", "chrome", "html", "read", "svg", "timelines"]
