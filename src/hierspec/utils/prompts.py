"""Prompts from files and standard input, conversations, and chat templates.

``.jsonl`` and ``.ndjson`` hold one prompt a line: a JSON string, or an object with ``prompt``,
``turns`` (the first is used), ``question`` or ``text``, looked up in that order; where
conversations are accepted, ``messages`` comes before all of them. The text of any other file is one
prompt, without the newline that editors put at its end. Standard input (``-``) is read as lines of
JSON if its first line is a JSON object, and as one prompt otherwise.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, NotRequired, TypeVar, cast

from pydantic import BeforeValidator, ConfigDict, Field, with_config
from typing_extensions import TypedDict  # pydantic needs this one below Python 3.12

from hierspec.errors import HierspecError

from .files import decode_utf8, read_bytes
from .json_lines import is_json_lines, parse_lines
from .schema import Expected, Integer, short_repr, validate

T = TypeVar("T")
MESSAGES_FORM = (
    'messages are [{"role": "user", "content": "…"}, {"role": "assistant", "content": "…"}]'
)


@with_config(ConfigDict(extra="allow"))
class ConversationMessage(TypedDict):
    """A message as chat templates take it, who said what; further keys are for the template, too.

    Attributes:
        content: a text, or what else the template reads: a list of parts, an object that a tool
            returned, null beside ``tool_calls``; left out where it reads another key instead.
    """

    role: str
    content: NotRequired[Any]


def has_messages(row: Any) -> bool:
    """Return whether a line's JSON says that it is a conversation; null counts as no messages."""
    return isinstance(row, Mapping) and row.get("messages") is not None


def is_conversation(prompt: Any) -> bool:
    """Return whether a Python caller's prompt is a list of messages, not a text or token ids."""
    return (
        isinstance(prompt, list | tuple)
        and bool(prompt)
        and all(isinstance(message, Mapping) for message in prompt)
    )


def validate_messages(messages: Any) -> None:
    """Refuse a value that is not a list of messages; what they must hold, who reads them says."""
    try:
        validate(list[ConversationMessage], messages, "messages")
    except HierspecError as error:
        raise HierspecError(f"{error}; {MESSAGES_FORM}") from None


def _as_turns(value: Any) -> Any:
    """Return a text as a list, and a list without the empty values that fill a table's column."""
    if isinstance(value, str):
        return [value]
    while isinstance(value, list) and len(value) > 1 and value[-1] in ("", None):
        value = value[:-1]
    return value


PromptText = Annotated[str, Field(min_length=1), Expected("a text of at least one character")]
PromptTurns = Annotated[list[PromptText], Field(min_length=1), BeforeValidator(_as_turns)]


class PromptRow(TypedDict, total=False):
    """An object on a line of a file of prompts; of several keys the first in this order counts.

    The others are not looked at: files have them for purposes of their own. Null is no value.

    Attributes:
        turns: what the user says, one after the other; a text is a single turn, and empty ones at
            the end do not count.
    """

    prompt: PromptText
    turns: PromptTurns
    question: PromptText
    text: PromptText


_KEYS = tuple(PromptRow.__annotations__)
_TextRow = Annotated[PromptText, Expected("an object, or a text of at least one character")]
_IdsRow = Annotated[
    list[Integer],
    Field(min_length=1),
    BeforeValidator(lambda row: row.get("prompt_token_ids") if isinstance(row, Mapping) else row),
    Expected("a list of token ids, or an object that has them as prompt_token_ids"),
]


def turns_of(row: Any, *others: str) -> list[str]:
    """Return what the user says, turn by turn, in a line's JSON: a :class:`PromptRow` or a text.

    Args:
        others: keys that the caller accepts besides, for the error.

    Raises:
        HierspecError: the line holds no prompt.
    """
    if not isinstance(row, Mapping):
        return [validate(_TextRow, row, "the line")]
    key = next((key for key in _KEYS if row.get(key) is not None), None)
    if key is None:
        found = ", ".join(map(str, row)) or "none"
        raise HierspecError(f"needs one of the keys {', '.join((*others, *_KEYS))}; found {found}")
    said = validate(PromptRow, {key: row[key]}, "")[key]
    return said if key == "turns" else [said]


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
    body, source, is_jsonl = _read_source(path, noun)
    if is_jsonl:
        parse: Callable[[Any], Any] = _messages_or_first_turn if conversations else _first_turn
        prompts = _parse_rows(body, source, parse, noun)
    else:
        prompts = (_prompt(body, source, noun),)
    return PromptFile(prompts, Path(path).name, hashlib.sha256(body).hexdigest())


def read_prompts(path: str | Path, *, conversations: bool = False) -> list[Any]:
    """Read a file as :func:`read_prompt_file` does, and return its prompts."""
    return list(read_prompt_file(path, conversations=conversations).prompts)


