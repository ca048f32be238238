"""What a simulated check keeps: coin flips with given rates, or recorded outcomes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np


class Acceptances(Protocol):
    """How many draft tokens ``model`` keeps; ``owners`` are the models whose laws they are from."""

    def kept(self, model: int, owners: Sequence[int]) -> int: ...


class CoinFlips:
    """Independent acceptances: token i is kept with probability ``rates[owner][model]``.

    Args:
        rates: [K, K] acceptance rates α of the row's tokens by the column's model.
    """

    def __init__(self, rates: Sequence[Sequence[float]], seed: int = 0) -> None:
        self.rates = rates
        self._random = np.random.Generator(np.random.Philox(seed))
        self._block: list[float] = []

    def kept(self, model: int, owners: Sequence[int]) -> int:
        for i, owner in enumerate(owners):
            if not self._block:
                self._block = self._random.random(4096).tolist()
            if not self._block.pop() < self.rates[owner][model]:
                return i
        return len(owners)


class Recorded:
    """Outcomes of single tests, replayed in order and over again, per (owner, model)."""

    def __init__(self, outcomes: Mapping[tuple[int, int], Sequence[bool]]) -> None:
        self._outcomes = {pair: list(seen) for pair, seen in outcomes.items()}
        self._at = dict.fromkeys(self._outcomes, 0)

    def kept(self, model: int, owners: Sequence[int]) -> int:
        for i, owner in enumerate(owners):
            pair = (owner, model)
            if not self._outcomes.get(pair):
                raise ValueError(f"no recorded acceptances of model {owner}'s tokens by {model}")
            at = self._at[pair]
            self._at[pair] = (at + 1) % len(self._outcomes[pair])
            if not self._outcomes[pair][at]:
                return i
        return len(owners)
