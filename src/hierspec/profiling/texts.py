"""Texts to measure on where the user names none: beginnings that a model may continue."""

from __future__ import annotations

from typing import Any

from hierspec.utils.prompts import apply_chat
from hierspec.zoo import registry

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
CHATS = (
    "Write a Python function that removes duplicates from a list and keeps its order.",
    "A shop sells pens at 3 dollars each and notebooks at 5. What do four pens and two notebooks "
    "cost together? Show the steps.",
    "Why do leaves change their colour in autumn?",
    "Summarise in two sentences:\n\nThe town council met on Tuesday to discuss the new bridge. "
    "Most members were in favour, but two warned of its cost. The council decided to ask for three "
    "offers and to vote in March. Until then the old bridge stays open for cars, and closes for "
    "lorries.",
    "Translate into French: The train to the coast leaves at nine and arrives before noon.",
    "Write a short letter to a neighbour, asking to borrow a ladder for the weekend.",
    "List the planets of the solar system with one fact about each.",
    "Correct the mistakes and change nothing else:\n\nYesterday we goes to the market and buyed "
    "apples. The apples was sweet, and we has eaten them all before the evening.",
    "Explain what a hash table is to a beginner, with an example in Python.",
    "A tank holds 240 litres and loses 15 litres an hour. After how many hours is it half empty?",
    "Answer from the text alone.\n\nText: The library opens at nine on weekdays and at ten on "
    "Saturdays. It is closed on Sundays. Books may be kept for four weeks.\n\nQuestion: When can I "
    "return a book on a Saturday?",
    "Tell a short story about a lighthouse keeper and a lost bird.",
    "Add comments to this function:\n\ndef total(prices, tax):\n    subtotal = sum(prices)\n"
    "    return subtotal + subtotal * tax\n",
    "Name three advantages and three disadvantages of working from home.",
    "Turn this into a table of name, age and town: Anna is 31 and lives in Oslo; Ben, 27, is from "
    "Turin; Carla lives in Lyon and is 45.",
    "What is the difference between weather and climate?",
)


def chats(tokenizer: Any) -> list[list[int]]:
    """Return questions to a chat model, in its template, as token ids.

    Raises:
        HierspecError: it has no chat template.
    """
    return [apply_chat(tokenizer, text) for text in CHATS]


def builtin(model: str) -> tuple[str, ...]:
    """Return texts for a target: those of its entry in the zoo, else Python and prose in turns."""
    entry = registry.installed(model)
    mixed = (text for both in zip(PROSE, CODE, strict=False) for text in both)
    return (entry and entry.texts) or tuple(mixed)
