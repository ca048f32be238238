"""Encoder-decoder models: how their texts begin, which is all that the engine must know of them.

The prompt is the *source*: an encoder reads it once, before there is any text. The text is the
decoder's, and begins with its start token. Contexts carry both (:mod:`hierspec.core.context`), so
levels, rules and caches are those of any other model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from hierspec.errors import HierspecError

from .base import LanguageModel

USE_GENERATE = "use hierspec generate, or Hierarchy(...).generate in Python"


@runtime_checkable
class EncoderDecoder(LanguageModel, Protocol):
    """A language model that scores a text given a source.

    Attributes:
        decoder_start: the token id that every text begins with; not part of the output.
    """

    decoder_start: int


class SplitPrompt(NamedTuple):
    """A prompt as a model takes it: the tokens of the text before any output, and the source."""

    tokens: list[int]
    source: tuple[int, ...] = ()


def split_prompt(model: LanguageModel, prompt: Sequence[int]) -> SplitPrompt:
    """Split a prompt into text and source: decoders continue it, encoders read it as the source."""
    # Called for every sequence: isinstance would look up each member of EncoderDecoder.
    start: int | None = getattr(model, "decoder_start", None)
    return SplitPrompt(list(prompt)) if start is None else SplitPrompt([start], tuple(prompt))


def check_decoder_only(model: Any, subject: str, instead: str = USE_GENERATE) -> None:
    """Refuse an encoder-decoder model where only models that continue their prompt are supported.

    Args:
        model: a language model, or the backend of one.
        subject: what does not take one, in the message.
        instead: what to do.

    Raises:
        HierspecError: the model is an encoder-decoder model.
    """
    if hasattr(model, "decoder_start"):
        raise HierspecError(
            f"{model.name} is an encoder-decoder model, which {subject} does not take: {instead}"
        )
