"""Prompts of any form, a text, a conversation or token ids, converted to token ids."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hierspec.errors import HierspecError
from hierspec.utils.conversations import is_conversation
from hierspec.utils.prompts import apply_chat, template_variables
from hierspec.utils.validation import HALF_CHARACTERS

from . import arguments


@dataclass(frozen=True, slots=True)
class Template:
    """How the prompts of one request become token ids.

    Attributes:
        tokenizer: the target's; ``None``: only ids are accepted.
        chat: apply the chat template to texts, too.
        tools, variables: for the template (:func:`hierspec.utils.prompts.apply_chat`).
    """

    tokenizer: Any
    chat: bool = False
    tools: Sequence[Any] | None = None
    variables: Mapping[str, Any] | None = None

    def ids(self, prompt: Any) -> list[int]:
        """Return the token ids of a text or of a conversation, or ids as they are.

        Raises:
            HierspecError: no tokenizer, no chat template, or options that only a template reads.
        """
        has_messages = is_conversation(prompt)
        needs_template = has_messages or (self.chat and isinstance(prompt, str))
        if (self.tools or self.variables) and not needs_template:
            raise HierspecError(
                "tools and chat_template_kwargs are for the chat template: add chat=True, or give "
                "a list of messages"
            )
        if not isinstance(prompt, str) and not has_messages:
            return arguments.token_ids(prompt)
        self.validate_tokenizer()
        text = prompt
        if not isinstance(prompt, str):
            text = json.dumps(prompt, ensure_ascii=False, skipkeys=True, default=str)
        if HALF_CHARACTERS.search(text):
            raise HierspecError("a prompt holds half a character (a lone surrogate): leave it out")
        if needs_template:
            return apply_chat(
                self.tokenizer, prompt, self.tools, **template_variables(self.variables)
            )
        ids = self.tokenizer(prompt, verbose=False)["input_ids"]  # its length is checked later
        if prompt and not ids:
            raise HierspecError(
                f"the tokenizer ({type(self.tokenizer).__name__}) makes no token of this text: "
                "check that it is the model's own, or give token ids"
            )
        return ids

    def validate_tokenizer(self) -> None:
        """Refuse texts where there is no tokenizer to read them."""
        if self.tokenizer is None:
            raise HierspecError(
                "the target has no tokenizer beside it that is read: name one (on the "
                "command line --tokenizer FOLDER, in Python the second argument), or give token "
                "ids (--ids)"
            )
