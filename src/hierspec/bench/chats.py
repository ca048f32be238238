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
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from hierspec.errors import HierspecError
from hierspec.utils.prompts import KEYS, apply_chat

COMPLETE = "Complete this Python function:\n\n"
_MT_BENCH = "mt_bench"  # Spec-Bench keeps its eight categories, and names the other tasks
SPEC_BENCH_TASKS = ("translation", "summarization", "qa", "math_reasoning", "rag")

T = TypeVar("T")
ConversationMessage = Mapping[str, str]
GenerateText = Callable[[list[int]], str]  # token ids of a prompt → the text that follows


@dataclass(frozen=True, slots=True)
class Chat:
    """A conversation to be answered.

    Attributes:
        category: within the domain; chats of one domain take turns by it.
        history: messages before the first turn, answers included.
        turns: the user's messages.
    """

    domain: str
    category: str
    history: tuple[ConversationMessage, ...]
    turns: tuple[str, ...]


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
        try:
            body = file.read_bytes()
            lines = body.decode("utf-8-sig").split("\n")
        except OSError as error:
            raise HierspecError(f"cannot read prompts from {file}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise HierspecError(f"{file} is not UTF-8 text") from None
        digest.update(body)
        for number, line in enumerate(lines, 1):
            if line.strip():
                chats.append(_chat(line, file.stem, f"{file}, line {number}"))
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
    """Return turns of the first chats to measure on, and first turns of later ones to tune on.

    Args:
        profiling: the least number of turns to tune on, where there are enough chats.

    Raises:
        HierspecError: there are too few chats.
    """
    turns: list[ChatTurn] = []
    rest = iter(chats)
    while len(turns) < measured and (chat := next(rest, None)) is not None:
        turns += [ChatTurn(chat, number) for number in range(len(chat.turns))]
    tuning_turns = [ChatTurn(chat, 0) for chat in itertools.islice(rest, max(tuning, profiling))]
    if len(turns) < measured or len(tuning_turns) < tuning:
        raise HierspecError(
            f"there are {len(chats)} chats, too few for {measured} prompts to measure on and "
            f"{tuning} others to tune on: lower --num-prompts or --tune-prompts"
        )
    return turns[:measured], tuning_turns


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


def _chat(line: str, stem: str, location: str) -> Chat:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise HierspecError(f"{location}: not JSON ({error})") from None
    if isinstance(row, str) and row:
        return Chat(stem, "", (), (row,))
    if not isinstance(row, Mapping):
        raise HierspecError(f"{location}: a chat is an object or a text")
    category = str(row.get("category", ""))
    domain = str(row.get("domain") or stem)
    if "question_id" in row and "domain" not in row:
        domain = category if category in SPEC_BENCH_TASKS else _MT_BENCH
    if "messages" in row:
        history, turns = _messages(row["messages"], location)
    else:
        history, turns = (), _turns(row, location)
    return Chat(domain, category, history, turns)


def _messages(value: Any, location: str) -> tuple[tuple[ConversationMessage, ...], tuple[str, ...]]:
    is_valid = isinstance(value, list) and value and all(
        isinstance(message, Mapping)
        and isinstance(message.get("role"), str)
        and isinstance(message.get("content"), str)
        for message in value
    )  # fmt: skip
    if not is_valid or value[-1]["role"] != "user":
        raise HierspecError(
            f'{location}: messages must be a list of {{"role": …, "content": …}}, '
            "the last the user's"
        )
    return tuple(value[:-1]), (value[-1]["content"],)


def _turns(row: Mapping[str, Any], location: str) -> tuple[str, ...]:
    key = next((key for key in KEYS if key in row), None)
    if key is None:
        keys = ", ".join(map(str, row)) or "none"
        raise HierspecError(f"{location}: needs messages, {', '.join(KEYS)}; found {keys}")
    value = row[key]
    turns = value if key == "turns" and isinstance(value, list) else [value]
    if not turns or not all(isinstance(turn, str) and turn for turn in turns):
        raise HierspecError(f"{location}: {key} must be text of at least one character")
    if "entry_point" in row:
        turns = [COMPLETE + turn for turn in turns]
    return tuple(turns)
