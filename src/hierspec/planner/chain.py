"""What the planner chooses between: which models to stack, with which budgets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Order = Literal["chain", "interleaved", "horizontal"]


@dataclass(frozen=True, slots=True, order=True)
class Chain:
    """A hierarchy over numbered models, as the planner prices it.

    Attributes:
        levels: model numbers, smallest first, the target last; the target alone is plain decoding.
        budgets: one per level below the target (``num_speculative_tokens``).
        order: ``"chain"``: each level verifies the one below. The other two are P2's, over
            ``(small, mid, target)`` with budgets ``(n, m)``, verified by the target alone:
            ``"interleaved"`` is (n of small, then 1 of mid) m times, ``"horizontal"`` is m of mid,
            then n of small.
        tail: in a chain, tokens of the smallest model appended to whatever a middle level hands
            up (P1's horizontal heuristic).
        dropped_bonus: middle levels, by model number, that keep no bonus token.
    """

    levels: tuple[int, ...]
    budgets: tuple[int, ...] = ()
    order: Order = "chain"
    tail: int = 0
    dropped_bonus: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.levels or len(self.budgets) != len(self.levels) - 1:
            raise ValueError("a chain has one budget for each level but the target")
        if any(budget < 1 for budget in self.budgets) or self.tail < 0:
            raise ValueError("budgets are at least 1, and a tail at least 0")
        if self.order != "chain" and (len(self.levels) != 3 or self.tail or self.dropped_bonus):
            raise ValueError(f"the {self.order} order takes three models and nothing else")

    @property
    def plain(self) -> bool:
        return len(self.levels) == 1
