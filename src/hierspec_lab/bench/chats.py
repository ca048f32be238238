"""Chats to measure on: prompt files as conversations of several turns, each with its domain.

A row of a ``.jsonl`` file is a chat: ``messages`` (``role`` and ``content``, the user's last),
``turns`` (Spec-Bench: what the user says, one after the other), ``question`` (GSM8K) or ``prompt``
(HumanEval's functions, which have an ``entry_point``, come with the request to complete them). A
folder stands for all its ``.jsonl`` files. Domains take turns. A chat's domain is the row's
``domain``, else its task in Spec-Bench, else the file's name.

Each turn of a chat is a prompt of its own. Later turns follow plain decoding's greedy answers, so
that all methods read the same text, whatever they write.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from hierspec.errors import HierspecError
from hierspec.utils.files import read_bytes
from hierspec.utils.json_lines import parse_lines
from hierspec.utils.prompts import ConversationMessage, apply_chat, has_messages, turns_of
from hierspec_lab.training.conversations import Conversation, as_label, text_in

COMPLETE = "Complete this Python function:\n\n"
_MT_BENCH = "mt_bench"  # Spec-Bench keeps its eight categories, and names the other tasks
SPEC_BENCH_TASKS = ("translation", "summarization", "qa", "math_reasoning", "rag")

T = TypeVar("T")
GenerateText = Callable[[list[int]], str]  # token ids of a prompt → the text that follows


@dataclass(frozen=True, slots=True)
class Chat:
    """A conversation to be answered.

    Attributes:
        category: within the domain; chats of one domain take turns by it.
        history: messages before the first turn, answers included.
        turns: the user's messages.
        line: in its file, from 1.
    """

    domain: str
    category: str
    history: tuple[ConversationMessage, ...]
    turns: tuple[str, ...]
    line: int = 1


@dataclass(frozen=True, slots=True)
class ChatTurn:
    """One turn of a chat, to be answered after those before it."""

    chat: Chat
    number: int


def read(path: Path) -> tuple[list[Chat], dict[str, Any]]:
    """Read the chats of a file or a folder; return them, and its ``file`` name and ``sha256``.

    Raises:
        HierspecError: there are no chats, or a line is not one; names file and line.
    """
    files = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
    if not files:
        raise HierspecError(f"{path} holds no .jsonl file: give a folder with some, or a file")
    chats, digest = [], hashlib.sha256()
    for file in files:
        body = read_bytes(file, "prompts")
        digest.update(body)
        for line, chat in parse_lines(body, str(file), partial(_chat, stem=file.stem)):
            chats.append(replace(chat, line=line))
    if not chats:
        raise HierspecError(f"{path} holds no prompt")
    by_category = round_robin(chats, lambda chat: chat.category)
    chats = round_robin(by_category, lambda chat: chat.domain)
    return chats, {"file": path.name, "sha256": digest.hexdigest()}


def round_robin(rows: Sequence[T], group: Callable[[T], str]) -> list[T]:
    """Order rows as the first of each group, then the second of each, and so on.

    Files are often sorted by group, so that their first rows would all be of one kind.
    """
    groups: dict[str, list[T]] = {}
    for row in rows:
        groups.setdefault(group(row), []).append(row)
    rounds = itertools.zip_longest(*groups.values())
    return [row for row in itertools.chain.from_iterable(rounds) if row is not None]


def choose(
    chats: Sequence[Chat], measured: int, tuning: int, profiling: int = 0
) -> tuple[list[ChatTurn], list[ChatTurn]]:
    """Return turns of the first chats to measure on, and turns of later ones to tune on.

    Args:
        profiling: the least number of turns to tune on, where there are enough chats.

    Raises:
        HierspecError: there are too few chats.
    """
    rest = iter(chats)

    def take(count: int) -> list[ChatTurn]:
        turns: list[ChatTurn] = []
        while len(turns) < count and (chat := next(rest, None)) is not None:
            turns += [ChatTurn(chat, number) for number in range(len(chat.turns))]
        return turns[:count]

    turns, tuning_turns = take(measured), take(max(tuning, profiling))
    if len(turns) < measured or len(tuning_turns) < tuning:
        raise HierspecError(
            f"there are {len(chats)} chats, too few for {measured} prompts to measure on and "
            f"{tuning} others to tune on: lower --num-prompts or --tune-prompts"
        )
    return turns, tuning_turns


def token_ids(tokenizer: Any, turns: Sequence[ChatTurn], answer: GenerateText) -> list[list[int]]:
    """Encode each turn in the model's chat template, after the turns before it.

    Args:
        answer: called once for every turn that another one follows.
    """
    encoded: list[list[int]] = []
    answers: dict[tuple[int, int], str] = {}
    for turn in turns:
        chat = turn.chat
        messages = list(chat.history)
        for number in range(turn.number):
            messages.append({"role": "user", "content": chat.turns[number]})
            key = id(chat), number
            if key not in answers:
                answers[key] = answer(apply_chat(tokenizer, messages))
            messages.append({"role": "assistant", "content": answers[key]})
        messages.append({"role": "user", "content": chat.turns[turn.number]})
        encoded.append(apply_chat(tokenizer, messages))
    return encoded


def _chat(row: Any, stem: str) -> Chat:
    labels = row if isinstance(row, Mapping) else {}
    category = as_label(labels.get("category"))
    domain = as_label(labels.get("domain"))
    if not domain and "question_id" in labels:
        domain = category if category in SPEC_BENCH_TASKS else _MT_BENCH
    history: list[ConversationMessage] = []
    if has_messages(row):
        *history, question = _messages(row)
        turns = [text_in(question)]
    else:
        turns = turns_of(row, "messages")
        if "entry_point" in labels:
            turns = [COMPLETE + turn for turn in turns]
    return Chat(domain or stem, category, tuple(history), tuple(turns))


def _messages(row: Any) -> list[ConversationMessage]:
    messages = Conversation.from_row(row).require_content(text=True).messages
    if not messages or messages[-1]["role"] != "user":
        raise HierspecError("messages must be a list, the last the user's")
    return messages
