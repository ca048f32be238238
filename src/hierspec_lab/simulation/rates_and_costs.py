"""What a simulation is given in place of models: which tokens checks keep, and what calls cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

import numpy as np

Cost = Callable[[int, int], float]  # (model, tokens scored in the call) → ms


class Acceptances(Protocol):
    """Decides how many draft tokens ``model`` accepts; ``owners`` drafted them, one a token."""

    def kept(self, model: int, owners: Sequence[int]) -> int: ...


class CoinFlips:
    """Independent acceptances: a token is accepted with probability ``rates[owner][model]``.

    Args:
        rates: [K, K] acceptance rates α of the row's tokens by the column's model.
    """

    def __init__(self, rates: Sequence[Sequence[float]], seed: int = 0) -> None:
        self.rates = rates
        self._rng = np.random.Generator(np.random.Philox(seed))
        self._block: list[float] = []

    def kept(self, model: int, owners: Sequence[int]) -> int:
        """Test one token after another, up to the first that fails."""
        for position, owner in enumerate(owners):
            if not self.passes(owner, model):
                return position
        return len(owners)

    def passes(self, owner: int, model: int) -> bool:
        if not self._block:
            self._block = self._rng.random(4096).tolist()
        return self._block.pop() < self.rates[owner][model]


@runtime_checkable
class CallPrices(Protocol):
    """Prices calls where that depends on more than the model; in ms."""

    def draft(self, model: int, n: int) -> float:
        """Price all of ``n`` tokens that are drafted one by one."""
        ...

    def check(self, drafter: int | None, model: int, n: int) -> float:
        """Price one call on ``n`` tokens of ``drafter`` (``None``: plain decoding).

        ``drafter`` is the largest model that drafted some of them, as in the planner's prices.
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
