"""How much to measure.

Texts to measure on where the user names none: beginnings that a model may continue.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

from hierspec.errors import HierspecError
from hierspec.utils.checks import is_number
from hierspec.utils.schema import PositiveInteger, read

Report = Callable[[str, float], None]  # stage, share of all work done
MOST = 32  # speculative tokens; the planner's curves end at twice that


@dataclass(frozen=True, slots=True)
class Settings:
    """How much to measure.

    Attributes:
        max_speculative_tokens: largest budget to know about.
        tokens: of the target's own after each prompt; drafts are tried along them.
        places: where along each text.
        rounds: drafts at each place.
        classes: most kinds of text, by how easy they are for whom, whose curves are kept apart.
        places_per_class: fewer would make classes differ by chance.
        prompts: how many of the prompts to use.
        repeats: how often every cost is timed, two rounds each.
        min_ratio: a model verifies another only if its call costs this many times as much.

    Raises:
        ValueError: a number out of range.
    """

    max_speculative_tokens: int = 15
    tokens: int = 128
    places: int = 6
    rounds: int = 2
    classes: int = 12
    places_per_class: int = 16
    prompts: int = 16
    repeats: int = 6
    min_ratio: float = 1.25
    seed: int = 0

    def __post_init__(self) -> None:
        for field in fields(self):
            if field.name not in ("min_ratio", "seed"):
                read(PositiveInteger, getattr(self, field.name), field.name)
        if self.max_speculative_tokens > MOST:
            raise HierspecError(f"max_speculative_tokens must be at most {MOST}")
        if not is_number(self.min_ratio) or self.min_ratio < 0:
            raise HierspecError(f"min_ratio must be a number of at least 0, not {self.min_ratio!r}")

    def budgets(self) -> tuple[int, ...]:
        """Draft lengths whose costs are timed."""
        steps = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
        most = self.max_speculative_tokens
        return (*(n for n in steps if n < most), most)


CODE = (
    'def read_lines(path, encoding="utf-8"):\n    """Return the lines of a file."""\n',
    "class Stack:\n    def __init__(self):\n        self._items = []\n\n    def push(self, x):\n",
    'import os\nimport sys\n\ndef main(argv=None):\n    """Copy a directory tree."""\n',
    'def quicksort(items):\n    """Sort a list of numbers without changing it."""\n',
    "class TemporaryCounter(dict):\n    def update(self, iterable=None, **kwds):\n",
    'def parse_header(line):\n    """Split a header line into its key and its parameters."""\n',
    "import unittest\n\nclass TestQueue(unittest.TestCase):\n    def setUp(self):\n",
    'def _is_valid(name):\n    """Return True if the name may be used as an identifier."""\n',
    'def merge(left, right):\n    """Merge two sorted lists into one."""\n    result = []\n',
    "class Node:\n    def __init__(self, value, parent=None):\n        self.value = value\n",
    'def fetch(url, timeout=10.0, retries=3):\n    """Read a resource; try again on failure."""\n',
    'import re\n\n_word = re.compile(r"\\w+")\n\ndef count_words(text):\n',
    'def fibonacci(n):\n    """Return the first n Fibonacci numbers."""\n',
    "try:\n    import threading\nexcept ImportError:\n    threading = None\n\nclass Lock:\n",
    'def format_table(rows, headers):\n    """Lay out rows of text in columns."""\n    widths = ',
    'def walk(top, onerror=None):\n    """Yield every file below a directory."""\n    for name in ',
)
PROSE = (
    "The three things to know before planting a tree in a dry garden are",
    "Question: A train leaves at 9:40 and takes 95 minutes. When does it arrive?\nAnswer:",
    "Summary of the meeting: we agreed that the release should",
    "Dear Ms. Alvarez,\n\nthank you for your letter of last week. I am writing to",
    "Photosynthesis is the process by which plants",
    "Translate into French: The library closes at six on Sundays.\nFrench:",
    "Once upon a time, in a village between two rivers, there lived",
    "To make bread for four people you need",
)


def builtin(model: str) -> tuple[str, ...]:
    """Texts for a target: Python alone for the shipped family, which knows nothing else."""
    return CODE if model.startswith("zoo:") else CODE[:8] + PROSE
