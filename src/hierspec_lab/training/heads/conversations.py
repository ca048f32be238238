"""Conversations that heads learn from, and the positions of their answers among the token ids."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hierspec.utils.prompts import ConversationMessage, apply_chat
from hierspec_lab.training.conversations import Conversation
from hierspec_lab.training.packed import PackedTexts
from hierspec_lab.training.plain_texts import UNKNOWN_DOMAIN


@dataclass(frozen=True, slots=True)
class TokenizedConversation:
    """Token ids of a conversation, and the positions whose next token belongs to an answer.

    The last such position of an answer is the one before its end-of-turn token, also where the
    answer was cut short: the model is to predict what follows there.
    """

    ids: list[int]
    answer_positions: list[int]
    domain: str = UNKNOWN_DOMAIN

    @property
    def prompt(self) -> str:
        """What comes before the first answer, as a text."""
        return str(self.ids[: self.answer_positions[0] + 1])


def packed_conversations(folder: Path) -> list[TokenizedConversation]:
    """Read the answers in a folder of packed texts, each with its prompt."""
    return [
        TokenizedConversation(ids, list(range(text.answer - 1, text.length - 1)), text.domain)
        for text, ids in PackedTexts(folder).read()
    ]


def tokenize_conversation(conversation: Conversation, tokenizer: Any) -> TokenizedConversation:
    """Tokenize a conversation by the model's chat template, up to its last answer.

    Raises:
        HierspecError: the tokenizer has no chat template, or one that refuses the messages.
    """
    messages = conversation.messages
    last = max(i for i, message in enumerate(messages) if message["role"] == "assistant")
    apply_chat(tokenizer, messages[:last])  # to fail with a one-line error, if at all
    ids = _template_ids(tokenizer, messages[: last + 1])
    positions: list[int] = []
    for number, message in enumerate(messages[: last + 1]):
        if message["role"] != "assistant":
            continue
        start = len(apply_chat(tokenizer, messages[:number]))
        end = len(_template_ids(tokenizer, messages[: number + 1]))
        ends = [i for i in range(start, end) if ids[i] == tokenizer.eos_token_id]
        positions += range(start - 1, ends[0] if ends else end - 1)
    return TokenizedConversation(ids, positions)


def _template_ids(tokenizer: Any, messages: list[ConversationMessage]) -> list[int]:
    return tokenizer.apply_chat_template(messages, tokenize=True, return_dict=False)
