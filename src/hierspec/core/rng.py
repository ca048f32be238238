"""Randomness as an argument: counter-based uniforms, dealt in blocks, one stream per sequence.

A stream is keyed by (seed, sequence) and read by a running counter, never by position in the
text: a position may be drafted many times, and reusing its number would correlate the drafts.
So a sequence draws the same numbers whoever shares its batch, and nothing touches a global
generator.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

_BLOCK = 1024


class Rng(Protocol):
    """Where uniforms come from; :mod:`hierspec.exact.splitting` answers with every possibility."""

    def take(self, n: int) -> np.ndarray:
        """The next ``n`` uniforms in [0, 1), float64."""
        ...


class PhiloxRng:
    """The Philox-4x64 stream of one sequence (Salmon et al., 2011)."""

    __slots__ = ("_at", "_block", "_generator", "_key", "_made")

    def __init__(self, seed: int, sequence: int = 0) -> None:
        self._key = np.array([seed & (2**64 - 1), sequence & (2**64 - 1)], dtype=np.uint64)
        self._start()

    def _start(self) -> None:
        self._generator = np.random.Generator(np.random.Philox(key=self._key))
        self._block = self._generator.random(_BLOCK)
        self._at, self._made = 0, _BLOCK

    def take(self, n: int) -> np.ndarray:
        if self._at + n > len(self._block):
            fresh = self._generator.random(max(_BLOCK, n))
            self._made += len(fresh)
            self._block = np.concatenate([self._block[self._at :], fresh])
            self._at = 0
        self._at += n
        return self._block[self._at - n : self._at]

    @property
    def place(self) -> int:
        """How many uniforms were taken so far."""
        return self._made - len(self._block) + self._at

    def go_to(self, place: int) -> None:
        """Take again from an earlier place: what was taken since counts for nothing."""
        if place == self.place:
            return
        self._start()
        self.take(place)
