"""Training texts of drafters with weights of their own: conversations and plain texts, as ids.

A line of a ``.jsonl`` file with ``messages`` (``role`` and ``content`` each) is a conversation: it
goes through the model's chat template, and only the assistant's turns are to be predicted, as are
the answers in a folder of :mod:`.packed` texts. Of every other text all tokens are. Whether a text
is held out depends on its beginning alone, so several answers to one prompt stay together.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import dataclasses as pydantic

from hierspec.errors import HierspecError
from hierspec.utils.files import read_bytes
from hierspec.utils.json_lines import is_json_lines, parse_lines
from hierspec.utils.prompts import ConversationMessage, has_messages, read_prompt_file
from hierspec.utils.schema import OPEN, Expected, validate

from .conversations import Conversation, Label, text_in
from .packed import PackedText, PackedTexts, is_packed

HELD_OUT = "held out"
_HELD_OUT_EVERY = 20  # one text in this many is held out


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


@pydantic.dataclass(config=OPEN, frozen=True, slots=True, kw_only=True)
class _LabelledText:
    text: str  # empty ones are left out when features are stored
    domain: Label = ""


_AnyText = Annotated[str | _LabelledText, Expected("a text, or an object with messages or text")]


def read(
    paths: Sequence[Path],
    tokenizer: Any,
    known_keys: Collection[str],
    max_tokens: int,
    group: str | None = None,
    groups: dict[str, str] | None = None,
) -> Iterator[TrainingText]:
    """Read the texts of files and folders, each once.

    A last line that is still being written is left for the next time.

    Args:
        known_keys: of texts to leave out.
        max_tokens: texts are cut after so many.
        group: of all texts; default: one in twenty is held out, the rest is trained on.
        groups: gets the groups of those that are left out, by their keys.

    Raises:
        HierspecError: a file that cannot be read, or a line that is no text.
    """
    keys = set(known_keys)
    groups = {} if groups is None else groups
    for path in paths:
        if is_packed(path):
            for text, ids in PackedTexts(path).read():
                key = _digest(json.dumps(ids))
                own = group or _group_of(json.dumps(ids[: text.answer]))
                if key in keys:
                    groups.setdefault(key, own)
                else:
                    keys.add(key)
                    yield _packed(key, text, ids, max_tokens, own)
            continue
        files = sorted(f for f in path.rglob("*") if f.is_file()) if path.is_dir() else [path]
        for file in files:
            for raw, domain in _raw_texts(file):
                key = _digest(json.dumps(raw, sort_keys=True))
                own = group or _group_of(_beginning(raw))
                if key in keys:
                    groups.setdefault(key, own)
                else:
                    keys.add(key)
                    yield _text(key, raw, domain, tokenizer, max_tokens, own)


def _raw_texts(file: Path) -> Iterator[tuple[str | list[ConversationMessage], str]]:
    """Yield texts, and conversations as lists of messages, each with its domain."""
    if not is_json_lines(file):
        yield from ((text, "") for text in read_prompt_file(file, "text").prompts)
        return
    body = read_bytes(file, "texts")
    for _, raw in parse_lines(body, str(file), _raw_text, may_be_cut=True):
        yield raw


def _raw_text(row: Any) -> tuple[str | list[ConversationMessage], str]:
    if has_messages(row):
        conversation = Conversation.from_row(row).require_content()
        return conversation.messages, conversation.domain
    text = validate(_AnyText, row, "the line")
    return (text, "") if isinstance(text, str) else (text.text, text.domain)


def _text(
    key: str,
    raw: str | list[ConversationMessage],
    domain: str,
    tokenizer: Any,
    max_tokens: int,
    group: str,
) -> TrainingText:
    if isinstance(raw, str):
        ids = tokenizer(raw, verbose=False)["input_ids"][:max_tokens]
        predicted = ((0, len(ids)),)
    else:
        ids, predicted = _conversation(raw, tokenizer, max_tokens)
    return TrainingText(key, tuple(ids), predicted, group, domain)


def _packed(
    key: str, text: PackedText, ids: list[int], max_tokens: int, group: str
) -> TrainingText:
    predicted = ((text.answer, min(text.length, max_tokens)),) if text.answer < max_tokens else ()
    return TrainingText(key, tuple(ids[:max_tokens]), predicted, group, text.domain)


def _beginning(raw: str | list[ConversationMessage]) -> str:
    if isinstance(raw, str):
        return raw[:200]
    return next((text_in(message) for message in raw if message["role"] == "user"), "")


def _group_of(beginning: str) -> str:
    """Return the group of a text that begins so: the held-out one, or that to train on."""
    return HELD_OUT if int(_digest(beginning), 16) % _HELD_OUT_EVERY == 0 else ""


def _conversation(
    messages: Sequence[ConversationMessage], tokenizer: Any, max_tokens: int
) -> tuple[list[int], tuple[tuple[int, int], ...]]:
    """Return a conversation's ids, and [start, end) of the assistant's turns with their end."""
    if not getattr(tokenizer, "chat_template", None):
        raise HierspecError(
            "conversations need a model with a chat template; this one's tokenizer has none: give "
            "texts instead"
        )

    def render(count: int, add_generation_prompt: bool) -> str:
        try:
            return tokenizer.apply_chat_template(
                list(messages[:count]), tokenize=False, add_generation_prompt=add_generation_prompt
            )
        except Exception as error:  # templates are programs: they may raise anything
            raise HierspecError(f"the chat template refuses a conversation: {error}") from error

    ids: list[int] = []
    turns: list[tuple[int, int]] = []
    tokenized = ""
    for i, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        prompt, answered = render(i, True), render(i + 1, False)
        if not (prompt.startswith(tokenized) and answered.startswith(prompt)):
            raise HierspecError("the chat template rewrites earlier messages: give texts instead")
        # A prompt and its answer are tokenized separately, as in generation.
        ids += _ids(tokenizer, prompt[len(tokenized) :])
        answer = _ids(tokenizer, answered[len(prompt) :])
        turns.append((len(ids), len(ids) + _turn_length(answer, tokenizer)))
        ids += answer
        tokenized = answered
    cut = [(low, min(high, max_tokens)) for low, high in turns if low < max_tokens]
    return ids[:max_tokens], tuple(cut)


def _ids(tokenizer: Any, text: str) -> list[int]:
    return tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]


def _turn_length(answer: list[int], tokenizer: Any) -> int:
    """Count the ids of a turn up to the end of text; what follows is the template's."""
    end = tokenizer.eos_token_id
    return answer.index(end) + 1 if end in answer else len(answer)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:24]
