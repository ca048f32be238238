"""Contexts: the tokens that a row of scores is conditioned on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Context:
    """The tokens a row is conditioned on, without copying the long part.

    ``committed`` is the sequence's own list (prompt and emitted tokens). It only ever grows, and
    is shared by reference. ``pending`` are tokens of a round in progress, which may be thrown
    away again. ``source`` is what an encoder reads before there is any text: the prompt of an
    encoder-decoder model, whose committed tokens begin with its decoder's start token.
    """

    committed: Sequence[int]
    pending: tuple[int, ...] = ()
    source: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.committed) + len(self.pending)

    def __iter__(self) -> Iterator[int]:
        yield from self.committed
        yield from self.pending

    def tokens(self, start: int = 0) -> list[int]:
        base = len(self.committed)
        if start >= base:
            return list(self.pending[start - base :])
        return [*self.committed[start:], *self.pending]

    def first(self, length: int) -> Context:
        base = len(self.committed)
        if length >= base:
            return Context(self.committed, self.pending[: length - base], self.source)
        return Context(self.committed[:length], (), self.source)

    def with_tokens(self, tokens: Sequence[int]) -> Context:
        return Context(self.committed, (*self.pending, *tokens), self.source)

    def with_source(self) -> Context:
        """Return everything known as one text, source first, for drafters that copy from it."""
        if not self.source:
            return self
        return Context([*self.source, *self.committed], self.pending)
