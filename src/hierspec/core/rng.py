"""Randomness as an argument: counter-based uniforms, drawn in blocks, one stream per sequence.

A stream is keyed by (seed, sequence) and read by a running counter, never by position in the
text: a position may be drafted many times, and reusing its number would correlate the drafts.
So a sequence draws the same numbers whatever shares its batch, and nothing touches a global
generator.

The one exception is deliberate. *Noise* is keyed by position, so that every level that draws a
token there by a race (:func:`hierspec.core.distributions.race`) sees the same numbers: their tokens
mostly agree, and the target's does not depend on what was drafted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

_BLOCK = 1024
_KEPT_POSITIONS = 32  # whose noise is cached: those of a round in progress
_MIN_NOISE = 1e-300  # noise is a divisor, so never 0

Noise = Callable[[int, int], np.ndarray]  # (position, V) → V exponential numbers, float64


class Rng(Protocol):
    """A source of uniforms; that of :mod:`hierspec.exact.splitting` enumerates every outcome."""

    def take(self, n: int) -> np.ndarray:
        """Return the next ``n`` uniforms in [0, 1), float64."""
        ...

    def noise(self, position: int, n: int) -> np.ndarray:
        """Return exponential numbers of mean 1, float64, for token ids 0 … n − 1 at one position.

        A position always has the same ones, whatever the order of calls; a call for fewer returns
        the first ones of a call for more.
        """
        ...


class PhiloxRng:
    """The Philox-4x64 stream of one sequence (Salmon et al., 2011)."""

    __slots__ = ("_block", "_generator", "_key", "_next", "_noises", "_num_drawn")

    def __init__(self, seed: int, sequence: int = 0) -> None:
        self._key = np.array([seed & (2**64 - 1), sequence & (2**64 - 1)], dtype=np.uint64)
        self._noises: dict[int, np.ndarray] = {}
        self._start()

    def _start(self) -> None:
        self._generator = np.random.Generator(np.random.Philox(key=self._key))
        self._block = self._generator.random(_BLOCK)
        self._next, self._num_drawn = 0, _BLOCK

    def take(self, n: int) -> np.ndarray:
        if self._next + n > len(self._block):
            fresh = self._generator.random(max(_BLOCK, n))
            self._num_drawn += len(fresh)
            self._block = np.concatenate([self._block[self._next :], fresh])
            self._next = 0
        self._next += n
        return self._block[self._next - n : self._next]

    def noise(self, position: int, n: int) -> np.ndarray:
        values = self._noises.get(position)
        if values is None or len(values) < n:
            # Every position has its own block of 2**64 numbers, separate from those of `take`.
            counter = np.array([0, position, 1, 0], dtype=np.uint64)
            generator = np.random.Generator(np.random.Philox(counter=counter, key=self._key))
            values = np.maximum(-np.log1p(-generator.random(n)), _MIN_NOISE)
            values.flags.writeable = False
            self._noises.pop(position, None)
            self._noises[position] = values
            if len(self._noises) > _KEPT_POSITIONS:
                del self._noises[next(iter(self._noises))]
        return values[:n]

    @property
    def num_taken(self) -> int:
        """How many uniforms have been taken so far."""
        return self._num_drawn - len(self._block) + self._next

    def rewind(self, num_taken: int) -> None:
        """Rewind to an earlier count: the uniforms taken since are taken again."""
        if num_taken == self.num_taken:
            return
        self._start()
        self.take(num_taken)
