"""The plans that online control chooses between, made before the first token.

A text may accept drafts more or less often than estimated, each pair of levels on its own. For
several such shifts of the acceptance, and every set of levels, the best budgets make a candidate.
So while text is generated, pricing the candidates replaces the search.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise, product

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
        budgets: of the levels below the target, smallest first; 0 where one is left out.
        chain: the same plan, for pricing.
    """

    budgets: Budgets
    plan: Verify
    chain: Chain


def candidate_plans(root: Verify, estimates: Estimates, chain: Chain) -> list[CandidatePlan]:
    """Return plain decoding, then every plan of :func:`candidate_budgets` that rules accept.

    Args:
        root: the loaded hierarchy, a plain chain of levels.
        chain: which model of ``estimates`` each level is; its budgets are among the candidates.
    """
    dropped_bonus = tuple(
        model
        for model, node in zip(chain.models, levels_below(root), strict=False)
        if isinstance(node, Verify) and not node.bonus
    )
    candidates = []
    for budgets in candidate_budgets(estimates, chain.models, chain.budgets, dropped_bonus):
        plan = plan_of(root, budgets)
        if _rules_accept(plan):
            places = [place for place, budget in enumerate(budgets) if budget]
            models = (*(chain.models[place] for place in places), chain.models[-1])
            priced = _chain(models, tuple(budgets[place] for place in places), dropped_bonus)
            candidates.append(CandidatePlan(budgets, plan, priced))
    return candidates


def candidate_budgets(
    estimates: Estimates,
    models: Sequence[int],
    chain_budgets: Budgets,
    dropped_bonus: Sequence[int],
) -> list[Budgets]:
    """Return each plan's budgets, 0 where a level is left out; the first is plain decoding.

    Args:
        models: of the levels, smallest first, the target last.
        chain_budgets: budgets to include.
        dropped_bonus: models of the middle levels that hand up no bonus token.
    """
    *drafters, target = models
    distinct: dict[Budgets, None] = {(0,) * len(drafters): None}
    for places in _subsets(len(drafters)):
        used = (*(drafters[place] for place in places), target)
        pairs = list(pairwise(used))
        if not all(estimates.can_draft(i, k) for i, k in pairs):
            continue
        plans = [
            _tune(shift_survival(estimates, shifts), used, dropped_bonus)
            for shifts in _possible_shifts(pairs)
        ]
        if len(places) == 1:
            plans += [(1,), (_TRIAL_TOKENS,)]
        if len(places) == len(drafters):
            plans.append(chain_budgets)
        for budgets in plans:
            budget_at = dict(zip(places, budgets, strict=True))
            distinct[tuple(budget_at.get(place, 0) for place in range(len(drafters)))] = None
    return list(distinct)


def _subsets(count: int) -> Iterator[tuple[int, ...]]:
    """Yield sets of levels by their places from the smallest, 0.

    All sets of up to 4 levels; of more levels, the small sets and nearly full ones.
    """
    for size in range(1, count + 1):
        if count <= 4 or size <= 2 or size >= count - 1:
            yield from combinations(range(count), size)


def _possible_shifts(pairs: list[tuple[int, int]]) -> Iterator[dict[tuple[int, int], float]]:
    """Yield shifts that a text's acceptance may turn out to have, by pair."""
    if len(pairs) <= 2:
        for shifts in product(_SHIFTS, repeat=len(pairs)):
            yield dict(zip(pairs, shifts, strict=True))
        return
    for shift in _SHIFTS:
        yield dict.fromkeys(pairs, shift)
        for pair in pairs:
            yield {pair: shift}


def extend_chain(estimates: Estimates, chain: Chain, model: int) -> Chain | None:
    """Add a model to a chain, at its best budgets; return ``None`` if it cannot be added."""
    models = tuple(sorted((*chain.models, model)))
    if not all(estimates.can_draft(i, k) for i, k in pairwise(models)):
        return None
    return _chain(models, _tune(estimates, models, chain.dropped_bonus), chain.dropped_bonus)


def _tune(estimates: Estimates, models: tuple[int, ...], dropped_bonus: Sequence[int]) -> Budgets:
    """Choose budgets by coordinate descent: good enough, since plans are then compared exactly."""
    grid = [n for n in _BUDGETS if n in estimates.budgets]
    prices = PriceCache(estimates)
    best = tuple(grid[min(1 + i, len(grid) - 1)] for i in range(len(models) - 1))
    best_ms = prices.price([_chain(models, best, dropped_bonus)])[0]
    while True:
        previous, previous_ms = best, best_ms
        for i in range(len(best)):
            trials = [(*best[:i], n, *best[i + 1 :]) for n in grid]
            ms = prices.price([_chain(models, budgets, dropped_bonus) for budgets in trials])
            best, best_ms = trials[int(ms.argmin())], ms.min()
        if best_ms >= previous_ms:
            return previous


def _chain(models: tuple[int, ...], budgets: Budgets, dropped_bonus: Sequence[int]) -> Chain:
    return Chain(
        models, budgets, dropped_bonus=tuple(m for m in models[1:-1] if m in dropped_bonus)
    )


def _rules_accept(plan: Verify) -> bool:
    """Return whether rules may verify what this plan leaves below them.

    Lossy rules that the user chose may.
    """
    try:
        validate(plan, allow_lossy=True)
    except HierspecError:
        return False
    return True
