"""A trunk over the decoder of an encoder-decoder model; the encoder's part lies beside its cache.

A decoder's layers look at two things: the text so far, whose keys and values are cached, rewound
and cut at exits as in any :class:`~hierspec.lm.trunk.trunk.Trunk`, and the encoded source, which no
token of the text changes. So a sequence's cache also holds the source that it belongs to, encoded
when its first rows are asked for, all new sequences of a call together. A slot that is asked about
another source forgets its text first: nothing of it holds under another source.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from hierspec.core.context import Context
from hierspec.errors import HierspecError
from hierspec.lm.backend import Backend
from hierspec.lm.base import Slot

from .trunk import ExitModel, ScoreHead, SlotState, Trunk, Work


class SourceCache(Protocol):
    """One sequence's cache: the text's keys and values, and a source that they were made under.

    Attributes:
        source: token ids; ``None`` before there is any.
        encoded: whether the encoder has read it.
    """

    source: Sequence[int] | None

    @property
    def encoded(self) -> bool: ...

    def begin(self, source: Sequence[int]) -> None:
        """Take another source, not encoded yet."""
        ...


@runtime_checkable
class EncoderDecoderBackend(Backend, Protocol):
    """The decoder of a model as a :class:`Backend`, and its encoder.

    ``new_cache`` makes a :class:`SourceCache`; ``grow`` and ``copy`` keep what is encoded.
    """

    decoder_start: int

    def encode(self, caches: Sequence[SourceCache]) -> None:
        """Read the sources of these caches, all in one call; a source may be shared by several."""
        ...


class EncoderDecoderTrunk(Trunk):
    """Segments of one decoder, and the encoder, which runs once for a source."""

    backend: EncoderDecoderBackend

    def exit_model(self, index: int, head: ScoreHead | None) -> EncoderDecoderModel:
        return EncoderDecoderModel(self, index, head)

    def _room(self, slot: Slot, context: Context, end: int) -> SlotState:
        if not context.source:
            raise HierspecError(
                f"{self.backend.name} is an encoder-decoder model and was given no source to read: "
                "its hierarchy needs an encoder-decoder target"
            )
        state = self.make_room(slot, end)
        cache: SourceCache = state.cache
        if cache.source is not context.source and cache.source != context.source:
            self.rewind(slot, 0)
            cache.begin(context.source)
        return super()._room(slot, context, end)

    def _complete(self, work: list[Work], index: int) -> None:
        new = [w.state.cache for w in work if not w.state.cache.encoded]
        if new:
            self.backend.encode(new)
        super()._complete(work, index)


class EncoderDecoderModel(ExitModel):
    """The language model of a decoder up to one exit (:class:`hierspec.lm.encoder_decoder`)."""

    trunk: EncoderDecoderTrunk

    @property
    def decoder_start(self) -> int:
        return self.trunk.backend.decoder_start
