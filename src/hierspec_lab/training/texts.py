"""Texts to learn from: conversations, plain texts, and what a model wrote; in files and as ids.

A line of a ``.jsonl`` file with ``messages`` (``role`` and ``content`` each) is a conversation: it
goes through the model's chat template, and only the assistant's turns are to be predicted, as are
the answers in a folder of :mod:`.packed` texts. Of every other text all tokens are. Whether a text
is held out depends on its beginning alone, so several answers to one prompt stay together.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hierspec.errors import HierspecError
from hierspec.utils.files import read_bytes
from hierspec.utils.json_lines import is_json_lines, parse_lines
from hierspec.utils.prompts import has_messages, read_prompt_file, turns_of

from .conversations import Conversation, as_label
from .packed import PackedTexts, is_packed

HELD_OUT = "held out"
_HELD_OUT_EVERY = 20  # one text in this many is held out


@dataclass(frozen=True, slots=True)
class PlainText:
    """A text of which everything is to be predicted.

    Attributes:
        content: empty ones are left out when features are stored.
    """

    content: str
    domain: str = ""

    @property
    def prompt(self) -> str:
        return self.content[:200]

    def tokenize(self, tokenizer: Any) -> tuple[list[int], list[tuple[int, int]]]:
        """See :meth:`.Conversation.tokenize`."""
        ids = tokenizer(self.content, verbose=False)["input_ids"]
        return ids, [(0, len(ids))]


@dataclass(frozen=True, slots=True)
class WrittenText:
    """A prompt and what a model wrote as its answer, in ids.

    Attributes:
        answer: place of the answer's first token.
    """

    content: list[int]
    answer: int
    domain: str

    @property
    def prompt(self) -> str:
        return json.dumps(self.content[: self.answer])

    def tokenize(self, tokenizer: Any) -> tuple[list[int], list[tuple[int, int]]]:
        """See :meth:`.Conversation.tokenize`."""
        return self.content, [(self.answer, len(self.content))]


AnyText = PlainText | Conversation | WrittenText


@dataclass(frozen=True, slots=True)
class TrainingText:
    """Token ids of one text.

    Attributes:
        key: a hash that identifies it.
        predicted: [start, end) of the runs of tokens that a model learns to predict.
        group: name of the held-out group it belongs to; empty for a training text.
        domain: label of its subject, from the key ``domain`` of its line.
    """

    key: str
    ids: tuple[int, ...]
    predicted: tuple[tuple[int, int], ...]
    group: str
    domain: str = ""


def read(
    paths: Sequence[Path],
    tokenizer: Any,
    known_keys: Collection[str],
    max_tokens: int,
    group: str | None = None,
    groups: dict[str, str] | None = None,
) -> Iterator[TrainingText]:
    """Read the texts of files and folders, each once.

    Args:
        known_keys: of texts to leave out.
        max_tokens: texts are cut after so many.
        group: of all texts; default: one in twenty is held out, the rest is trained on.
        groups: gets the groups of all that are known, by their keys, before the first text.

    Raises:
        HierspecError: a file that cannot be read, or a line that is no text.
    """
    keys = set(known_keys)
    if groups is not None and keys:
        for text in (text for path in paths for text in _texts_in(path)):
            if (key := key_of(text)) in keys:
                groups.setdefault(key, _group_of(text.prompt) if group is None else group)
    for text in (text for path in paths for text in _texts_in(path)):
        key = key_of(text)
        if key in keys:
            continue
        keys.add(key)
        text_group = _group_of(text.prompt) if group is None else group
        ids, runs = text.tokenize(tokenizer)
        predicted = tuple((low, min(high, max_tokens)) for low, high in runs if low < max_tokens)
        yield TrainingText(key, tuple(ids[:max_tokens]), predicted, text_group, text.domain)


def from_files(paths: Sequence[Path]) -> list[AnyText]:
    """Read plain texts, and those conversations that contain an answer.

    Raises:
        HierspecError: no such file, a line that is no text, or nothing to learn from in a path.
    """
    found: list[AnyText] = []
    for path in paths:
        texts = [text for text in _texts_in(path) if text.content and _is_answered(text)]
        if not texts:
            raise HierspecError(f"{path} holds no text, and no conversation with an answer")
        found += texts
    return found


def _is_answered(text: AnyText) -> bool:
    return not isinstance(text, Conversation) or any(
        message["role"] == "assistant" for message in text.messages
    )


def key_of(text: AnyText) -> str:
    """Return a hash that identifies what a text says."""
    return _digest(json.dumps(text.content, sort_keys=True))


def _texts_in(path: Path) -> Iterator[AnyText]:
    """Yield the texts of a file, or of a folder: all text files below it, hidden ones left out.

    A last line that is still being written is left for the next time.
    """
    if is_packed(path):
        for text, ids in PackedTexts(path).read():
            yield WrittenText(ids, text.answer, text.domain)
        return
    files = [path]
    if path.is_dir():
        files = [
            file
            for file in sorted(path.rglob("*"))
            if file.is_file()
            and not any(part[0] == "." for part in file.relative_to(path).parts)
            and (is_json_lines(file) or _is_text(file))
        ]
    for file in files:
        if is_json_lines(file):
            body = read_bytes(file, "texts")
            for _, text in parse_lines(body, str(file), _text_of, may_be_cut=True):
                yield text
        else:
            yield from map(PlainText, read_prompt_file(file, "text").prompts)


def _is_text(file: Path) -> bool:
    """Return whether a file in a folder is a text: UTF-8, and not empty."""
    try:
        return bool(file.read_text(encoding="utf-8").strip())
    except UnicodeDecodeError:
        return False
    except OSError:
        return True  # reading it again raises the error


def _text_of(row: Any) -> PlainText | Conversation:
    """Return what a line's JSON holds."""
    if has_messages(row):
        return Conversation.from_row(row).require_content()
    fields = row if isinstance(row, Mapping) else {}
    text = row if isinstance(row, str) else fields.get("text")
    if text == "":
        return PlainText("")
    content = turns_of(row if text is None else {"text": text}, "messages")[0]
    return PlainText(content, as_label(fields.get("domain")))


def _group_of(beginning: str) -> str:
    """Return the group of a text that begins so: the held-out one, or that to train on."""
    return HELD_OUT if int(_digest(beginning), 16) % _HELD_OUT_EVERY == 0 else ""


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:24]
