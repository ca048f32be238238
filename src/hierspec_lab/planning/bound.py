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

import numpy as np

from hierspec.planner.cheapest import Term, by_ms, chained, follow, single, yields
from hierspec.planner.estimates import Chain, Estimates

from .concatenations import concatenations


@dataclass(frozen=True, slots=True)
class Bound:
    """A lower bound in milliseconds a token, and the chain that attains its terms.

    The chain's budgets are the bound's lengths: a good plan, not always the best.
    """

    ms: float
    chain: Chain


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
    # Of a verifier, whether it keeps its bonus; by what it costs then, dropping can pay.
    drops = dropped_bonus and estimates.verify_without_bonus_ms is not None
    ways = {k: (True, False) if drops and k < target else (True,) for k in models}
    alone = {
        k: min((single(estimates, models, k, bonus) for bonus in ways[k]), key=by_ms)
        for k in models
    }

    # One pass upwards suffices where any number may take part; else one pass a level.
    tables = [{k: Term() for k in models}]
    if depth_limit > 1:
        tables.append(dict(alone))
    for _ in range(depth_limit - 2):
        table = dict(alone)
        last = table if max_models is None else tables[-1]
        for k in models:
            for i in models[: models.index(k)]:
                kappa = last[i].ms
                if not estimates.can_draft(i, k) or not np.isfinite(kappa):
                    continue
                terms = [table[k]]
                terms += [chained(estimates, i, k, kappa, bonus) for bonus in ways[k]]
                for s in models[: models.index(i)] if tail else ():
                    if estimates.can_draft(s, k):
                        terms += [
                            _tailed(estimates, s, i, k, kappa, tail, bonus) for bonus in ways[k]
                        ]
                table[k] = min(terms, key=by_ms)
        if max_models is None:
            tables = [table]
            break
        tables.append(table)
    ms = min(tables[-1][target].ms, float(estimates.plain_ms))
    if orders and depth_limit > 2:
        ms = min([ms, *(price for price, _ in concatenations(estimates, models))])
    is_plain = estimates.plain_ms <= tables[-1][target].ms
    return Bound(ms, Chain((target,)) if is_plain else follow(estimates, tables))


def _tailed(
    estimates: Estimates,
    s: int,
    i: int,
    k: int,
    kappa: float,
    longest: int,
    bonus: bool,
) -> Term:
    """Price n tokens of model i, then 1..``longest`` of model s, verified by model k."""
    last = estimates.longest
    n, t = np.arange(1, last + 1)[:, None], np.arange(1, longest + 1)[None]
    drafted, draft_ms, lost = t, estimates.draft_ms[s, t], estimates.survival[s, k, t]
    if estimates.stops_by_itself(s):  # perhaps before the first token
        drafted, draft_ms, lost = 0 * t, estimates.draft_ms[s].min(), 0.0
    call = estimates.check_ms(bonus)[i, k, np.minimum(n + drafted, last)]
    of_tail = yields(estimates, s, k)[t] - 1.0 - (0.0 if bonus else lost)
    tokens = yields(estimates, i, k)[1:, None] + estimates.survival[i, k, 1:, None] * of_tail
    ratios = (kappa * n + draft_ms + call) / tokens
    best = int(ratios.min(1).argmin())
    return Term(float(ratios.min()), i, best + 1)
