"""A trunk over the decoder of an encoder-decoder model; the encoder's part lies beside its cache.

A decoder's layers look at two things: the text so far, whose keys and values are cached, rewound
and cut at exits as in any :class:`~hierspec.lm.trunk.trunk.Trunk`, and the encoded source, which no
token of the text changes. So a sequence's cache also holds the source that it belongs to, encoded
when its first rows are asked for, all new sequences of a call together. A slot that is asked about
another source forgets its text first: nothing of it holds under another source.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable
from weakref import WeakValueDictionary

from hierspec.core.context import Context
from hierspec.errors import HierspecError
from hierspec.lm.backend import Backend
from hierspec.lm.base import Query, Slot

from .slot_state import SlotState, Work
from .trunk import ExitModel, ScoreHead, Trunk


class SourceCache(Protocol):
    """One sequence's cache: the text's keys and values, and the source they were made under.

    Attributes:
        source: token ids; ``()`` before there are any.
        encoded: what the layers see of it; ``None`` where the encoder has not read it yet.
    """

    source: tuple[int, ...]
    encoded: Any


@runtime_checkable
class EncoderDecoderBackend(Backend, Protocol):
    """The decoder of a model as a :class:`Backend`, and its encoder.

    ``new_cache`` makes a :class:`SourceCache`; ``grow`` and ``copy`` pass on what is encoded.
    """

    decoder_start: int

    def encode(self, sources: Sequence[Sequence[int]]) -> Sequence[Any]:
        """Read sources, all in one call: for each what the layers see of it, weakly referable."""
        ...


class EncoderDecoderTrunk(Trunk):
    """Segments of one decoder, and the encoder, which reads a source once for all who need it:
    several drafts of one text, or several texts of one prompt."""

    backend: EncoderDecoderBackend

    def __init__(
        self, backend: EncoderDecoderBackend, exits: Sequence[int] = (), *, chunk: int = 512
    ) -> None:
        super().__init__(backend, exits, chunk=chunk)
        self.encoder_calls = 0
        self._read: WeakValueDictionary[tuple[int, ...], Any] = WeakValueDictionary()

    def exit_model(self, index: int, head: ScoreHead | None) -> EncoderDecoderModel:
        return EncoderDecoderModel(self, index, head)

    def prepare(self, query: Query) -> Work:
        self._turn_to_source(query.slot, query.context)
        return super().prepare(query)

    def _room(self, slot: Slot, context: Context, end: int) -> SlotState:
        self._turn_to_source(slot, context)
        return super()._room(slot, context, end)

    def _turn_to_source(self, slot: Slot, context: Context) -> None:
        """Forget a text under another source than the context's."""
        if not context.source:
            raise HierspecError(
                f"{self.backend.name} is an encoder-decoder model and was given no source to read: "
                "its hierarchy needs an encoder-decoder target"
            )
        cache: SourceCache = self.make_room(slot, 1).cache
        if cache.source is not context.source and cache.source != context.source:
            self.rewind(slot, 0)
            cache.encoded, cache.source = None, context.source

    def _complete(self, work: list[Work], index: int) -> None:
        new: list[SourceCache] = [w.state.cache for w in work if w.state.cache.encoded is None]
        if new:
            sources = list(dict.fromkeys(cache.source for cache in new))
            found = {source: self._read.get(source) for source in sources}
            if missing := [source for source in sources if found[source] is None]:
                found.update(zip(missing, self.backend.encode(missing), strict=True))
                self.encoder_calls += 1
            for cache in new:
                cache.encoded = self._read[cache.source] = found[cache.source]
        super()._complete(work, index)


class EncoderDecoderModel(ExitModel):
    """The language model of a decoder up to one exit (:class:`hierspec.lm.encoder_decoder`)."""

    trunk: EncoderDecoderTrunk

    @property
    def decoder_start(self) -> int:
        return self.trunk.backend.decoder_start
