"""Prompts of several domains, mixed evenly: code, mathematics, and Spec-Bench's kinds of text.

:func:`read` returns texts, of which the last tokens are used, without chat template, for any model;
:func:`second_turns` whole conversations, for a model that was tuned on its template.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from hierspec.errors import HierspecError
from hierspec.utils.files import read_bytes
from hierspec.utils.json_lines import parse_lines
from hierspec.utils.prompts import turns_of
from hierspec_lab.bench import chats

FILES = ("humaneval.jsonl", "gsm8k.jsonl", "spec_bench.jsonl")
CHAT = "chat"  # MT-Bench's eight categories together
MATHEMATICS = ("gsm8k", "math_reasoning")
MAX_PROMPT_TOKENS = (
    64  # last tokens of a prompt that are used: reading it should not be what is measured
)


@dataclass(frozen=True, slots=True)
class Prompt:
    """A text and its origin: file, line (from 1 on), domain."""

    text: str
    file: str
    line: int
    domain: str

    def to_dict(self) -> dict[str, Any]:
        """Return the prompt's origin, without the text, which is not ours to copy."""
        return {"file": self.file, "line": self.line, "domain": self.domain}

    def token_ids(self, tokenizer: Any, answer: chats.GenerateText) -> list[int]:
        """Return the last :data:`MAX_PROMPT_TOKENS` token ids of the text."""
        return tokenizer(self.text, verbose=False)["input_ids"][-MAX_PROMPT_TOKENS:]


@dataclass(frozen=True, slots=True)
class SecondTurn(Prompt):
    """The second turn of a conversation; ``text`` is what the user says there."""

    chat: chats.Chat

    def to_dict(self) -> dict[str, Any]:
        """Return the prompt's origin and its turn."""
        return {**Prompt.to_dict(self), "turn": 2}

    def token_ids(self, tokenizer: Any, answer: chats.GenerateText) -> list[int]:
        """Return the whole conversation in the chat template, its first turn answered."""
        return chats.token_ids(tokenizer, [chats.ChatTurn(self.chat, 1)], answer)[0]


def read(folder: Path, count: int) -> tuple[list[Prompt], list[dict[str, str]]]:
    """Read the first ``count`` prompts, domains taking turns, and the files' sha256.

    Raises:
        HierspecError: a file is missing, or a line holds no prompt.
    """
    prompts: list[Prompt] = []
    files = []
    for name in FILES:
        path = _existing_file(folder, name)
        body = read_bytes(path, "prompts")
        files.append({"file": name, "sha256": hashlib.sha256(body).hexdigest()})
        rows = list(parse_lines(body, str(path), partial(_text_and_domain, name)))
        if not rows:
            raise HierspecError(f"{path} holds no prompt")
        prompts += [Prompt(text, name, line, domain) for line, (text, domain) in rows]
    return chats.round_robin(prompts, lambda prompt: prompt.domain)[:count], files


def second_turns(folder: Path, count: int) -> tuple[list[Prompt], list[dict[str, str]]]:
    """Read the first ``count`` second turns of Spec-Bench, categories taking turns, and its sha256.

    Raises:
        HierspecError: the file is missing, or a line holds no conversation.
    """
    name = FILES[-1]
    conversations, identity = chats.read(_existing_file(folder, name))
    second: list[Prompt] = [
        SecondTurn(chat.turns[1], name, chat.line, chat.category, chat)
        for chat in conversations
        if len(chat.turns) > 1
    ]
    return second[:count], [{"file": name, "sha256": identity["sha256"]}]


def _existing_file(folder: Path, name: str) -> Path:
    path = folder / name
    if not path.is_file():
        raise HierspecError(
            f"there is no {name} in {folder}: give a folder with {', '.join(FILES)}"
        )
    return path


def _text_and_domain(file: str, row: Any) -> tuple[str, str]:
    text = turns_of(row)[0]
    if not isinstance(row, dict) or "category" not in row:
        return text, file.removesuffix(".jsonl")
    return text, row["category"] if row["category"] in chats.SPEC_BENCH_TASKS else CHAT
