"""A trunk over the decoder of an encoder-decoder model; its cache also holds the encoded source.

A decoder's layers attend to two things: the text so far, whose keys and values are cached, rewound
and cut at exits as in any :class:`~hierspec.lm.trunk.trunk.Trunk`, and the encoded source, which no
token of the text changes. So a sequence's cache also holds its source, encoded when its first rows
are asked for, for all new sequences of a call together. A slot whose source changes forgets its
text first, whose keys and values depend on the source.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol
from weakref import WeakValueDictionary

import torch

from hierspec.core.context import Context
from hierspec.errors import HierspecError
from hierspec.lm.backend import Backend
from hierspec.lm.base import Query, Slot
from hierspec.lm.trunk.slots import PreparedQuery, SlotState
from hierspec.lm.trunk.trunk import ExitModel, ScoreHead, Trunk


class SourceCache(Protocol):
    """One sequence's cache: the text's keys and values, and the source they were computed with.

    Attributes:
        source: token ids; ``()`` before there are any.
        encoded: what the layers attend to; ``None`` where the encoder has not read it yet.
    """

    source: tuple[int, ...]
    encoded: Any


class EncoderDecoderBackend(Backend, Protocol):
    """The decoder of a model as a :class:`Backend`, and its encoder.

    ``new_cache`` makes a :class:`SourceCache`; ``copy`` passes on its ``encoded``.
    """

    decoder_start: int

    def encode(self, sources: Sequence[Sequence[int]]) -> Sequence[Any]:
        """Encode sources in one call; return for each what layers attend to, weakly referable."""
        ...


class EncoderDecoderTrunk(Trunk):
    """Segments of one decoder, and the encoder, which reads a source once for all who need it:
    several drafts of one text, or several texts of one prompt."""

    backend: EncoderDecoderBackend

    def __init__(self, backend: EncoderDecoderBackend, exits: Sequence[int] = ()) -> None:
        super().__init__(backend, exits)
        self.encoder_calls = 0
        self._encoded: WeakValueDictionary[tuple[int, ...], Any] = WeakValueDictionary()

    def exit_model(self, index: int, head: ScoreHead | None = None) -> EncoderDecoderModel:
        return EncoderDecoderModel(self, index, head)

    def prepare(self, query: Query) -> PreparedQuery:
        self._set_source(query.slot, query.context)
        return super().prepare(query)

    def _prepare_slot(self, slot: Slot, context: Context, end: int, depth: int = 0) -> SlotState:
        self._set_source(slot, context)
        return super()._prepare_slot(slot, context, end, depth)

    def _set_source(self, slot: Slot, context: Context) -> None:
        """Set the context's source; where the slot has another one, forget its text."""
        if not context.source:
            raise HierspecError(
                f"{self.backend.name} is an encoder-decoder model and was given no source to read: "
                "its hierarchy needs an encoder-decoder target"
            )
        cache: SourceCache = self.make_room(slot, 1).cache
        if cache.source is not context.source and cache.source != context.source:
            self.rewind(slot, 0)
            cache.encoded, cache.source = None, context.source

    def run_segments(
        self, prepared: list[PreparedQuery], index: int, score: bool = False
    ) -> torch.Tensor:
        caches: list[SourceCache] = [item.state.cache for item in prepared]
        if new := [cache for cache in caches if cache.encoded is None]:
            sources = list(dict.fromkeys(cache.source for cache in new))
            encoded = {source: self._encoded.get(source) for source in sources}
            if missing := [source for source in sources if encoded[source] is None]:
                encoded.update(zip(missing, self.backend.encode(missing), strict=True))
                self.encoder_calls += 1
            for cache in new:
                cache.encoded = self._encoded[cache.source] = encoded[cache.source]
        return super().run_segments(prepared, index, score)


class EncoderDecoderModel(ExitModel):
    """The language model of a decoder up to one exit (:class:`hierspec.lm.encoder_decoder`)."""

    trunk: EncoderDecoderTrunk

    @property
    def decoder_start(self) -> int:
        return self.trunk.backend.decoder_start
