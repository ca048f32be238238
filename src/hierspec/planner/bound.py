"""A lower bound on the latency of all hierarchies of some models (MATH §4), and a chain near it.

κ_k bounds the milliseconds that a token of model k costs as a level that verifies. A round on n
tokens yields f(n) = Σ_{m ≤ n} S_ik(m) tokens in the mean. The n tokens of model i are drafted by
it alone for ``draft_ms[i, n]``, n at most the largest budget, or verified by it for κ_i n at least:

    κ_k = min( (draft_ms[i, n] + verify_ms[i, k, n]) / f(n), (κ_i n + verify_ms[i, k, n]) / f(n) )

over i < k and n ≥ 1. The target's κ, or ``plain_ms`` if that is less, is the bound.

Why it holds for random lengths and overshoot: the rounds of a level are alike and independent, and
their number M is a stopping time, so with N the length from below (Wald) it holds E[M] E[f(N)]
tokens, overshoot included, at a cost of E[M] (E[C_below] + E[verify(N)]). By induction E[C_below]
≥ κ_i E[N], and E[κ_i N + verify(N)] ≥ κ_k E[f(N)] since it holds for every n. The target's own
rounds are one such level. Cutting what is handed up only loses tokens that were paid for, so it is
covered. P1's corollary is too: it charges the same rounds and counts no overshoot. A level that
drops its bonus has a price and an f of its own, f(n) - S_ik(n): where levels may, κ_k is the
minimum over both.

Three cases are not covered and enter as terms of their own: a drafter that stops by itself, whose
length depends on its tokens, is priced exactly under each verifier for each budget; a
tail of t tokens of a smaller model s adds ``draft_ms[s, t]`` and S_ik(n) (f_sk(t) - 1) tokens; P2's
orders are priced one by one.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter

import numpy as np

from .concatenations import concatenations
from .estimates import Chain, Estimates
from .latency import prices


@dataclass(frozen=True, slots=True)
class Bound:
    """A lower bound in milliseconds a token, and the chain that attains its terms.

    The chain's budgets are the bound's lengths: a good plan, not always the best.
    """

    ms: float
    chain: Chain


@dataclass(frozen=True, slots=True)
class _Term:
    """The cheapest way to a verified token: ``length`` at once from model ``below``.

    ``is_single``: the model below drafts by itself, with no level under it.
    """

    ms: float = np.inf
    below: int = -1
    length: int = 0
    is_single: bool = False


_by_ms = attrgetter("ms")


def lower_bound(
    estimates: Estimates,
    *,
    max_models: int | None = None,
    usable: Collection[int] | None = None,
    tail: int = 0,
    orders: bool = False,
    dropped_bonus: bool = True,
) -> Bound:
    """Return the bound over all chains of at most ``max_models`` models, target included.

    Args:
        usable: models that may take part; all by default.
        tail: longest tail that chains may have.
        dropped_bonus: whether middle levels may drop their bonus token.
        orders: whether P2's two orders count as well.
    """
    if estimates.classes:  # a chain's price is the mean of prices that are each bounded
        bound = partial(
            lower_bound,
            max_models=max_models,
            usable=usable,
            tail=tail,
            orders=orders,
            dropped_bonus=dropped_bonus,
        )
        ms = sum(bound(part).ms for part in estimates.classes) / len(estimates.classes)
        return Bound(ms, bound(replace(estimates, classes=())).chain)
    target = estimates.target
    models = sorted({*(range(target) if usable is None else usable), target})
    depth_limit = len(models) if max_models is None else min(max_models, len(models))
    yields = np.cumsum(estimates.survival, axis=2)  # [i, k, n]: f(n)
    for i, joint in estimates.joint_survival.items():
        reached = np.pad(joint.sum(1).cumsum(1), ((0, 0), (0, yields.shape[2])), mode="edge")
        yields[i] = reached[:, : yields.shape[2]]
    # Of a verifier, whether it keeps its bonus; by what it costs then, dropping can pay.
    drops = dropped_bonus and estimates.verify_without_bonus_ms is not None
    ways = {k: (True, False) if drops and k < target else (True,) for k in models}
    single = {
        k: min((_single(estimates, yields, models, k, bonus) for bonus in ways[k]), key=_by_ms)
        for k in models
    }

    # One pass upwards suffices where any number may take part; else one pass a level.
    tables = [{k: _Term() for k in models}]
    if depth_limit > 1:
        tables.append(dict(single))
    for _ in range(depth_limit - 2):
        table = dict(single)
        last = table if max_models is None else tables[-1]
        for k in models:
            for i in models[: models.index(k)]:
                kappa = last[i].ms
                if not estimates.can_draft(i, k) or not np.isfinite(kappa):
                    continue
                terms = [table[k]]
                terms += [_chained(estimates, yields, i, k, kappa, bonus) for bonus in ways[k]]
                for s in models[: models.index(i)] if tail else ():
                    if estimates.can_draft(s, k):
                        terms += [
                            _tailed(estimates, yields, s, i, k, kappa, tail, bonus)
                            for bonus in ways[k]
                        ]
                table[k] = min(terms, key=_by_ms)
        if max_models is None:
            tables = [table]
            break
        tables.append(table)
    ms = min(tables[-1][target].ms, float(estimates.plain_ms))
    if orders and depth_limit > 2:
        ms = min([ms, *(price for price, _ in concatenations(estimates, models))])
    return Bound(ms, _chain(estimates, tables))


def _chained(
    estimates: Estimates, yields: np.ndarray, i: int, k: int, kappa: float, bonus: bool
) -> _Term:
    lengths = np.arange(1, yields.shape[2])
    tokens = yields[i, k, 1:] - (0.0 if bonus else estimates.survival[i, k, 1:])
    ratios = (kappa * lengths + estimates.check_ms(bonus)[i, k, 1:]) / tokens
    best = int(ratios.argmin())
    return _Term(float(ratios[best]), i, best + 1)


def _tailed(
    estimates: Estimates,
    yields: np.ndarray,
    s: int,
    i: int,
    k: int,
    kappa: float,
    longest: int,
    bonus: bool,
) -> _Term:
    """Price n tokens of model i, then 1..``longest`` of model s, verified by model k."""
    last = yields.shape[2] - 1
    n, t = np.arange(1, last + 1)[:, None], np.arange(1, longest + 1)[None]
    drafted, draft_ms, lost = t, estimates.draft_ms[s, t], estimates.survival[s, k, t]
    if estimates.stops_by_itself(s):  # perhaps before the first token
        drafted, draft_ms, lost = 0 * t, estimates.draft_ms[s].min(), 0.0
    call = estimates.check_ms(bonus)[i, k, np.minimum(n + drafted, last)]
    of_tail = yields[s, k, t] - 1.0 - (0.0 if bonus else lost)
    tokens = yields[i, k, 1:, None] + estimates.survival[i, k, 1:, None] * of_tail
    ratios = (kappa * n + draft_ms + call) / tokens
    best = int(ratios.min(1).argmin())
    return _Term(float(ratios.min()), i, best + 1)


def _single(
    estimates: Estimates, yields: np.ndarray, models: list[int], k: int, bonus: bool
) -> _Term:
    """Return the cheapest draft of a single model that model k verifies, priced exactly.

    What a drafter that stops by itself yields without a bonus is taken as what it yields with it.
    """
    best, n = _Term(), np.array(estimates.budgets)
    check_ms = estimates.check_ms(bonus)
    for i in (i for i in models if estimates.can_draft(i, k)):
        if estimates.stops_by_itself(i):
            chains = [Chain((i, k), (budget,)) for budget in estimates.budgets]
            ratios = prices(replace(estimates, verify_ms=check_ms), chains)[0].sum(0)
        else:
            tokens = yields[i, k, n] - (0.0 if bonus else estimates.survival[i, k, n])
            ratios = (estimates.draft_ms[i, n] + check_ms[i, k, n]) / tokens
        index = int(ratios.argmin())
        best = min(best, _Term(float(ratios[index]), i, index + 1, is_single=True), key=_by_ms)
    return best


def _chain(estimates: Estimates, tables: list[dict[int, _Term]]) -> Chain:
    """Follow the smallest terms down from the target."""
    k, depth = estimates.target, len(tables) - 1
    models, budgets = [k], []
    if estimates.plain_ms <= tables[depth][k].ms:
        return Chain((k,))
    while True:
        term = tables[depth][k]
        models.append(term.below)
        budgets.append(min(term.length, estimates.max_budget))
        if term.is_single:
            return Chain(tuple(reversed(models)), tuple(reversed(budgets)))
        k, depth = term.below, max(depth - 1, 0)
