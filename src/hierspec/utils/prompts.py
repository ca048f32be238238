"""Prompts from files and standard input, and chat templates.

``.jsonl`` and ``.ndjson`` hold one prompt a line: a JSON string, or an object with ``prompt``,
``turns`` (the first is used), ``question`` or ``text``, looked up in that order; where
conversations are accepted, ``messages`` comes before all of them. The text of any other file is one
prompt, without the newline that editors put at its end. Standard input (``-``) is read as lines of
JSON if its first line is a JSON object, and as one prompt otherwise.
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
JSON_LINES = (".jsonl", ".ndjson")  # suffixes of files that hold a JSON value on each line


@dataclass(frozen=True, slots=True)
class PromptFile:
    """Prompts with the name and hash of their file, so that results can be checked.

    Attributes:
        prompts: texts; also conversations (lists of messages) where those are accepted.
        name: file name without its folder; ``-`` for standard input.
        sha256: of the file's bytes, hexadecimal.
    """

    prompts: tuple[Any, ...]
    name: str
    sha256: str


def read_prompt_file(
    path: str | Path, noun: str = "prompt", *, conversations: bool = False
) -> PromptFile:
    """Read all prompts of a file, or of standard input for ``-``; errors call one a ``noun``.

    With ``conversations`` a line's ``messages`` are a prompt too.

    Raises:
        HierspecError: no such file, not UTF-8, or a line without a prompt; names file and line.
    """
    body, text, source, is_jsonl = _read_source(path, noun)
    parse_row: Callable[[Any], Any] = _prompt_or_messages if conversations else _prompt_of
    prompts = _json_lines(text, source, parse_row) if is_jsonl else (_prompt(text, source, noun),)
    if not prompts:
        raise HierspecError(f"{source} holds no {noun}")
    return PromptFile(prompts, Path(path).name, hashlib.sha256(body).hexdigest())


def _read_source(path: str | Path, noun: str) -> tuple[bytes, str, str, bool]:
    """Return a file's bytes, its text, its name for errors, and whether each line is JSON."""
    name = str(path)
    if name == "-":
        body = sys.stdin.buffer.read()
    else:
        try:
            body = Path(path).read_bytes()
        except (OSError, ValueError) as error:  # a null byte in the path is a ValueError
            reason = getattr(error, "strerror", None) or error
            raise HierspecError(f"cannot read {noun}s from {name}: {reason}") from None
    source = "standard input" if name == "-" else name
    text = _decode_utf8(body, source)
    is_jsonl = Path(name).suffix.lower() in JSON_LINES or (name == "-" and _starts_json(text))
    return body, text, source, is_jsonl


def read_prompts(path: str | Path, *, conversations: bool = False) -> list[Any]:
    """Read a file as :func:`read_prompt_file` does, and return its prompts."""
    return list(read_prompt_file(path, conversations=conversations).prompts)


def read_ids(path: str | Path) -> list[list[int]]:
    """Read prompts that are token ids, from the files that :func:`read_prompt_file` reads.

    A line of ``.jsonl`` is a list of ids, or an object with ``prompt_token_ids``; any other file
    holds the ids of one prompt, separated by blanks or commas.

    Raises:
        HierspecError: as :func:`read_prompt_file`, or the file holds anything but ids.
    """
    _, text, source, is_jsonl = _read_source(path, "prompt")
    prompts = _json_lines(text, source, _ids_of) if is_jsonl else (parse_ids(text, source),)
    if not prompts:
        raise HierspecError(f"{source} holds no prompt")
    return list(prompts)


def parse_ids(text: str, source: str) -> list[int]:
    """Parse token ids as people write them: ``1 2 3``, ``1,2,3`` or ``[1, 2, 3]``.

    Raises:
        HierspecError: the text is empty, or holds anything else.
    """
    words = text.strip().removeprefix("[").removesuffix("]").replace(",", " ").split()
    invalid = [w for w in words if not (w.isascii() and w.isdecimal() and len(w) < 10)]
    if invalid or not words:
        word = invalid[0][:40] if invalid else ""
        raise HierspecError(f"{source}: token ids are numbers, as in 1 2 3; got {word!r}")
    return [int(word) for word in words]


