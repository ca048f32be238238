"""The prices of simulated calls, in ms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

Cost = Callable[[int, int], float]  # (model, tokens scored in the call) → ms


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
