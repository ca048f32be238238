"""Texts to measure on where the user names none: beginnings that a model may continue."""

from __future__ import annotations

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
