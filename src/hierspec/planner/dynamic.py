"""The best hierarchy by P1's formula, by backward dynamic programming (MATH §4).

P1 reduces the choice of models and budgets to a generalized shortest path in a graph of states
(model i, t tokens to hold) [P1 §3.3]. Its only cycles are the loops at the ends, so that the
cheapest way to hold t tokens,

    V_i(t) = min( t tokens of i drafted one by one,
                  min over k < i, ℓ of γ(α_ki, ℓ, t) · (c_i + V_k(ℓ)) ),

is had from the smaller models first, and the answer is the minimum of c_K and of
(c_K + V_i(t)) / E[tokens | i, t]: O(K²T²) instead of a linear program. Unlike P1's graph this one
also has ℓ > t. By the formula that never pays while prices grow with length; measured ones may not.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .chain import Chain
from .estimates import Estimates
from .rounds import rounds_from_survival

Ranking = list[tuple[float, Chain]]


@dataclass(frozen=True, slots=True, eq=False)
class Prices:
    """Costs and multipliers of the graph's edges; T̄ = ``estimates.max_budget``.

    A model that cannot draft for another has infinite ``call`` and ``rounds`` there, and so has a
    draft of no tokens (index 0 of ℓ).

    Attributes:
        draft: [K+1, T̄+1] ms; ``[i, t]``: t tokens drafted one by one.
        call: [K+1, K+1, T̄+1] ms; ``[i, k, ℓ]``: one call of k on ℓ tokens handed up by i.
        rounds: [K+1, K+1, T̄+1, T̄+1]; ``[i, k, ℓ, t]``: γ, rounds of ℓ tokens of i until k holds t;
            infinite for the target, which holds none.
        tokens: [K+1, T̄+1]; ``[i, ℓ]``: expected tokens of one call of the target on ℓ tokens of i.
        plain: ms a token of plain decoding.
    """

    estimates: Estimates
    draft: np.ndarray
    call: np.ndarray
    rounds: np.ndarray
    tokens: np.ndarray
    plain: float


def prices(estimates: Estimates) -> Prices:
    """Price every edge of P1's graph.

    Raises:
        ValueError: survival or costs are known for shorter drafts than the largest budget.
    """
    target, top = estimates.target, estimates.max_budget
    count = target + 1
    if top < 1:
        raise ValueError(f"the largest budget is at least 1, not {top}")
    if top >= estimates.survival.shape[-1]:
        raise ValueError(
            f"drafts were measured up to {estimates.survival.shape[-1] - 1} tokens: ask for "
            f"budgets up to that instead of {top}"
        )
    survival = estimates.survival[..., : top + 1]
    call = estimates.verify_ms[..., : top + 1]
    known = ~np.isnan(survival) & ~np.isnan(call)
    known &= (np.arange(count)[:, None] < np.arange(count))[:, :, None]
    known[:, :, 0] = False
    call = np.where(known, call, np.inf)
    draft = estimates.draft_ms[:, : top + 1]
    # Stored as [t, ℓ, k, i]: the search reads, for one k, whole rows over the models below it.
    gamma = np.full((top + 1, top + 1, count, count), np.inf)
    below, above = np.nonzero(known[:, :, 1])
    inner = above < target
    below, above = below[inner], above[inner]
    if len(below):
        solved = np.moveaxis(rounds_from_survival(survival[below, above], top), 0, -1)  # [ℓ, t, P]
        solved = solved[1:].swapaxes(0, 1)
        gamma[:, 1:, above, below] = np.where(np.isnan(solved), np.inf, solved)
    return Prices(
        estimates,
        np.where(np.isnan(draft), np.inf, draft),
        call,
        gamma.transpose(3, 2, 1, 0),
        np.where(known[:, target], np.cumsum(survival[:, target], axis=-1), 0.0),
        estimates.plain_ms,
    )


def shortest(prices: Prices, max_models: int | None = None, memory: int | None = None) -> Ranking:
    """The best chain that ends in each state (model below the target, its budget), best first.

    Plain decoding stands among them with its own price.

    Args:
        max_models: most models of a chain, the target included; ``None``: no limit.
        memory: most bytes of weights of a chain (:meth:`Estimates.bytes`).

    Returns:
        (ms a token by P1's formula, chain), ascending; ties go to fewer models.

    Raises:
        ValueError: not even the target may be used.
    """
    estimates = prices.estimates
    target = estimates.target
    if max_models is not None and max_models < 1:
        raise ValueError("max_models counts the target as well: it is at least 1")
    if memory is not None and estimates.bytes([target]) > memory:
        raise ValueError(
            f"the target alone needs {estimates.bytes([target])} bytes: a memory budget of {memory}"
            " leaves nothing to choose from"
        )
    found: Ranking = [(prices.plain, Chain((target,)))]
    if max_models != 1 and target:
        if memory is None or estimates.bytes(range(target + 1)) <= memory:
            found += _unlimited(prices, max_models)
        else:
            from .fronts import within

            found += within(prices, memory, max_models)
    return sorted(found, key=lambda item: (item[0], len(item[1].levels)))


@dataclass(frozen=True, slots=True, eq=False)
class _Table:
    """V of one depth, [K, T̄+1], and where it comes from: model · (T̄+1) + ℓ, −1 for drafting."""

    cost: np.ndarray
    parent: np.ndarray


def _unlimited(prices: Prices, max_models: int | None) -> Ranking:
    tables = _tables(prices, max_models)
    target, last = prices.estimates.target, tables[-1]
    # Where a model cannot draft for the target the call is infinite, and the tokens are 0.
    value = (prices.call[:target, target] + last.cost) / np.maximum(prices.tokens[:target], 1.0)
    ends = np.argwhere(np.isfinite(value))
    parents = [table.parent.tolist() for table in tables]
    size = last.cost.shape[1]
    return [(float(value[i, t]), _chain(parents, size, i, t, target)) for i, t in ends.tolist()]


def _tables(prices: Prices, max_models: int | None) -> list[_Table]:
    """One table where depth is free; else table n is over at most n + 1 models below the target."""
    target = prices.estimates.target
    drafting = _Table(prices.draft[:target].copy(), np.full(prices.draft[:target].shape, -1))
    if max_models is None or max_models > target:
        for k in range(1, target):
            _relax(prices, k, drafting.cost, drafting)  # reads finished rows, writes row k
        return [drafting]
    tables = [drafting]
    for _ in range(max_models - 2):
        new = _Table(prices.draft[:target].copy(), np.full(prices.draft[:target].shape, -1))
        for k in range(1, target):
            _relax(prices, k, tables[-1].cost, new)
        tables.append(new)
    return tables


def _relax(prices: Prices, k: int, below: np.ndarray, into: _Table) -> None:
    """Let model k be held up by each smaller model, with V of those in ``below``."""
    size = below.shape[1]
    gamma = prices.rounds[:k, k].transpose(2, 1, 0).reshape(size, -1)  # [t, ℓ·k]
    through = gamma * (prices.call[:k, k] + below[:k]).T.reshape(-1)
    best = through.argmin(1)
    cost = through[np.arange(size), best]
    better = cost < into.cost[k]
    into.cost[k, better] = cost[better]
    length, model = np.divmod(best[better], k)
    into.parent[k, better] = model * size + length


def _chain(parents: list[list[list[int]]], size: int, i: int, t: int, target: int) -> Chain:
    levels, budgets, depth = [target], [], len(parents) - 1
    while True:
        levels.append(i)
        budgets.append(t)
        parent = parents[depth][i][t]
        if parent < 0:
            return Chain(tuple(levels[::-1]), tuple(budgets[::-1]))
        i, t = divmod(parent, size)
        depth = max(depth - 1, 0)  # a single table leads to itself
