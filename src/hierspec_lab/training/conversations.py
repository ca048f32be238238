"""Conversations as lines of files hold them: what models are trained and measured on."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import takewhile
from typing import Annotated, Any, Self

from pydantic import BeforeValidator
from pydantic import dataclasses as pydantic

from hierspec.errors import HierspecError
from hierspec.utils.prompts import MESSAGES_FORM, ConversationMessage
from hierspec.utils.schema import OPEN, short_repr, validate


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
        try:
            return validate(cls, row, "")
        except HierspecError as error:
            raise HierspecError(f"{error}; {MESSAGES_FORM}") from None

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
                    f"messages[{number}] must have {noun}, not {short_repr(message)}; "
                    f"{MESSAGES_FORM}"
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
