"""Stand-ins for tokenizers."""

from __future__ import annotations

from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast


class Letters:
    """A tokenizer of a letter a token whose template is ``<u:text>`` and ``<a:text>``."""

    chat_template = "yes"
    eos_token_id = ord(">")

    def apply_chat_template(
        self,
        messages: list[dict[str, str]],
        add_generation_prompt: bool = False,
        tokenize: bool = True,
        **_: Any,
    ) -> list[int] | str:
        text = "".join(f"<{one['role'][0]}:{one['content']}>\n" for one in messages)
        text += "<a:" * add_generation_prompt
        return self(text)["input_ids"] if tokenize else text

    def __call__(self, text: str, **_: Any) -> dict[str, list[int]]:
        return {"input_ids": [ord(letter) for letter in text]}


class FirstLetters(Letters):
    """Of every text only the first nine letters, so that none is too long for a model."""

    def __call__(self, text: str, **_: Any) -> dict[str, list[int]]:
        return super().__call__(text[:9])


class RecordingTemplate:
    """A tokenizer whose ids are the messages themselves, to look at."""

    chat_template = "yes"

    def __init__(self):
        self.asked = []

    def apply_chat_template(self, messages, **options):
        self.asked.append([dict(message) for message in messages])
        return [len(self.asked) - 1]


def bytes_tokenizer(shift: int = 0) -> PreTrainedTokenizerFast:
    """Return a tokenizer of a byte a token, ids ``shift`` further on."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    size = len(alphabet)
    raw = Tokenizer(models.BPE({c: (i + shift) % size for i, c in enumerate(alphabet)}, []))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    raw.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=raw)
