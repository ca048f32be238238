"""Prompts from files and standard input, and chat templates.

``.jsonl`` and ``.ndjson`` hold one prompt a line: a JSON string, or an object with ``prompt``,
``turns`` (the first is taken), ``question`` or ``text``, looked for in that order; where a
conversation may be a prompt, also ``messages``, which goes before all of them. Any other file
is one prompt as a whole, without the newline that editors put at its end. Standard input (``-``)
is read as lines of JSON where its first line is a JSON object, and as one prompt otherwise.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from hierspec.errors import HierspecError
from hierspec.utils.schema import parse_json

T = TypeVar("T")

KEYS = ("prompt", "turns", "question", "text")
_JSON_LINES = (".jsonl", ".ndjson")


@dataclass(frozen=True, slots=True)
class PromptFile:
    """Prompts and what identifies where they came from, for results that can be checked.

    Attributes:
        prompts: texts; also conversations (lists of messages) where those were asked for.
        name: file name without its folder; ``-`` for standard input.
        sha256: of the bytes read, hexadecimal.
    """

    prompts: tuple[Any, ...]
    name: str
    sha256: str


def read_prompt_file(
    path: str | Path, noun: str = "prompt", *, conversations: bool = False
) -> PromptFile:
    """All prompts of a file, or of standard input for ``-``; ``noun`` is what errors call one.

    With ``conversations`` a line's ``messages`` are a prompt too.

    Raises:
        HierspecError: no such file, not UTF-8, or a line without a prompt; names file and line.
    """
    body, text, where, lines = _read(path, noun)
    read: Callable[[Any], Any] = _prompt_or_messages if conversations else _prompt_of
    prompts = _json_lines(text, where, read) if lines else (_one(text, where, noun),)
    if not prompts:
        raise HierspecError(f"{where} holds no {noun}")
    return PromptFile(prompts, Path(path).name, hashlib.sha256(body).hexdigest())


def _read(path: str | Path, noun: str) -> tuple[bytes, str, str, bool]:
    """Bytes, text, what messages call the file, and whether it is JSON, a prompt a line."""
    name = str(path)
    if name == "-":
        body = sys.stdin.buffer.read()
    else:
        try:
            body = Path(path).read_bytes()
        except (OSError, ValueError) as error:  # a null byte in the path is a ValueError
            why = getattr(error, "strerror", None) or error
            raise HierspecError(f"cannot read {noun}s from {name}: {why}") from None
    where = "standard input" if name == "-" else name
    text = _decoded(body, where)
    lines = Path(name).suffix.lower() in _JSON_LINES or (name == "-" and _starts_json(text))
    return body, text, where, lines


def read_prompts(path: str | Path, *, conversations: bool = False) -> list[Any]:
    """The prompts of :func:`read_prompt_file` alone."""
    return list(read_prompt_file(path, conversations=conversations).prompts)


def read_ids(path: str | Path) -> list[list[int]]:
    """Prompts as token ids, from a file as :func:`read_prompt_file` takes it.

    A line of ``.jsonl`` is a list of ids, or an object with ``prompt_token_ids``; any other file
    holds the ids of one prompt, with blanks or commas between.

    Raises:
        HierspecError: as :func:`read_prompt_file`, or something else than ids is in it.
    """
    _, text, where, lines = _read(path, "prompt")
    found = _json_lines(text, where, _ids_of) if lines else (parse_ids(text, where),)
    if not found:
        raise HierspecError(f"{where} holds no prompt")
    return list(found)


def parse_ids(text: str, where: str) -> list[int]:
    """Token ids as people write them: ``1 2 3``, ``1,2,3`` or ``[1, 2, 3]``.

    Raises:
        HierspecError: something else is in it, or nothing.
    """
    words = text.strip().removeprefix("[").removesuffix("]").replace(",", " ").split()
    if not words or not all(
        word.isascii() and word.isdecimal() and len(word) < 10 for word in words
    ):
        wrong = next((w for w in words if not (w.isascii() and w.isdecimal() and len(w) < 10)), "")
        raise HierspecError(f"{where}: token ids are numbers, as in 1 2 3; got {wrong[:40]!r}")
    return [int(word) for word in words]


def read_stdin() -> str:
    """Standard input as one prompt, whatever it looks like."""
    return _one(_decoded(sys.stdin.buffer.read(), "standard input"), "standard input")


def is_conversation(prompt: Any) -> bool:
    """Whether a prompt is a list of messages, as chat templates take them."""
    return (
        isinstance(prompt, list | tuple)
        and bool(prompt)
        and all(isinstance(message, Mapping) for message in prompt)
    )


def apply_chat(
    tokenizer: Any,
    conversation: str | Sequence[Mapping[str, Any]],
    tools: Sequence[Any] | None = None,
    **options: Any,
) -> list[int]:
    """Token ids of a conversation in the model's own format, up to where the answer begins.

    Args:
        tokenizer: of transformers, with a chat template.
        conversation: what the user says, or messages with ``role`` and ``content``.
        tools: functions that the model may call, or their JSON schemas, as the template takes them.
        options: further variables of the template (``enable_thinking=False``, …).

    Raises:
        HierspecError: no chat template, or one that refuses these messages.
    """
    if not getattr(tokenizer, "chat_template", None):
        raise HierspecError(
            "this model's tokenizer has no chat template: give a text without --chat (chat=True), "
            "or use an instruction-tuned model"
        )
    messages: Any = conversation
    if isinstance(conversation, str):
        messages = [{"role": "user", "content": conversation}]
    for number, message in enumerate(messages):
        if "role" not in message:
            raise HierspecError(
                f"message {number} has no role: each is {{'role': 'user', 'content': '...'}}"
            )
    if tools:
        options["tools"] = list(tools)
    try:
        ids = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, tokenize=True, return_dict=False, **options
        )
    except Exception as error:  # templates are programs; they raise what they like
        raise HierspecError(f"the chat template refuses these messages: {error}") from error
    return [int(token) for token in ids]


def _decoded(body: bytes, where: str) -> str:
    try:
        return body.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = body[: error.start].count(b"\n") + 1
        raise HierspecError(f"{where}, line {line}: not UTF-8 text") from None


def _one(text: str, where: str, noun: str = "prompt") -> str:
    """The text as a prompt; ``echo`` and editors add one newline that nobody meant."""
    prompt = text.removesuffix("\n").removesuffix("\r")
    if not prompt:
        raise HierspecError(f"{where} holds no {noun}")
    return prompt


def _starts_json(text: str) -> bool:
    try:
        return isinstance(json.loads(text.lstrip().split("\n", 1)[0]), dict)
    except (ValueError, RecursionError):
        return False


class _RowError(ValueError):
    """What is wrong with a line's value."""


