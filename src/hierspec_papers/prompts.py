"""Prompts of several domains, mixed evenly: code, mathematics, and Spec-Bench's kinds of text.

They are cut to their ends and have no chat template, for any model; :func:`second_turns` are whole
conversations, for a model that was tuned on its template.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hierspec.bench import chats
from hierspec.errors import HierspecError
from hierspec.utils.prompts import read_prompt_file

FILES = ("humaneval.jsonl", "gsm8k.jsonl", "spec_bench.jsonl")
CHAT = "chat"  # MT-Bench's eight categories together
MATHEMATICS = ("gsm8k", "math_reasoning")
_TASKS = ("translation", "summarization", "qa", "math_reasoning", "rag")
LONGEST = 64  # tokens: the end of a prompt counts, and reading it should not be what is measured


@dataclass(frozen=True, slots=True)
class Prompt:
    """A text and where it is from: file, line from 1 on, domain."""

    text: str
    file: str
    line: int
    domain: str

    def to_dict(self) -> dict[str, Any]:
        """Return what identifies it, without the text, which is not ours to copy."""
        return {"file": self.file, "line": self.line, "domain": self.domain}

    def token_ids(self, tokenizer: Any, answer: chats.Answer) -> list[int]:
        """Return the end of the text."""
        return tokenizer(self.text, verbose=False)["input_ids"][-LONGEST:]


@dataclass(frozen=True, slots=True)
class SecondTurn(Prompt):
    """The second turn of a conversation; ``text`` is what the user says there."""

    chat: chats.Chat

    def to_dict(self) -> dict[str, Any]:
        """Return what identifies it."""
        return {**Prompt.to_dict(self), "turn": 2}

    def token_ids(self, tokenizer: Any, answer: chats.Answer) -> list[int]:
        """Return the whole conversation in the chat template, the first turn answered."""
        return chats.token_ids(tokenizer, [chats.ChatTurn(self.chat, 1)], answer)[0]


def read(folder: Path, count: int) -> tuple[list[Prompt], list[dict[str, str]]]:
    """Return the first ``count`` prompts in turns of the domains, and the files' sha256.

    Raises:
        HierspecError: a file is missing, or a line holds no prompt.
    """
    by_domain: dict[str, list[Prompt]] = {}
    files = []
    for name in FILES:
        path = _file(folder, name)
        file = read_prompt_file(path)
        files.append({"file": name, "sha256": file.sha256})
        lines = (
            pair
            for pair in enumerate(path.read_text("utf-8-sig").split("\n"), 1)
            if pair[1].strip()
        )
        for (number, line), text in zip(lines, file.prompts, strict=True):
            domain = _domain(name, json.loads(line))
            by_domain.setdefault(domain, []).append(Prompt(text, name, number, domain))
    rounds = range(max(map(len, by_domain.values())))
    mixed = [some[i] for i in rounds for some in by_domain.values() if i < len(some)]
    return mixed[:count], files


def second_turns(folder: Path, count: int) -> tuple[list[Prompt], list[dict[str, str]]]:
    """Return the first ``count`` second turns of Spec-Bench, its categories in turns; and its file.

    Raises:
        HierspecError: the file is missing, or a line holds no conversation.
    """
    name = FILES[-1]
    found, identity = chats.read(_file(folder, name))
    lines = (folder / name).read_text("utf-8-sig").split("\n")
    said = {tuple(json.loads(line)["turns"]): n for n, line in enumerate(lines, 1) if line.strip()}
    several: list[Prompt] = [
        SecondTurn(chat.turns[1], name, said[chat.turns], chat.category, chat)
        for chat in found
        if len(chat.turns) > 1
    ]
    return several[:count], [{"file": name, "sha256": identity["sha256"]}]


def _file(folder: Path, name: str) -> Path:
    path = folder / name
    if not path.is_file():
        raise HierspecError(
            f"there is no {name} in {folder}: give a folder with {', '.join(FILES)}"
        )
    return path


def _domain(name: str, row: Any) -> str:
    if not isinstance(row, dict) or "category" not in row:
        return name.removesuffix(".jsonl")
    return row["category"] if row["category"] in _TASKS else CHAT
