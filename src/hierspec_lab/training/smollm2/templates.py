"""Prompts made from templates of many kinds: code, mathematics, chat, and questions about a text.

Templates and the words put into them are our own; passages and functions are those of
:mod:`~hierspec_lab.training.smollm2.passages`. No prompt of a benchmark is among them.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from .passages import Passages


def _words(text: str, separator: str = " ") -> list[str]:
    return text.split(separator)


NAMES = _words(
    "Anna Ben Carla Diego Elif Farid Grace Hiro Ivan Julia Kofi Lena Marco Nadia Omar Priya Quinn "
    "Rosa Sven Tara Uma Victor Wendy Xin Yusuf Zoe"
)
THINGS = _words(
    "apples pencils stickers marbles books cookies stamps oranges candles buttons tickets bottles "
    "bricks flowers coins cards eggs shells beads muffins"
)
PLACES = (
    "a bakery",
    "a farm",
    "a library",
    "a toy shop",
    "a market",
    "a school fair",
    "a garage",
    "a bus station",
    "a garden centre",
)
TOPICS = _words(
    "the water cycle|gravity|photosynthesis|the French Revolution|how vaccines work|inflation|"
    "black holes|the Roman Empire|machine learning|climate change|how bread rises|plate tectonics|"
    "jazz music|the human heart|solar panels|democracy|chess openings|coral reefs|the printing "
    "press|DNA|earthquakes|sleep|volcanoes|recycling|electric cars|the Silk Road|antibiotics|the "
    "moon landing|supply and demand|the immune system|poetry|public speaking|time zones|compound "
    "interest|tides|bees|glaciers|nutrition|renewable energy|operating systems|the Olympic Games",
    "|",
)
ROLES = _words(
    "a nurse|a teacher|a software engineer|a five-year-old|a farmer|a tourist|a manager|a student|"
    "a musician|a chef",
    "|",
)
CITIES = _words(
    "Lisbon Kyoto Nairobi Oslo Lima Prague Sydney Cairo Montreal Istanbul Edinburgh Seoul Athens "
    "Havana"
)
TASKS = _words(
    "reverses a string|checks whether a number is prime|counts the words in a text|merges two "
    "sorted lists|computes the n-th Fibonacci number|removes duplicates from a list while keeping "
    "the order|rotates a matrix by 90 degrees|converts a Roman numeral to an integer|computes a "
    "factorial|finds the median of a list|flattens a nested list|groups anagrams together|"
    "implements binary search|parses a CSV line|computes the greatest common divisor|sorts a "
    "dictionary by its values|validates an email address|implements a stack with push and pop|"
    "computes a moving average|finds the second largest number in a list|checks whether a string "
    "is a palindrome|transposes a matrix|implements bubble sort|counts the lines of a file",
    "|",
)
LANGUAGES = ["Python"] * 6 + ["JavaScript", "Java", "C++", "SQL"]


@dataclass(frozen=True, slots=True)
class TrainingPrompt:
    """What a user says, and its subject."""

    text: str
    domain: str


def draw_prompt(rng: random.Random, passages: Passages) -> TrainingPrompt:
    """Draw one prompt; all domains are equally likely."""
    domain = rng.choice(sorted(MAKERS))
    return TrainingPrompt(MAKERS[domain](rng, passages), domain)


def _code(rng: random.Random, passages: Passages) -> str:
    if rng.random() < 0.55:
        function = rng.choice(passages.functions)
        docstring = "\n    ".join(function.docstring.splitlines())
        source = f'def {function.name}({function.parameters}):\n    """{docstring}"""\n'
        return rng.choice(
            [
                f"Complete the following Python function:\n```python\n{source}```",
                source,
                f"Write the body of this function.\n\n{source}",
                f"Complete this code:\n\n{source}",
                f"Explain what this function does, and show how to call it:\n\n{source}",
            ]
        )
    task, language = rng.choice(TASKS), rng.choice(LANGUAGES)
    return rng.choice(
        [
            f"Write a {language} function that {task}.",
            f"Write a {language} function that {task}, with an example of its use.",
            f"Write a {language} function that {task}, and explain how it works.",
            f"How do I write a {language} program that {task}?",
            f"Write unit tests for a {language} function that {task}.",
        ]
    )


def _mathematics(rng: random.Random, passages: Passages) -> str:
    a, b, c, d = (rng.randint(2, 60) for _ in range(4))
    m, n = rng.randint(2, 6), rng.randint(3, 12)
    name, friend = rng.sample(NAMES, 2)
    things, other_things = rng.sample(THINGS, 2)
    place = rng.choice(PLACES)
    share = rng.choice(["half", "a quarter", "a third", "20%", "30%"])
    question = rng.choice(
        [
            f"{name} has {a} {things}. {friend} gives {name} {b} more {things}, and then {name} "
            f"puts them into {m} equal boxes. How many {things} are in each box?",
            f"At {place}, {things} cost ${c} each and {other_things} cost ${d} each. {name} buys "
            f"{m} {things} and {n} {other_things}. How much does {name} pay in total?",
            f"{name} reads {a} pages a day for {n} days. The book has {a * 14 + b} pages. How "
            "many pages are left?",
            f"A train travels at {a + 30} kilometers per hour for {m} hours and then at {b + 20} "
            f"kilometers per hour for {n} hours. What distance does it cover?",
            f"{name} earns ${a} an hour and works {m} hours a day, five days a week. How much "
            f"does {name} earn in {n} weeks?",
            f"There are {a * 10} {things} in {place}. In the morning {share} of them are sold, and "
            f"in the afternoon {b} more. How many {things} are left?",
            f"{name} is {a} years old. {friend} is twice as old as {name} was {m} years ago. How "
            f"old is {friend}?",
            f"A recipe for {m} people needs {a} grams of flour and {b} grams of sugar. {name} "
            f"cooks for {m * n} people. How much flour and sugar does {name} need?",
            f"{name} and {friend} share {a + b} {things} so that {name} gets {m} more than "
            f"{friend}. How many does each get?",
            f"{name} saves ${c} every week. After {n} weeks {name} spends ${d} on {other_things}. "
            f"How many more weeks are needed to reach ${a * 10}?",
        ]
    )
    return rng.choice(
        [
            question,
            f"{question} Think step by step.",
            f"Solve this problem: {question}",
            f"{question} Show your work.",
        ]
    )


def _chat(rng: random.Random, passages: Passages) -> str:
    topic, other_topic = rng.sample(TOPICS, 2)
    name, friend = rng.sample(NAMES, 2)
    role, city, count = rng.choice(ROLES), rng.choice(CITIES), rng.randint(3, 6)
    subject = rng.choice(["a meeting next week", "the budget", "a report", "a refund", "a new job"])
    hobby = rng.choice(["studying", "saving money", "healthy eating", "gardening", "languages"])
    discovery = rng.choice(["a hidden door", "an old map", "a strange letter", "a broken clock"])
    return rng.choice(
        [
            f"Explain {topic} in simple terms.",
            f"What is {topic} and why does it matter?",
            f"Explain {topic} to {role}.",
            f"Compare {topic} and {other_topic}.",
            f"Write a short essay about {topic}.",
            f"List {count} facts about {topic}.",
            f"Write a poem about {topic}.",
            f"Give me {count} tips about {hobby}.",
            f"Write an email to {name} about {subject}. Sign it as {friend}.",
            f"Write a travel report about {city}, with its sights and its food.",
            f"Plan a trip of {count} days to {city}.",
            f"Write a story about {name}, {role}, who discovers {discovery}.",
            f"Imagine you are {role}. Describe your day.",
            f"What are the advantages and disadvantages of {topic}?",
            f"Describe {topic} from the point of view of {role}.",
            f"Write a dialogue between {name} and {friend} about {topic}.",
            f"Make a table comparing {topic} and {other_topic}.",
            f"Write a quiz with {count} questions about {topic}.",
        ]
    )


def _passage(rng: random.Random, passages: Passages) -> str:
    text, other_text = (rng.choice(passages.prose)[:1100] for _ in range(2))
    language = rng.choice(["German", "French", "Spanish", "English"])
    return rng.choice(
        [
            f"Summarize the following text:\n\n{text}",
            f"Summarize: {text}",
            f"Explain this text in simple words:\n\n{text}",
            f"Translate the following text to {language}:\n\n{text[:400]}",
            f"Rewrite the following text so that it is more formal:\n\n{text[:600]}",
            f"What is the main point of this text?\n\n{text}",
            f"{text}\n\nBased on the text above, what does it describe and how is it used?",
            f"Extract the most important terms from this text as a list:\n\n{text}",
            f"Correct any mistakes in this text and return it:\n\n{text[:500]}",
            f"Answer the question using the passages below.\n\nPassage 1: {text[:700]}\n\n"
            f"Passage 2: {other_text[:500]}\n\nQuestion: What do these passages say?",
        ]
    )


MAKERS: dict[str, Callable[[random.Random, Passages], str]] = {
    "chat": _chat,
    "code": _code,
    "math": _mathematics,
    "passage": _passage,
}
