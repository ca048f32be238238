"""Predicted prices of plans under what a text shows, kept so that each is computed once.

A price depends on the shifts of the plan's own pairs of levels only, and shifts come in steps
(:class:`hierspec.planner.online.belief.Belief`), so few are ever asked for.
"""

from __future__ import annotations

from collections.abc import Sequence

from hierspec.planner.estimates import Chain, Estimates
from hierspec.planner.latency import latency

from .belief import shifted

_KEPT = 4096  # prices for that many beliefs


class PriceList:
    """Ms a token of every plan; safe to share between threads.

    Args:
        pairs: (drafter, verifier) that shifts are given for, in this order.
        step: log-odds of one step of a shift.

    Attributes:
        pairs_of: per plan, the pairs of its levels, lowest first, as indices of ``pairs``.
    """

    def __init__(
        self,
        estimates: Estimates,
        chains: Sequence[Chain],
        pairs: Sequence[tuple[int, int]],
        step: float,
    ) -> None:
        self.estimates, self.chains, self.pairs, self.step = estimates, chains, pairs, step
        self.pairs_of = tuple(
            tuple(pairs.index(pair) for pair in zip(one.levels, one.levels[1:], strict=False))
            for one in chains
        )
        self._prices: dict[tuple[int, tuple[int, ...]], float] = {}
        self._rows: dict[tuple[int, ...], list[float | None]] = {}  # the same, by all shifts

    def price(self, n: int, shifts: tuple[int, ...]) -> float:
        """Predicted ms a token of plan ``n``.

        Args:
            shifts: of every pair, in steps.
        """
        row = self._rows.get(shifts)
        if row is None:
            if len(self._rows) > _KEPT:
                self._rows.clear()
            row = self._rows[shifts] = [None] * len(self.chains)
        found = row[n]
        if found is None:
            found = row[n] = self._priced(n, shifts)
        return found

    def _priced(self, n: int, shifts: tuple[int, ...]) -> float:
        used = self.pairs_of[n]
        key = (n, tuple(shifts[p] for p in used))
        price = self._prices.get(key)
        if price is None:
            if len(self._prices) > 8 * _KEPT:
                self._prices.clear()  # another thread may do so at any time: nothing is read twice
            tilt = {self.pairs[p]: shifts[p] * self.step for p in used}
            tilted = shifted(self.estimates, tilt)
            price = self._prices[key] = latency(tilted, self.chains[n]).ms_per_token
        return price
