"""Plans that follow the text: the planner at work between rounds."""

from .controller import OnlineController

__all__ = ["OnlineController"]