def read_stdin() -> str:
    """Read standard input as one prompt, even if it looks like JSON."""
    return _prompt(_decode_utf8(sys.stdin.buffer.read(), "standard input"), "standard input")


def is_conversation(prompt: Any) -> bool:
    """Tell whether a prompt is a list of messages, as chat templates take them."""
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
    """Return the token ids of a conversation in the model's chat format, ready for an answer.

    Args:
        tokenizer: of transformers, with a chat template.
        conversation: the user's message, or messages with ``role`` and ``content``.
        tools: functions that the model may call, or their JSON schemas.
        options: further variables of the template (``enable_thinking=False``, …).

    Raises:
        HierspecError: there is no chat template, or it refuses these messages.
    """
    if not getattr(tokenizer, "chat_template", None):
        raise HierspecError(
            "this model's tokenizer has no chat template: leave --chat (chat=True) out, or use an "
            "instruction-tuned model"
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
    except Exception as error:  # templates are programs, and may raise anything
        raise HierspecError(f"the chat template refuses these messages: {error}") from error
    return [int(token) for token in ids]


def _decode_utf8(body: bytes, source: str) -> str:
    try:
        return body.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = body[: error.start].count(b"\n") + 1
        raise HierspecError(f"{source}, line {line}: not UTF-8 text") from None


def _prompt(text: str, source: str, noun: str = "prompt") -> str:
    """Return a text as one prompt, without the newline that ``echo`` and editors append."""
    prompt = text.removesuffix("\n").removesuffix("\r")
    if not prompt:
        raise HierspecError(f"{source} holds no {noun}")
    return prompt


def _starts_json(text: str) -> bool:
    try:
        return isinstance(json.loads(text.lstrip().split("\n", 1)[0]), dict)
    except (ValueError, RecursionError):
        return False


class _RowError(ValueError):
    """A line of a prompt file holds no valid prompt."""


def _json_lines(text: str, source: str, parse_row: Callable[[Any], T]) -> tuple[T, ...]:
    prompts = []
    # Not splitlines(): JSON strings may hold U+2028 and the like.
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            place = f"{source}, line {number}"
            try:
                prompts.append(parse_row(parse_json(line, place)))
            except _RowError as error:
                raise HierspecError(f"{place}: {error}") from None
    return tuple(prompts)


def _prompt_or_messages(row: Any) -> Any:
    """Return the conversation in a line's parsed JSON or, if it has none, its prompt."""
    if not isinstance(row, Mapping) or "messages" not in row:
        return _prompt_of(row)
    messages = row["messages"]
    if not is_conversation(messages):
        raise _RowError("messages must be a list of objects with role and content")
    return messages


def _prompt_of(row: Any) -> str:
    """Return the prompt in a line's parsed JSON; raise :class:`_RowError` if it has none."""
    key, prompt = "the line", row
    if isinstance(row, Mapping):
        key = next((k for k in KEYS if k in row), "")
        if not key:
            keys = ", ".join(map(str, row)) or "none"
            raise _RowError(f"needs one of the keys {', '.join(KEYS)}; found {keys}")
        prompt = row[key]
        if key == "turns":
            if not isinstance(prompt, list) or not prompt:
                raise _RowError("turns must be a list with at least one text")
            prompt = prompt[0]
    if not isinstance(prompt, str) or not prompt:
        raise _RowError(f"{key} must be a text of at least one character")
    return prompt


def _ids_of(row: Any) -> list[int]:
    """Return the token ids in a line's parsed JSON; raise :class:`_RowError` if it has none."""
    ids = row.get("prompt_token_ids") if isinstance(row, Mapping) else row
    if not isinstance(ids, list) or not ids or any(type(token) is not int for token in ids):
        raise _RowError("with --ids a line is a list of token ids, or has them as prompt_token_ids")
    return ids