def read_ids(path: str | Path) -> dict[str, list[int]]:
    """Read prompts that are token ids, from the files that :func:`read_prompt_file` reads.

    They are returned by where they stand, for errors. A line of ``.jsonl`` is a list of ids, or an
    object with ``prompt_token_ids``; any other file holds the ids of one prompt, separated by
    blanks or commas.

    Raises:
        HierspecError: as :func:`read_prompt_file`, or the file holds anything but ids.
    """
    body, source, is_jsonl = _read_source(path, "prompt")
    if not is_jsonl:
        return {source: parse_ids(decode_utf8(body, source), source)}
    found = {f"{source}, line {i}": ids for i, ids in parse_lines(body, source, _ids_of)}
    if not found:
        raise HierspecError(f"{source} holds no prompt")
    return found


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
    return _prompt(sys.stdin.buffer.read(), "standard input", "prompt")


def apply_chat(
    tokenizer: Any,
    conversation: str | Sequence[Mapping[str, Any]],
    tools: Sequence[Any] | None = None,
    *,
    add_generation_prompt: bool = True,
    **options: Any,
) -> list[int]:
    """Return the token ids of a conversation in the model's chat format.

    Args:
        tokenizer: of transformers, with a chat template.
        conversation: the user's message, or messages with ``role`` and ``content``.
        tools: functions that the model may call, or their JSON schemas.
        add_generation_prompt: end with the tokens that begin the model's answer.
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
    validate_messages(messages)
    if tools:
        options["tools"] = list(tools)
    told = getattr(tokenizer, "deprecation_warnings", None)
    if isinstance(told, dict):  # what transformers warns of once: lengths are checked later
        told["sequence-length-is-longer-than-the-specified-maximum"] = True
    try:
        ids = tokenizer.apply_chat_template(
            messages,
            add_generation_prompt=add_generation_prompt,
            tokenize=True,
            return_dict=False,
            **options,
        )
    except Exception as error:  # templates are programs, and may raise anything
        raise HierspecError(f"the chat template refuses these messages: {error}") from error
    return [int(token) for token in ids]


def template_variables(variables: Any) -> dict[str, Any]:
    """Return what a caller gives as further variables of a chat template.

    Raises:
        HierspecError: they are no mapping, or one would change what is done with the template, or
            replace it.
    """
    if not isinstance(variables, Mapping | None):
        raise HierspecError(
            f"chat_template_kwargs must map names to values, not be {short_repr(variables)}"
        )
    names = cast("Mapping[Any, Any]", variables or {})
    for name in names:
        if not isinstance(name, str) or name in _template_arguments():
            raise HierspecError(
                f"chat_template_kwargs: {short_repr(name)} cannot be set: leave it out"
            )
    return dict(names)


@cache
def _template_arguments() -> frozenset[str]:
    """Return the arguments of the method that renders a template: every other name is a variable
    of it."""
    from transformers import PreTrainedTokenizerBase

    arguments = inspect.signature(PreTrainedTokenizerBase.apply_chat_template).parameters
    return frozenset({"messages", *arguments} - {"documents", "kwargs"})


def _read_source(path: str | Path, noun: str) -> tuple[bytes, str, bool]:
    """Return a file's bytes, its name for errors, and whether each line is JSON."""
    if str(path) == "-":
        body = sys.stdin.buffer.read()
        return body, "standard input", _starts_json(body)
    path = Path(path)
    return read_bytes(path, f"{noun}s"), str(path), is_json_lines(path)


def _starts_json(body: bytes) -> bool:
    try:
        return isinstance(json.loads(body.lstrip().split(b"\n", 1)[0]), dict)
    except (ValueError, RecursionError):
        return False


def _parse_rows(body: bytes, source: str, parse: Callable[[Any], T], noun: str) -> tuple[T, ...]:
    prompts = tuple(prompt for _, prompt in parse_lines(body, source, parse))
    if not prompts:
        raise HierspecError(f"{source} holds no {noun}")
    return prompts


def _prompt(body: bytes, source: str, noun: str) -> str:
    """Return a file as one prompt, without the newline that ``echo`` and editors append."""
    prompt = decode_utf8(body, source).removesuffix("\n").removesuffix("\r")
    if not prompt:
        raise HierspecError(f"{source} holds no {noun}")
    return prompt


def _first_turn(row: Any) -> str:
    return turns_of(row)[0]


def _messages_or_first_turn(row: Any) -> Any:
    if not has_messages(row):
        return turns_of(row, "messages")[0]
    validate_messages(row["messages"])
    if not row["messages"]:
        raise HierspecError("messages must be a list of at least one")
    return row["messages"]


def _ids_of(row: Any) -> list[int]:
    return validate(_IdsRow, row, "with --ids a line")
