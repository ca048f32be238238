"""The chain whose levels each get their tokens in the cheapest way: where a search may start.

κ_k is the least milliseconds for which model k gets a token as a level that verifies. A round on n
tokens of model i yields f(n) = Σ_{m ≤ n} S_ik(m) tokens in the mean. Model i drafts them alone for
``draft_ms[i, n]``, n at most the largest budget, or verifies them for κ_i n at least:

    κ_k = min( (draft_ms[i, n] + verify_ms[i, k, n]) / f(n), (κ_i n + verify_ms[i, k, n]) / f(n) )

over i < k and n ≥ 1. κ also bounds what chains cost from below [MATH §4].
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from operator import attrgetter

import numpy as np

from .estimates import Chain, Estimates
from .latency import prices

by_ms = attrgetter("ms")


@dataclass(frozen=True, slots=True)
class Term:
    """A way to a verified token, at its price: ``length`` tokens at once from model ``below``.

    ``is_single``: the model below drafts by itself, with no level under it.
    """

    ms: float = np.inf
    below: int = -1
    length: int = 0
    is_single: bool = False


def cheapest_chain(estimates: Estimates) -> Chain:
    """Return the chain that κ of the target is made of; plain decoding if that is cheaper."""
    estimates = replace(estimates, classes=())
    target, terms = estimates.target, dict[int, Term]()
    for k in range(target + 1):
        ways = [single(estimates, range(k), k)]
        for i in range(k):
            if estimates.can_draft(i, k) and np.isfinite(terms[i].ms):
                ways.append(chained(estimates, i, k, terms[i].ms))
        terms[k] = min(ways, key=by_ms)
    if estimates.plain_ms <= terms[target].ms:
        return Chain((target,))
    return follow(estimates, [terms])


def follow(estimates: Estimates, tables: list[dict[int, Term]]) -> Chain:
    """Follow terms down from the target: each from the table before, the first from itself."""
    k, depth = estimates.target, len(tables) - 1
    models, budgets = [k], []
    while True:
        term = tables[depth][k]
        models.append(term.below)
        budgets.append(min(term.length, estimates.max_budget))
        if term.is_single:
            return Chain(tuple(reversed(models)), tuple(reversed(budgets)))
        k, depth = term.below, max(depth - 1, 0)


def chained(estimates: Estimates, i: int, k: int, kappa: float, bonus: bool = True) -> Term:
    """Return the cheapest number of tokens that model k verifies of a level of model i."""
    ratios = kappa * np.arange(1, estimates.longest + 1) + estimates.check_ms(bonus)[i, k, 1:]
    ratios = ratios / yields(estimates, i, k, bonus)[1:]
    best = int(ratios.argmin())
    return Term(float(ratios[best]), i, best + 1)


def single(estimates: Estimates, models: Iterable[int], k: int, bonus: bool = True) -> Term:
    """Return the cheapest draft of a single model that model k verifies, priced exactly.

    What a drafter that stops by itself yields without a bonus is taken as what it yields with it.
    """
    best, n = Term(), np.array(estimates.budgets)
    check_ms = estimates.check_ms(bonus)
    for i in (i for i in models if estimates.can_draft(i, k)):
        if estimates.stops_by_itself(i):
            chains = [Chain((i, k), (budget,)) for budget in estimates.budgets]
            ratios = prices(replace(estimates, verify_ms=check_ms), chains)[0].sum(0)
        else:
            ratios = estimates.draft_ms[i, n] + check_ms[i, k, n]
            ratios = ratios / yields(estimates, i, k, bonus)[n]
        index = int(ratios.argmin())
        best = min(best, Term(float(ratios[index]), i, index + 1, is_single=True), key=by_ms)
    return best


def yields(estimates: Estimates, i: int, k: int, bonus: bool = True) -> np.ndarray:
    """Return tokens that model k keeps in a round on n of model i, [L+1]; f(n) with a bonus."""
    survival = estimates.survival[i, k]
    kept = survival.cumsum()
    if (joint := estimates.joint_survival.get(i)) is not None:
        kept = np.pad(joint[k].sum(0).cumsum(), (0, len(kept)), mode="edge")[: len(kept)]
    return kept - (0.0 if bonus else survival)
