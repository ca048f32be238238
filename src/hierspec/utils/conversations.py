"""Conversations: messages as chat templates take them, from files and from Python callers."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import takewhile
from typing import Annotated, Any, NotRequired, Self

from pydantic import BeforeValidator, ConfigDict, with_config
from pydantic import dataclasses as pydantic
from typing_extensions import TypedDict  # pydantic needs this one below Python 3.12

from hierspec.errors import HierspecError

from .schema import OPEN, short_repr, validate

_FORM = 'messages are [{"role": "user", "content": "…"}, {"role": "assistant", "content": "…"}]'


@with_config(ConfigDict(extra="allow"))
class ConversationMessage(TypedDict):
    """A message as chat templates take it, who said what; further keys are for the template, too.

    Attributes:
        content: a text, or what else the template reads: a list of parts, an object that a tool
            returned, null beside ``tool_calls``; left out where it reads another key instead.
    """

    role: str
    content: NotRequired[Any]


def as_label(value: Any) -> str:
    """Return a value as a label, for which files may have a number, or null for none."""
    return "" if value is None else str(value)


Label = Annotated[str, BeforeValidator(as_label)]


@pydantic.dataclass(config=OPEN, frozen=True, slots=True, kw_only=True)
class Conversation:
    """The messages between a user and a model, as a line of a ``.jsonl`` file holds them.

    Attributes:
        messages: in their order, none if nothing was said. What else they must have is for those
            to say who read them (:meth:`require_content`).
        domain: their subject, so that kinds of text can be measured apart; empty if unknown.
    """

    messages: list[ConversationMessage]
    domain: Label = ""

    @classmethod
    def from_row(cls, row: Any) -> Conversation:
        """Check a line's JSON and return its conversation; other keys of the line are ignored.

        Raises:
            HierspecError: it is none; with the place, and the form that messages have.
        """
        return _validate(cls, row, "")

    def require_content(self, *, text: bool = False) -> Self:
        """Return the conversation if all messages have a content, which with ``text`` is a text.

        To be required of conversations to learn from: where a content is missing, under another
        name say, templates write nothing and do not complain.

        Raises:
            HierspecError: names the first message without.
        """
        noun = "a text as its content" if text else "a content"
        for number, message in enumerate(self.messages):
            has_content = isinstance(message.get("content"), str) if text else "content" in message
            if not has_content:
                raise HierspecError(
                    f"messages[{number}] must have {noun}, not {short_repr(message)}; {_FORM}"
                )
        return self

    @property
    def prompt(self) -> str:
        """The texts of all messages before the first answer, joined by newlines."""
        questions = takewhile(lambda message: message["role"] != "assistant", self.messages)
        return "\n".join(map(text_in, questions))


def text_in(message: ConversationMessage) -> str:
    """Return the text of a message; of a list of parts, the texts in it."""
    content = message.get("content")
    parts = content if isinstance(content, list) else [{"text": content}]
    texts = [part.get("text") for part in parts if isinstance(part, Mapping)]
    return "\n".join(text for text in texts if isinstance(text, str))


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
    """Refuse a value that is not a list of messages."""
    _validate(list[ConversationMessage], messages, "messages")


def _validate(shape: Any, data: Any, place: str) -> Any:
    try:
        return validate(shape, data, place)
    except HierspecError as error:
        raise HierspecError(f"{error}; {_FORM}") from None