def _json_lines(text: str, where: str, read_row: Callable[[Any], T]) -> tuple[T, ...]:
    prompts = []
    # Not splitlines(): JSON strings may hold U+2028 and the like.
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            at = f"{where}, line {number}"
            try:
                prompts.append(read_row(parse_json(line, at)))
            except _RowError as error:
                raise HierspecError(f"{at}: {error}") from None
    return tuple(prompts)


def _prompt_or_messages(row: Any) -> Any:
    """The conversation in one line's value, or its prompt."""
    if not isinstance(row, Mapping) or "messages" not in row:
        return _prompt_of(row)
    messages = row["messages"]
    if not is_conversation(messages):
        raise _RowError("messages must be a list of objects with role and content")
    return messages


def _prompt_of(row: Any) -> str:
    """The prompt in one line's value; a :class:`_RowError` says what is wrong with it."""
    key, prompt = "the line", row
    if isinstance(row, Mapping):
        key = next((k for k in KEYS if k in row), "")
        if not key:
            found = ", ".join(map(str, row)) or "none"
            raise _RowError(f"needs one of the keys {', '.join(KEYS)}; found {found}")
        prompt = row[key]
        if key == "turns":
            if not isinstance(prompt, list) or not prompt:
                raise _RowError("turns must be a list with at least one text")
            prompt = prompt[0]
    if not isinstance(prompt, str) or not prompt:
        raise _RowError(f"{key} must be a text of at least one character")
    return prompt


def _ids_of(row: Any) -> list[int]:
    """The token ids in one line's value; a :class:`_RowError` says what is wrong with it."""
    ids = row.get("prompt_token_ids") if isinstance(row, Mapping) else row
    if not isinstance(ids, list) or not ids or any(type(token) is not int for token in ids):
        raise _RowError("with --ids a line is a list of token ids, or has them as prompt_token_ids")
    return ids
