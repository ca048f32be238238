"""The plans that online control chooses between, made before the first token.

A text may accept drafts more or less often than estimated, each pair of levels on its own. For
several such shifts of the acceptance, and every set of levels, the best budgets make a candidate.
So while text is generated, pricing the candidates replaces the search.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product

from hierspec.core.nodes import Verify
from hierspec.engine.control import levels_below, plan_of
from hierspec.errors import HierspecError
from hierspec.planner.estimates import Chain, Estimates
from hierspec.planner.latency import PriceCache
from hierspec.verifiers.soundness import validate

from .acceptance_estimate import shift_survival

_BUDGETS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24)
_SHIFTS = (-2.0, -0.8, 0.0, 1.0)  # of acceptance, in log-odds
_TRIAL_TOKENS = 2

Budgets = tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class CandidatePlan:
    """A plan that control may choose.

    Attributes:
        budgets: of the levels below the target (:attr:`Chain.levels`); 0 where one is left out.
        chain: the same plan, for pricing.
    """

    budgets: Budgets
    plan: Verify
    chain: Chain


def candidate_plans(root: Verify, estimates: Estimates, chain: Chain) -> list[CandidatePlan]:
    """Return plain decoding, then every plan of :func:`candidate_budgets` that rules accept.

    Args:
        root: the loaded hierarchy, as :func:`levels_below` takes it.
        chain: which model of ``estimates`` each level is; its budgets are among the candidates.
    """
    levels = zip(chain.models, levels_below(root), strict=False)
    verifying = [(model, node) for model, node in levels if isinstance(node, Verify)]
    if chain.order == "chain":
        dropped = tuple(model for model, node in verifying if not node.bonus)
        chain = replace(chain, dropped_bonus=dropped)
    candidates = []
    for budgets in candidate_budgets(estimates, chain):
        plan = plan_of(root, budgets)
        if _rules_accept(plan):
            candidates.append(CandidatePlan(budgets, plan, chain.with_budgets(budgets)))
    return candidates


def candidate_budgets(estimates: Estimates, chain: Chain) -> list[Budgets]:
    """Return each plan's budgets, 0 where a level is left out; the first is plain decoding."""
    count = len(chain.levels)
    distinct: dict[Budgets, None] = {(0,) * count: None}
    for places in _subsets(count):
        if chain.tail and places[-1] == count - 1 and count - 2 not in places:
            continue  # the lowest level without it does the same
        ones = tuple(int(place in places) for place in range(count))
        pairs = chain.with_budgets(ones).pairs
        if not all(estimates.can_draft(i, k) for i, k in pairs):
            continue
        plans = [
            _tune(shift_survival(estimates, shifts), chain, places)
            for shifts in _possible_shifts(pairs)
        ]
        if len(places) == 1:
            plans += [ones, tuple(_TRIAL_TOKENS * one for one in ones)]
        if len(places) == count:
            plans.append(tuple(budget for _, budget in chain.levels))
        distinct |= dict.fromkeys(plans)
    return list(distinct)


def _subsets(count: int) -> Iterator[tuple[int, ...]]:
    """Yield sets of levels by their places from the smallest, 0.

    All sets of up to 4 levels; of more levels, the small sets and nearly full ones.
    """
    for size in range(1, count + 1):
        if count <= 4 or size <= 2 or size >= count - 1:
            yield from combinations(range(count), size)


def _possible_shifts(pairs: Sequence[tuple[int, int]]) -> Iterator[dict[tuple[int, int], float]]:
    """Yield shifts that a text's acceptance may turn out to have, by pair."""
    if len(pairs) <= 2:
        for shifts in product(_SHIFTS, repeat=len(pairs)):
            yield dict(zip(pairs, shifts, strict=True))
        return
    for shift in _SHIFTS:
        yield dict.fromkeys(pairs, shift)
        for pair in pairs:
            yield {pair: shift}


def extend_chain(estimates: Estimates, chain: Chain, model: int) -> Iterator[Chain]:
    """Yield a chain with one more model at its place, or behind another one's draft, at the best
    budgets."""
    models = tuple(sorted((*chain.models, model)))
    budgets = (1,) * (len(models) - 1)
    shapes = [Chain(models, budgets, dropped_bonus=chain.dropped_bonus)]
    if len(models) == 3:
        shapes.append(Chain(models, budgets, "horizontal"))
    for shape in shapes:
        if estimates.allows(shape):
            yield shape.with_budgets(_tune(estimates, shape, range(len(budgets))))


def _tune(estimates: Estimates, chain: Chain, places: Sequence[int]) -> Budgets:
    """Choose the budgets of the levels at some places by coordinate descent.

    That is good enough, since plans are then compared exactly.
    """
    grid = [n for n in _BUDGETS if n in estimates.budgets]
    prices = PriceCache(estimates)
    first = {place: grid[min(1 + i, len(grid) - 1)] for i, place in enumerate(places)}
    best = tuple(first.get(place, 0) for place in range(len(chain.levels)))
    best_ms = prices.price([chain.with_budgets(best)])[0]
    while True:
        previous, previous_ms = best, best_ms
        for i in places:
            trials = [(*best[:i], n, *best[i + 1 :]) for n in grid]
            ms = prices.price([chain.with_budgets(budgets) for budgets in trials])
            best, best_ms = trials[int(ms.argmin())], ms.min()
        if best_ms >= previous_ms:
            return previous


def _rules_accept(plan: Verify) -> bool:
    """Return whether rules may verify what this plan leaves below them.

    Lossy rules that the user chose may.
    """
    try:
        validate(plan, allow_lossy=True)
    except HierspecError:
        return False
    return True
