"""Stand-ins for a stream of random numbers."""

from __future__ import annotations

import numpy as np


class FixedUniforms:
    """Uniform numbers that are given, then 0.5."""

    def __init__(self, *values: float) -> None:
        self.values = list(values)

    def take(self, n: int) -> np.ndarray:
        out, self.values = self.values[:n], self.values[n:]
        return np.array(out + [0.5] * (n - len(out)))


class NoUniforms:
    """Uniform numbers that must not be taken."""

    def take(self, n):
        raise AssertionError("greedy decoding takes no random numbers")
