"""Encoder-decoder models: what the engine must know of them, which is how their texts begin.

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
        decoder_start: the token id that every text begins with; it is no output.
    """

    decoder_start: int


class Opening(NamedTuple):
    """How a sequence begins: the tokens of its text before any output, and its source."""

    tokens: list[int]
    source: tuple[int, ...] = ()


def opening(model: LanguageModel, prompt: Sequence[int]) -> Opening:
    """How a sequence for this prompt begins: decoders continue it, encoder-decoders read it."""
    # Every sequence asks: isinstance would look up each member of EncoderDecoder.
    start: int | None = getattr(model, "decoder_start", None)
    return Opening(list(prompt)) if start is None else Opening([start], tuple(prompt))


def check_decoder_only(model: Any, what: str, instead: str = USE_GENERATE) -> None:
    """Refuse an encoder-decoder model where only a text that continues its prompt is understood.

    Args:
        model: a language model, or the backend of one.
        what: cannot take one, as the subject of a sentence.
        instead: what to do.

    Raises:
        HierspecError: it is one.
    """
    if hasattr(model, "decoder_start"):
        raise HierspecError(
            f"{model.name} is an encoder-decoder model, which {what} does not take: {instead}"
        )
