"""The same search under a memory budget: a Pareto front of cost and memory in every state.

Weights are counted by owner and once (early exits share a trunk), so the memory that models above
will add depends on what is there already. A label therefore keeps its bytes and those of its owners
that may be asked for again. Label a makes label b needless when it costs no more and needs no more
memory whatever is added: bytes(a) + bytes(owners of b that a lacks) ≤ bytes(b). That is exact; it
is fast for the few dozen candidates among which memory is scarce, not for all problems.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .chain import Chain
from .dynamic import Prices, Ranking

_DRAFTING = (-1, 0, 0)


@dataclass(frozen=True, slots=True, eq=False)
class _Labels:
    """Ways to reach one state, [n] each.

    Attributes:
        size: bytes, the target's included; ``owners``: number of the set of owners that a larger
            model may share; ``models``: how many models, 0 where that is unlimited.
        parent: [n, 3] (model, ℓ, its label), or −1 first for drafting one by one.
    """

    cost: np.ndarray
    size: np.ndarray
    owners: np.ndarray
    models: np.ndarray
    parent: np.ndarray

    def __getitem__(self, at: np.ndarray) -> _Labels:
        return _Labels(
            self.cost[at], self.size[at], self.owners[at], self.models[at], self.parent[at]
        )


def within(prices: Prices, memory: int, max_models: int | None) -> Ranking:
    """The best chain that ends in each state and needs at most ``memory`` bytes."""
    owners = _Owners(prices)
    target = prices.estimates.target
    below = None if max_models is None else max_models - 1
    states: list[list[_Labels]] = []  # [model][t]
    for k in range(target):
        states.append(_fronts(prices, owners, states, k, memory, below))
    found: Ranking = []
    for i, row in enumerate(states):
        for t, labels in enumerate(row):
            if len(labels.cost) and np.isfinite(prices.call[i, target, t]):
                best = int(labels.cost.argmin())
                cost = float(prices.call[i, target, t] + labels.cost[best])
                chain = _chain(states, i, t, best, target)
                found.append((cost / float(prices.tokens[i, t]), chain))
    return found


def _fronts(
    prices: Prices,
    owners: _Owners,
    states: list[list[_Labels]],
    k: int,
    memory: int,
    most: int | None,
) -> list[_Labels]:
    """Of model k, a front for each budget t."""
    pool, through = _handed_up(prices, owners, states, k)
    fits = pool.size <= memory
    if most is not None:
        fits &= pool.models <= most
    pool, through = pool[fits], through[fits]
    own, extra = owners.join(owners.none, k)
    alone = owners.target_size + extra
    fronts = []
    for t in range(prices.draft.shape[1]):
        base = _Labels(
            np.array([prices.draft[k, t]]),
            np.array([alone]),
            np.array([own]),
            np.array([0 if most is None else 1]),
            np.array([_DRAFTING]),
        )[np.array([alone <= memory])]
        cost = pool.cost * prices.rounds[through[:, 0], k, through[:, 1], t]
        priced = _Labels(cost, pool.size, pool.owners, pool.models, through)
        if most is None:
            priced = _Labels(cost, pool.size, pool.owners, np.zeros_like(pool.models), through)
        fronts.append(_undominated(_joined([base, priced]), owners))
    return fronts


def _handed_up(
    prices: Prices, owners: _Owners, states: list[list[_Labels]], k: int
) -> tuple[_Labels, np.ndarray]:
    """All labels of smaller models that may draft for k, with one call of k and k's memory."""
    none = np.zeros(0, dtype=int)
    parts = [_Labels(np.zeros(0), none, none, none, np.zeros((0, 3), dtype=int))]
    for i in range(k):
        for length in range(1, prices.draft.shape[1]):
            labels, call = states[i][length], prices.call[i, k, length]
            count = len(labels.cost)
            if not count or not np.isfinite(call):
                continue
            sets, inverse = np.unique(labels.owners, return_inverse=True)
            new = np.array([owners.join(int(number), k) for number in sets])[inverse]
            parent = np.column_stack((np.full(count, i), np.full(count, length), np.arange(count)))
            parts.append(
                _Labels(
                    labels.cost + call,
                    labels.size + new[:, 1],
                    new[:, 0],
                    labels.models + 1,
                    parent,
                )
            )
    pool = _joined(parts)
    return pool, pool.parent


def _undominated(labels: _Labels, owners: _Owners) -> _Labels:
    labels = labels[np.isfinite(labels.cost)]
    labels = labels[np.lexsort((labels.models, labels.size, labels.cost))]
    # Within equal owners and depth only size is left to compare: a running minimum does.
    keep = np.zeros(len(labels.cost), dtype=bool)
    kinds = np.column_stack((labels.owners, labels.models))
    for kind in np.unique(kinds, axis=0):
        at = np.flatnonzero((kinds == kind).all(1))
        size = labels.size[at]
        least = np.minimum.accumulate(size)
        keep[at] = np.append(True, size[1:] < least[:-1])
    labels = labels[keep]
    # Across them, each against every cheaper one.
    missing = owners.missing()[np.ix_(labels.owners, labels.owners)]  # [a, b]
    needless = (labels.size[:, None] + missing <= labels.size) & (
        labels.models[:, None] <= labels.models
    )
    keep = np.logical_not(np.triu(needless, 1).any(axis=0, keepdims=True))[0]
    return labels[keep]


class _Owners:
    """Sets of owners that several models share, by number, and their bytes."""

    def __init__(self, prices: Prices) -> None:
        estimates = prices.estimates
        self._of = estimates.owners
        self._bytes = estimates.memory
        self._target = estimates.owners[estimates.target]
        self.target_size = self._bytes.get(self._target, 0)
        self._sets: list[frozenset[str]] = [frozenset()]
        self._numbers = {self._sets[0]: 0}
        self._missing = np.zeros((0, 0), dtype=int)
        self.none = 0

    def join(self, number: int, k: int) -> tuple[int, int]:
        """(set with model k's owner, less those no larger model has; bytes that k adds)."""
        held, owner = self._sets[number], self._of[k]
        known = owner in held or owner == self._target
        # The target's owner is there from the start, so it needs no place in a set.
        above = set(self._of[k + 1 :]) - {self._target}
        joined = (held | {owner}) & above
        if joined not in self._numbers:
            self._numbers[joined] = len(self._sets)
            self._sets.append(joined)
        return self._numbers[joined], 0 if known else self._bytes.get(owner, 0)

    def missing(self) -> np.ndarray:
        """[a, b]: bytes of the owners in set b that set a lacks."""
        if len(self._missing) < len(self._sets):
            self._missing = np.array(
                [
                    [sum(self._bytes.get(owner, 0) for owner in b - a) for b in self._sets]
                    for a in self._sets
                ]
            )
        return self._missing


def _joined(parts: list[_Labels]) -> _Labels:
    return _Labels(
        np.concatenate([part.cost for part in parts]),
        np.concatenate([part.size for part in parts]),
        np.concatenate([part.owners for part in parts]),
        np.concatenate([part.models for part in parts]),
        np.concatenate([part.parent for part in parts]),
    )


def _chain(states: list[list[_Labels]], i: int, t: int, label: int, target: int) -> Chain:
    levels, budgets = [target], []
    while i >= 0:
        levels.append(i)
        budgets.append(t)
        i, t, label = states[i][t].parent[label].tolist()
    return Chain(tuple(levels[::-1]), tuple(budgets[::-1]))
