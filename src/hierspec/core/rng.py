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

    __slots__ = ("_at", "_block", "_generator")

    def __init__(self, seed: int, sequence: int = 0) -> None:
        key = np.array([seed & (2**64 - 1), sequence & (2**64 - 1)], dtype=np.uint64)
        self._generator = np.random.Generator(np.random.Philox(key=key))
        self._block = self._generator.random(_BLOCK)
        self._at = 0

    def take(self, n: int) -> np.ndarray:
        if self._at + n > len(self._block):
            fresh = self._generator.random(max(_BLOCK, n))
            self._block = np.concatenate([self._block[self._at :], fresh])
            self._at = 0
        self._at += n
        return self._block[self._at - n : self._at]
