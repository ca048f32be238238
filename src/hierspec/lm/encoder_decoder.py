"""Encoder-decoder models: how their texts begin, which is all that the engine must know of them.

The prompt is the *source*: an encoder reads it once, before there is any text. The text is the
decoder's, and begins with its start token. Contexts carry both (:mod:`hierspec.core.context`), so
levels, rules and caches are those of any other model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from hierspec.errors import HierspecError

from .backend import Backend
from .base import LanguageModel

USE_GENERATE = "use hierspec generate, or Hierarchy(...).generate in Python"


@runtime_checkable
class EncoderDecoder(Protocol):
    """A language model, or the backend of one, that scores a text given a source.

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
    if isinstance(model, EncoderDecoder):
        return SplitPrompt([model.decoder_start], tuple(prompt))
    return SplitPrompt(list(prompt))


def validate_decoder_only(
    model: LanguageModel | Backend, subject: str, instead: str = USE_GENERATE
) -> None:
    """Refuse an encoder-decoder model where only models that continue their prompt are supported.

    Args:
        subject: what does not take one, in the message.
        instead: what to do.
    """
    if isinstance(model, EncoderDecoder):
        raise HierspecError(
            f"{model.name} is an encoder-decoder model, which {subject} does not take: {instead}"
        )
