"""Conversations from files, and the positions of their answers among the token ids.

Each line of a ``.jsonl`` file of conversations is an object: ``messages``, a list of objects with
``role`` and ``content`` as chat templates take them, and, where known, ``domain``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from hierspec.errors import HierspecError

from .files import read_text
from .prompts import JSON_LINES, apply_chat

UNKNOWN_DOMAIN = "other"


@dataclass(frozen=True, slots=True)
class Conversation:
    """The messages between a user and a model.

    Attributes:
        messages: (role, content) of each.
        domain: its subject, so that kinds of text can be measured apart.
    """

    messages: tuple[tuple[str, str], ...]
    domain: str = UNKNOWN_DOMAIN

    @property
    def prompt(self) -> str:
        """The contents of all messages before the first answer, joined by newlines."""
        questions = takewhile(lambda message: message[0] != "assistant", self.messages)
        return "\n".join(content for _, content in questions)


@dataclass(frozen=True, slots=True)
class TokenizedConversation:
    """Token ids of a conversation, and the positions whose next token belongs to an answer.

    The last such position of an answer is the one before its end-of-turn token, also where the
    answer was cut short: the model is to predict what follows there.
    """

    ids: list[int]
    answer_positions: list[int]


def holds_conversations(path: Path) -> bool:
    """Tell whether the first line of a ``.jsonl`` file is a conversation."""
    if path.suffix.lower() not in JSON_LINES or not path.is_file():
        return False
    with path.open("rb") as file:
        for line in file:
            if line.strip():
                try:
                    row = json.loads(line)
                except ValueError:
                    return False
                return isinstance(row, Mapping) and "messages" in row
    return False


def read_conversations(path: Path) -> list[Conversation]:
    """Return all conversations of a file that contain an answer.

    An incomplete last line is skipped, since the file may still be being written.

    Raises:
        HierspecError: the file cannot be read, or a line is no conversation; names file and line.
    """
    conversations: list[Conversation] = []
    lines = read_text(path, "the conversations").split("\n")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            conversation = _conversation(json.loads(line))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            if number == len(lines) and isinstance(error, json.JSONDecodeError):
                continue
            raise HierspecError(
                f'{path}, line {number}: no conversation; a line is {{"messages": [{{"role": '
                '"user", "content": "…"}, {"role": "assistant", "content": "…"}]}'
            ) from None
        if any(role == "assistant" for role, _ in conversation.messages):
            conversations.append(conversation)
    if not conversations:
        raise HierspecError(f"{path} holds no conversation with an answer")
    return conversations


def tokenize_conversation(conversation: Conversation, tokenizer: Any) -> TokenizedConversation:
    """Tokenize a conversation by the model's chat template, up to its last answer.

    Raises:
        HierspecError: the tokenizer has no chat template, or one that refuses the messages.
    """
    messages = [{"role": role, "content": text} for role, text in conversation.messages]
    last = max(i for i, message in enumerate(messages) if message["role"] == "assistant")
    apply_chat(tokenizer, messages[:last])  # to fail with a one-line error, if at all
    ids = _template_ids(tokenizer, messages[: last + 1])
    positions: list[int] = []
    for number, message in enumerate(messages[: last + 1]):
        if message["role"] != "assistant":
            continue
        start = len(apply_chat(tokenizer, messages[:number]))
        end = len(_template_ids(tokenizer, messages[: number + 1]))
        ends = [i for i in range(start, end) if ids[i] == tokenizer.eos_token_id]
        positions += range(start - 1, ends[0] if ends else end - 1)
    return TokenizedConversation(ids, positions)


def _template_ids(tokenizer: Any, messages: list[dict[str, str]]) -> list[int]:
    return tokenizer.apply_chat_template(messages, tokenize=True, return_dict=False)


def _conversation(row: Any) -> Conversation:
    messages = tuple((message["role"], message["content"]) for message in row["messages"])
    if not all(isinstance(part, str) for message in messages for part in message):
        raise TypeError
    return Conversation(messages, str(row.get("domain") or UNKNOWN_DOMAIN))
