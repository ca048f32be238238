"""Files and folders of texts and conversations, as drafters learn and count from them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hierspec.errors import HierspecError
from hierspec.utils.files import read_bytes
from hierspec.utils.json_lines import is_json_lines, parse_lines
from hierspec.utils.prompts import has_messages, read_prompt_file, turns_of

from .conversations import Conversation, text_in

UNKNOWN_DOMAIN = "other"


def from_files(paths: Sequence[Path]) -> list[str | Conversation]:
    """Read the texts in files and folders (all text files below them, hidden ones left out).

    Each line of a ``.jsonl`` file holds a text, as in a file of prompts, or a conversation; any
    other file is one text.

    Raises:
        HierspecError: no such file, no text in it, or a folder without any.
    """
    texts: list[str | Conversation] = []
    for path in paths:
        if not path.is_dir():
            texts += _read_texts(path)
            continue
        files = [
            file
            for file in sorted(path.rglob("*"))
            if file.is_file()
            and not any(part[0] == "." for part in file.relative_to(path).parts)
            and _is_text(file)
        ]
        if not files:
            raise HierspecError(f"the folder {path} holds no texts: give text or .jsonl files")
        for file in files:
            texts += _read_texts(file)
    return texts


def _is_text(file: Path) -> bool:
    """Return whether a file in a folder is a text: UTF-8, and not empty."""
    try:
        return bool(file.read_text(encoding="utf-8").strip())
    except UnicodeDecodeError:
        return False
    except OSError:
        return True  # reading it again raises the error


def _read_texts(file: Path) -> Sequence[str | Conversation]:
    """Return a file's texts and those conversations that contain an answer."""
    if not is_json_lines(file):
        return read_prompt_file(file, "text").prompts
    body = read_bytes(file, "texts")
    rows = [row for _, row in parse_lines(body, str(file), text_or_conversation, may_be_cut=True)]
    texts = [row for row in rows if isinstance(row, str) or has_answer(row)]
    if not texts:
        raise HierspecError(f"{file} holds no text, and no conversation with an answer")
    return texts


def text_or_conversation(row: Any) -> str | Conversation:
    """Return the conversation in a line's JSON, roles and texts alone, or the prompt in it.

    Answers are found by their texts' place in the whole: what a template writes of further keys in
    one place and leaves out in another would move them.

    Raises:
        HierspecError: the line has neither.
    """
    if not has_messages(row):
        return turns_of(row, "messages")[0]
    conversation = Conversation.from_row(row).require_content(text=True)
    return Conversation(
        messages=[{"role": m["role"], "content": text_in(m)} for m in conversation.messages],
        domain=conversation.domain or UNKNOWN_DOMAIN,
    )


def has_answer(conversation: Conversation) -> bool:
    return any(message["role"] == "assistant" for message in conversation.messages)
