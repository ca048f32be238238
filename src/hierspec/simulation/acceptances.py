"""What a simulated check keeps: coin flips with given rates, or recorded outcomes.

What simulated calls cost, in ms.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, runtime_checkable

import numpy as np

from hierspec.errors import HierspecError


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
                raise HierspecError(f"no recorded acceptances of model {owner}'s tokens by {model}")
            at = self._at[pair]
            self._at[pair] = (at + 1) % len(self._outcomes[pair])
            if not self._outcomes[pair][at]:
                return i
        return len(owners)


Cost = Callable[[int, int], float]  # (model, tokens scored in the call) → ms


@runtime_checkable
class Prices(Protocol):
    """What calls cost where that depends on more than the model; in ms."""

    def draft(self, model: int, n: int) -> float:
        """``n`` tokens drafted one by one, all together."""
        ...

    def check(self, drafter: int | None, model: int, n: int) -> float:
        """One call on ``n`` tokens that ``drafter`` handed up; ``None``: on none, plain decoding.

        Of tokens of several models the drafter is the largest, as the planner prices it.
        """
        ...


class ByCall:
    """A price per call of each model, or per call and tokens scored in it."""

    def __init__(self, costs: Sequence[float] | Cost) -> None:
        self.cost = costs if callable(costs) else lambda model, _: costs[model]

    def draft(self, model: int, n: int) -> float:
        return n * self.cost(model, 1)

    def check(self, drafter: int | None, model: int, n: int) -> float:
        return self.cost(model, n + 1)
