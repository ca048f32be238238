"""Prompts made from templates of many kinds: code, mathematics, chat, and questions about a text.

Templates and the words put into them are our own; passages and functions are
:mod:`~hierspec.training.smollm2.passages`. No prompt of a benchmark is among them.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from .passages import Passages


def _listed(text: str, mark: str = " ") -> list[str]:
    return text.split(mark)


NAMES = _listed(
    "Anna Ben Carla Diego Elif Farid Grace Hiro Ivan Julia Kofi Lena Marco Nadia Omar Priya Quinn "
    "Rosa Sven Tara Uma Victor Wendy Xin Yusuf Zoe"
)
THINGS = _listed(
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
TOPICS = _listed(
    "the water cycle|gravity|photosynthesis|the French Revolution|how vaccines work|inflation|"
    "black holes|the Roman Empire|machine learning|climate change|how bread rises|plate tectonics|"
    "jazz music|the human heart|solar panels|democracy|chess openings|coral reefs|the printing "
    "press|DNA|earthquakes|sleep|volcanoes|recycling|electric cars|the Silk Road|antibiotics|the "
    "moon landing|supply and demand|the immune system|poetry|public speaking|time zones|compound "
    "interest|tides|bees|glaciers|nutrition|renewable energy|operating systems|the Olympic Games",
    "|",
)
ROLES = _listed(
    "a nurse|a teacher|a software engineer|a five-year-old|a farmer|a tourist|a manager|a student|"
    "a musician|a chef",
    "|",
)
CITIES = _listed(
    "Lisbon Kyoto Nairobi Oslo Lima Prague Sydney Cairo Montreal Istanbul Edinburgh Seoul Athens "
    "Havana"
)
TASKS = _listed(
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
    """What a user says, and what it is about."""

    text: str
    domain: str


def prompt(rng: random.Random, passages: Passages) -> TrainingPrompt:
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
    few, some = rng.randint(2, 6), rng.randint(3, 12)
    one, other = rng.sample(NAMES, 2)
    thing, second = rng.sample(THINGS, 2)
    place = rng.choice(PLACES)
    share = rng.choice(["half", "a quarter", "a third", "20%", "30%"])
    question = rng.choice(
        [
            f"{one} has {a} {thing}. {other} gives {one} {b} more {thing}, and then {one} puts "
            f"them into {few} equal boxes. How many {thing} are in each box?",
            f"At {place}, {thing} cost ${c} each and {second} cost ${d} each. {one} buys {few} "
            f"{thing} and {some} {second}. How much does {one} pay in total?",
            f"{one} reads {a} pages a day for {some} days. The book has {a * 14 + b} pages. How "
            "many pages are left?",
            f"A train travels at {a + 30} kilometers per hour for {few} hours and then at {b + 20} "
            f"kilometers per hour for {some} hours. What distance does it cover?",
            f"{one} earns ${a} an hour and works {few} hours a day, five days a week. How much "
            f"does {one} earn in {some} weeks?",
            f"There are {a * 10} {thing} in {place}. In the morning {share} of them are sold, and "
            f"in the afternoon {b} more. How many {thing} are left?",
            f"{one} is {a} years old. {other} is twice as old as {one} was {few} years ago. How "
            f"old is {other}?",
            f"A recipe for {few} people needs {a} grams of flour and {b} grams of sugar. {one} "
            f"cooks for {few * some} people. How much flour and sugar does {one} need?",
            f"{one} and {other} share {a + b} {thing} so that {one} gets {few} more than {other}. "
            "How many does each get?",
            f"{one} saves ${c} every week. After {some} weeks {one} spends ${d} on {second}. How "
            f"many more weeks are needed to reach ${a * 10}?",
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
    topic, second = rng.sample(TOPICS, 2)
    one, other = rng.sample(NAMES, 2)
    role, city, count = rng.choice(ROLES), rng.choice(CITIES), rng.randint(3, 6)
    about = rng.choice(["a meeting next week", "the budget", "a report", "a refund", "a new job"])
    hobby = rng.choice(["studying", "saving money", "healthy eating", "gardening", "languages"])
    found = rng.choice(["a hidden door", "an old map", "a strange letter", "a broken clock"])
    return rng.choice(
        [
            f"Explain {topic} in simple terms.",
            f"What is {topic} and why does it matter?",
            f"Explain {topic} to {role}.",
            f"Compare {topic} and {second}.",
            f"Write a short essay about {topic}.",
            f"List {count} facts about {topic}.",
            f"Write a poem about {topic}.",
            f"Give me {count} tips about {hobby}.",
            f"Write an email to {one} about {about}. Sign it as {other}.",
            f"Write a travel report about {city}, with its sights and its food.",
            f"Plan a trip of {count} days to {city}.",
            f"Write a story about {one}, {role}, who discovers {found}.",
            f"Imagine you are {role}. Describe your day.",
            f"What are the advantages and disadvantages of {topic}?",
            f"Describe {topic} from the point of view of {role}.",
            f"Write a dialogue between {one} and {other} about {topic}.",
            f"Make a table comparing {topic} and {second}.",
            f"Write a quiz with {count} questions about {topic}.",
        ]
    )


def _passage(rng: random.Random, passages: Passages) -> str:
    text, second = (rng.choice(passages.prose)[:1100] for _ in range(2))
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
            f"Passage 2: {second[:500]}\n\nQuestion: What do these passages say?",
        ]
    )


MAKERS: dict[str, Callable[[random.Random, Passages], str]] = {
    "chat": _chat,
    "code": _code,
    "math": _mathematics,
    "passage": _passage,
}
