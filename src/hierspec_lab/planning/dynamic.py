"""The best hierarchy by P1's formula, by backward dynamic programming (MATH §4).

P1 reduces the choice of models and budgets to a generalized shortest path in a graph of states
(model i, t tokens to hold) [P1 §3.3]. Its only cycles are the loops at the ends, so that the
cheapest way to hold t tokens,

    V_i(t) = min( t tokens of i drafted one by one,
                  min over k < i, ℓ of γ(α_ki, ℓ, t) · (c_i + V_k(ℓ)) ),

is computed from the smaller models up, and the answer is the minimum of c_K and of
(c_K + V_i(t)) / E[tokens | i, t]: O(K²T²) instead of a linear program. Unlike P1's graph this one
also has ℓ > t. By the formula that never pays while prices grow with length; measured ones may not.

Under a memory budget a state has a Pareto front of cost and memory instead of one cost. Weights are
counted by owner and once (early exits share a trunk), so the memory that models above will add
depends on what is loaded already: a label keeps its bytes and those of its owners that larger
models may share. Label a makes label b needless when it costs no more and needs no more memory
whatever is added: bytes(a) + bytes(owners of b that a lacks) ≤ bytes(b). That is exact; it is fast
for the few dozen candidates among which memory is scarce, not for all problems.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from hierspec.errors import HierspecError
from hierspec.planner.estimates import Chain, Estimates

from .corollary import rounds_from_survival

Ranking = list[tuple[float, Chain]]


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """Costs and multipliers of the edges; T̄ = ``estimates.max_budget``.

    A model that cannot draft for another has infinite ``call`` and ``rounds`` there, and so has a
    draft of no tokens (index 0 of ℓ).

    Attributes:
        draft: [K+1, T̄+1] ms; ``[i, t]``: t tokens drafted one by one.
        call: [K+1, K+1, T̄+1] ms; ``[i, k, ℓ]``: one call of k on ℓ tokens handed up by i.
        rounds: [K+1, K+1, T̄+1, T̄+1]; ``[i, k, ℓ, t]``: γ, rounds of ℓ tokens of i until k holds
            t; infinite for the target, which holds none.
        tokens: [K+1, T̄+1]; ``[i, ℓ]``: expected tokens of one call of the target on ℓ tokens of i.
        plain: ms a token of plain decoding.
    """

    estimates: Estimates
    draft: np.ndarray
    call: np.ndarray
    rounds: np.ndarray
    tokens: np.ndarray
    plain: float


def build_graph(estimates: Estimates) -> Graph:
    """Price every edge of P1's graph.

    Raises:
        HierspecError: survival or costs are known for shorter drafts than the largest budget.
    """
    target, top = estimates.target, estimates.max_budget
    count = target + 1
    if top < 1:
        raise HierspecError(f"the largest budget is at least 1, not {top}")
    if top > estimates.longest:
        raise HierspecError(
            f"drafts were measured up to {estimates.longest} tokens: ask for budgets up to that "
            f"instead of {top}"
        )
    survival = estimates.survival[..., : top + 1]
    call = estimates.verify_ms[..., : top + 1]
    can_draft = ~np.isnan(survival) & ~np.isnan(call)
    can_draft &= (np.arange(count)[:, None] < np.arange(count))[:, :, None]
    can_draft[:, :, 0] = False
    call = np.where(can_draft, call, np.inf)
    draft = estimates.draft_ms[:, : top + 1]
    # Stored as [t, ℓ, k, i]: the search reads, for one k, whole rows over the models below it.
    gamma = np.full((top + 1, top + 1, count, count), np.inf)
    below, above = np.nonzero(can_draft[:, :, 1])
    inner = above < target
    below, above = below[inner], above[inner]
    if len(below):
        solved = np.moveaxis(rounds_from_survival(survival[below, above], top), 0, -1)  # [ℓ, t, P]
        solved = solved[1:].swapaxes(0, 1)
        gamma[:, 1:, above, below] = np.where(np.isnan(solved), np.inf, solved)
    return Graph(
        estimates,
        np.where(np.isnan(draft), np.inf, draft),
        call,
        gamma.transpose(3, 2, 1, 0),
        np.where(can_draft[:, target], np.cumsum(survival[:, target], axis=-1), 0.0),
        estimates.plain_ms,
    )


def rank_chains(graph: Graph, max_models: int | None = None, memory: int | None = None) -> Ranking:
    """Return the best chain that ends in each state (model below the target, budget), best first.

    Plain decoding is among them.

    Args:
        max_models: most models of a chain, the target included; ``None``: no limit.
        memory: most bytes of weights of a chain (:meth:`Estimates.bytes`).

    Returns:
        (ms a token by P1's formula, chain), ascending; ties go to fewer models.

    Raises:
        HierspecError: not even the target may be used.
    """
    estimates = graph.estimates
    target = estimates.target
    validate_limits(estimates, max_models, memory)
    ranking: Ranking = [(graph.plain, Chain((target,)))]
    if max_models != 1 and target:
        if memory is None or estimates.bytes(range(target + 1)) <= memory:
            ranking += _rank_without_limit(graph, max_models)
        else:
            ranking += _rank_within_memory(graph, memory, max_models)
    return sorted(ranking, key=lambda item: (item[0], len(item[1].models)))


def validate_limits(
    estimates: Estimates, max_models: int | None, memory: int | None, top: int = 1
) -> None:
    """Refuse limits that make no sense, or leave not even the target."""
    if top < 1:
        raise HierspecError("top must be at least 1 (the best plan)")
    if max_models is not None and max_models < 1:
        raise HierspecError("max_models counts the target as well, so it must be at least 1")
    if memory is None:
        return
    if not estimates.owners:
        raise HierspecError("a memory budget needs the sizes of the models: add memory_bytes")
    if (needed := estimates.bytes([estimates.target])) > memory:
        raise HierspecError(
            f"the target alone needs {needed} bytes: a memory budget of {memory} leaves nothing to "
            "choose from"
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Table:
    """V of one depth, [K, T̄+1], and its best predecessor: model · (T̄+1) + ℓ, −1 for drafting."""

    cost: np.ndarray
    parent: np.ndarray


def _rank_without_limit(graph: Graph, max_models: int | None) -> Ranking:
    tables = _tables(graph, max_models)
    target, last = graph.estimates.target, tables[-1]
    # Where a model cannot draft for the target the call is infinite, and the tokens are 0.
    value = (graph.call[:target, target] + last.cost) / np.maximum(graph.tokens[:target], 1.0)
    ends = np.argwhere(np.isfinite(value))
    parents = [table.parent.tolist() for table in tables]
    size = last.cost.shape[1]
    return [(float(value[i, t]), _chain(parents, size, i, t, target)) for i, t in ends.tolist()]


def _tables(graph: Graph, max_models: int | None) -> list[_Table]:
    """Return one table if depth is free, else table n for at most n + 1 models below the target."""
    target = graph.estimates.target
    draft = graph.draft[:target]
    tables = [_Table(draft.copy(), np.full(draft.shape, -1))]
    if max_models is None or max_models > target:
        for k in range(1, target):
            _relax(graph, k, tables[0].cost, tables[0])  # reads finished rows, writes row k
        return tables
    for _ in range(max_models - 2):
        table = _Table(draft.copy(), np.full(draft.shape, -1))
        for k in range(1, target):
            _relax(graph, k, tables[-1].cost, table)
        tables.append(table)
    return tables


def _relax(graph: Graph, k: int, below: np.ndarray, table: _Table) -> None:
    """Update row k of ``table`` by letting each smaller model draft for k, with V in ``below``."""
    size = below.shape[1]
    gamma = graph.rounds[:k, k].transpose(2, 1, 0).reshape(size, -1)  # [t, ℓ·k]
    costs = gamma * (graph.call[:k, k] + below[:k]).T.reshape(-1)
    best = costs.argmin(1)
    best_cost = costs[np.arange(size), best]
    better = best_cost < table.cost[k]
    table.cost[k, better] = best_cost[better]
    length, model = np.divmod(best[better], k)
    table.parent[k, better] = model * size + length


def _chain(parents: list[list[list[int]]], size: int, i: int, t: int, target: int) -> Chain:
    models, budgets, depth = [target], [], len(parents) - 1
    while True:
        models.append(i)
        budgets.append(t)
        parent = parents[depth][i][t]
        if parent < 0:
            return Chain(tuple(models[::-1]), tuple(budgets[::-1]))
        i, t = divmod(parent, size)
        depth = max(depth - 1, 0)  # a single table leads to itself


_LABEL = np.dtype(
    [
        ("cost", "f8"),
        ("size", "i8"),  # bytes, the target's included
        ("owners", "i8"),  # number of the set of owners that a larger model may share
        ("models", "i8"),  # below the target; 0 where their number is unlimited
        ("below", "i8"),  # its predecessor: model (-1: drafted one by one), ℓ, and its label
        ("length", "i8"),
        ("label", "i8"),
    ]
)


def _rank_within_memory(graph: Graph, memory: int, max_models: int | None) -> Ranking:
    """Return the best chain that ends in each state and needs at most ``memory`` bytes."""
    owners, target = _Owners(graph.estimates), graph.estimates.target
    states: list[list[np.ndarray]] = []  # [model][t]: labels
    for k in range(target):
        states.append(_fronts(graph, owners, states, k, memory, max_models))
    ranking: Ranking = []
    for i, row in enumerate(states):
        for t, labels in enumerate(row):
            if len(labels) and np.isfinite(graph.call[i, target, t]):
                best = int(labels["cost"].argmin())
                cost = float(graph.call[i, target, t] + labels["cost"][best])
                chain = _chain_of_label(states, i, t, best, target)
                ranking.append((cost / float(graph.tokens[i, t]), chain))
    return ranking


def _fronts(
    graph: Graph,
    owners: _Owners,
    states: list[list[np.ndarray]],
    k: int,
    memory: int,
    max_models: int | None,
) -> list[np.ndarray]:
    owner_set, size = owners.join(0, k)
    counted = int(max_models is not None)
    drafted = np.array([(0.0, owners.target_size + size, owner_set, counted, -1, 0, 0)], _LABEL)
    drafted = drafted[drafted["size"] <= memory]
    pool = np.concatenate([drafted[:0], *_handed_up(graph, owners, states, k, counted)])
    pool = pool[(pool["size"] <= memory) & (pool["models"] < (max_models or np.inf))]
    fronts = []
    for t in range(graph.draft.shape[1]):
        drafted["cost"] = graph.draft[k, t]
        verified = pool.copy()
        verified["cost"] *= graph.rounds[pool["below"], k, pool["length"], t]
        fronts.append(_undominated(np.concatenate([drafted, verified]), owners))
    return fronts


def _handed_up(
    graph: Graph, owners: _Owners, states: list[list[np.ndarray]], k: int, counted: int
) -> Iterator[np.ndarray]:
    """Yield labels of smaller models that can draft for k, plus one call of k and k's memory."""
    for i in range(k):
        for length in range(1, graph.draft.shape[1]):
            labels, call = states[i][length].copy(), graph.call[i, k, length]
            if not len(labels) or not np.isfinite(call):
                continue
            sets, inverse = np.unique(labels["owners"], return_inverse=True)
            joined = np.array([owners.join(int(number), k) for number in sets])[inverse]
            labels["cost"] += call
            labels["owners"] = joined[:, 0]
            labels["size"] += joined[:, 1]
            labels["models"] += counted
            labels["below"], labels["length"], labels["label"] = i, length, np.arange(len(labels))
            yield labels


def _undominated(labels: np.ndarray, owners: _Owners) -> np.ndarray:
    labels = labels[np.isfinite(labels["cost"])]
    labels = labels[np.lexsort((labels["models"], labels["size"], labels["cost"]))]
    # Within equal owners and depth only size is left to compare: a running minimum does.
    keep = np.zeros(len(labels), dtype=bool)
    kinds = np.column_stack((labels["owners"], labels["models"]))
    for kind in np.unique(kinds, axis=0):
        indices = np.flatnonzero((kinds == kind).all(1))
        size = labels["size"][indices]
        smallest = np.minimum.accumulate(size)
        keep[indices] = np.append(True, size[1:] < smallest[:-1])
    labels = labels[keep]
    # Across them, each against every cheaper one.
    size, models = labels["size"], labels["models"]
    missing = owners.missing()[np.ix_(labels["owners"], labels["owners"])]  # [a, b]
    needless = (size[:, None] + missing <= size) & (models[:, None] <= models)
    return labels[~np.triu(needless, 1).any(axis=0)]


class _Owners:
    """Sets of owners that several models share, by number (0: the empty one), and their bytes."""

    def __init__(self, estimates: Estimates) -> None:
        self._owners = estimates.owners
        self._bytes = estimates.memory
        self._target = estimates.owners[estimates.target]
        self.target_size = self._bytes.get(self._target, 0)
        self._sets: list[frozenset[str]] = [frozenset()]
        self._numbers = {self._sets[0]: 0}
        self._missing = np.zeros((0, 0), dtype=int)

    def join(self, number: int, k: int) -> tuple[int, int]:
        """Return (set with model k's owner, less those no larger model has; bytes that k adds)."""
        owners, owner = self._sets[number], self._owners[k]
        is_counted = owner in owners or owner == self._target
        # The target's owner is always loaded, so it needs no place in a set.
        above = set(self._owners[k + 1 :]) - {self._target}
        joined = (owners | {owner}) & above
        if joined not in self._numbers:
            self._numbers[joined] = len(self._sets)
            self._sets.append(joined)
        return self._numbers[joined], 0 if is_counted else self._bytes.get(owner, 0)

    def missing(self) -> np.ndarray:
        """Return [a, b]: bytes of the owners in set b that set a lacks."""
        if len(self._missing) < len(self._sets):
            self._missing = np.array(
                [
                    [sum(self._bytes.get(owner, 0) for owner in b - a) for b in self._sets]
                    for a in self._sets
                ]
            )
        return self._missing


def _chain_of_label(
    states: list[list[np.ndarray]], i: int, t: int, label: int, target: int
) -> Chain:
    models, budgets = [target], []
    while i >= 0:
        models.append(i)
        budgets.append(t)
        i, t, label = (int(states[i][t][key][label]) for key in ("below", "length", "label"))
    return Chain(tuple(models[::-1]), tuple(budgets[::-1]))
