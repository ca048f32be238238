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
    def content(self) -> list[ConversationMessage]:
        return self.messages

    @property
    def prompt(self) -> str:
        """The texts of all messages before the first answer, joined by newlines."""
        questions = takewhile(lambda message: message["role"] != "assistant", self.messages)
        return "\n".join(map(text_in, questions))

    def tokenize(self, tokenizer: Any) -> tuple[list[int], list[tuple[int, int]]]:
        """Return the ids up to the last answer, and [start, end) of the answers with their end.

        Where the chat template rewrites earlier messages, only the answers after that count.

        Raises:
            HierspecError: there is no chat template, or it refuses the messages, or begins answers
                in another way than it writes them.
        """
        if not getattr(tokenizer, "chat_template", None):
            raise HierspecError(
                "conversations need a model with a chat template; this one's tokenizer has none: "
                "give texts instead"
            )

        def render(count: int, add_generation_prompt: bool) -> str:
            messages = self.messages[:count]
            try:
                return tokenizer.apply_chat_template(
                    messages, tokenize=False, add_generation_prompt=add_generation_prompt
                )
            except Exception as error:  # templates are programs: they may raise anything
                raise HierspecError(f"the chat template refuses a conversation: {error}") from error

        def tokens(text: str) -> list[int]:
            return tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]

        ids: list[int] = []
        answers: list[tuple[int, int]] = []
        tokenized = ""
        for i, message in enumerate(self.messages):
            if message["role"] != "assistant":
                continue
            prompt, answered = render(i, True), render(i + 1, False)
            if not prompt.startswith(tokenized):
                ids, answers, tokenized = [], [], ""
            if not answered.startswith(prompt):
                raise HierspecError("the chat template rewrites the prompt: give texts instead")
            # A prompt and its answer are tokenized separately, as in generation.
            ids += tokens(prompt[len(tokenized) :])
            answer = tokens(answered[len(prompt) :])
            # What follows the end of text is the template's.
            end = tokenizer.eos_token_id
            length = answer.index(end) + 1 if end in answer else len(answer)
            answers.append((len(ids), len(ids) + length))
            ids += answer
            tokenized = answered
        return ids, answers


def text_in(message: ConversationMessage) -> str:
    """Return the text of a message; of a list of parts, the texts in it."""
    content = message.get("content")
    parts = content if isinstance(content, list) else [{"text": content}]
    texts = [part.get("text") for part in parts if isinstance(part, Mapping)]
    return "\n".join(text for text in texts if isinstance(text, str))
