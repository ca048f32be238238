"""The plans that online control chooses between: few, and made before the first token.

Each is the best of its levels for some acceptance that a text may show: as estimated, lower,
higher, pair by pair. So a handful of prices decides online what a search decides at leisure.

The plans that a loaded hierarchy offers to online control: the menu, as nodes and as chains.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise, product

from hierspec.core.nodes import Verify
from hierspec.engine.control import levels_below, plan_of
from hierspec.planner.estimates import Chain, Estimates
from hierspec.planner.latency import latency
from hierspec.verifiers.soundness import check

from .belief import shifted

_BUDGETS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24)
_SHIFTS = (-2.0, -0.8, 0.0, 1.0)  # of acceptance, in log-odds
_TRIAL = 2  # tokens of the drafts that test the water


def menu(
    estimates: Estimates, models: Sequence[int], given: Sequence[int], dropped: frozenset[int]
) -> list[tuple[int, ...]]:
    """Budgets of every plan, 0 where a level is left out; the first is plain decoding.

    Args:
        models: of the levels, smallest first, the target last.
        given: budgets to have among them.
        dropped: middle models that keep no bonus token.
    """
    *drafters, target = models
    found: dict[tuple[int, ...], None] = {(0,) * len(drafters): None}
    for used in _subsets(len(drafters)):
        levels = (*(drafters[i] for i in used), target)
        pairs = list(pairwise(levels))
        if not all(estimates.can_draft(i, k) for i, k in pairs):
            continue
        bonus = tuple(m for m in levels[1:-1] if m in dropped)
        plans = [_best(shifted(estimates, tilt), levels, bonus) for tilt in _moods(pairs)]
        if len(used) == 1:
            plans += [(1,), (_TRIAL,)]
        if len(used) == len(drafters):
            plans.append(tuple(given))
        for budgets in plans:
            full = [0] * len(drafters)
            for i, budget in zip(used, budgets, strict=True):
                full[i] = budget
            found[tuple(full)] = None
    return list(found)


def _subsets(count: int) -> Iterator[tuple[int, ...]]:
    """Levels to use: all sets of a few; of many levels, the small sets and the nearly full."""
    for size in range(1, count + 1):
        if count <= 4 or size <= 2 or size >= count - 1:
            yield from combinations(range(count), size)


def _moods(pairs: list[tuple[int, int]]) -> Iterator[dict[tuple[int, int], float]]:
    """What acceptance may turn out to be."""
    if len(pairs) <= 2:
        for shifts in product(_SHIFTS, repeat=len(pairs)):
            yield dict(zip(pairs, shifts, strict=True))
        return
    for shift in _SHIFTS:
        yield dict.fromkeys(pairs, shift)
        for pair in pairs:
            yield {pair: shift}


def _best(
    estimates: Estimates, levels: tuple[int, ...], dropped: tuple[int, ...]
) -> tuple[int, ...]:
    """Budgets by coordinate descent: near enough, since what follows compares plans exactly."""
    most = min(estimates.max_budget, estimates.survival.shape[2] - 1)
    grid = [n for n in _BUDGETS if n <= most]
    prices: dict[tuple[int, ...], float] = {}

    def price(budgets: tuple[int, ...]) -> float:
        if budgets not in prices:
            chain = Chain(levels, budgets, dropped_bonus=dropped)
            prices[budgets] = latency(estimates, chain).ms_per_token
        return prices[budgets]

    best = tuple(grid[min(1 + i, len(grid) - 1)] for i in range(len(levels) - 1))
    while True:
        before = best
        for i in range(len(best)):
            best = min(((*best[:i], n, *best[i + 1 :]) for n in grid), key=price)
        if price(best) >= price(before):
            return before


Budgets = tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Offer:
    """A plan.

    Attributes:
        budgets: of the levels below the target, smallest first; 0 where one is left out.
        plan: what runs.
        chain: what is priced.
    """

    budgets: Budgets
    plan: Verify
    chain: Chain


def offers(root: Verify, estimates: Estimates, chain: Chain) -> list[Offer]:
    """Plain decoding first, then every plan of :func:`hierspec.planner.online.candidates.menu`
    that is sound.

    Args:
        root: the loaded hierarchy, a plain chain of levels.
        chain: which model of ``estimates`` each level is; its budgets are among those offered.
    """
    nodes = levels_below(root)
    dropped = frozenset(
        model
        for model, node in zip(chain.levels, nodes, strict=False)
        if isinstance(node, Verify) and not node.bonus
    )
    found = {b: plan_of(root, b) for b in menu(estimates, chain.levels, chain.budgets, dropped)}
    return [
        Offer(budgets, plan, _chain(chain.levels, budgets, dropped))
        for budgets, plan in found.items()
        if _stands(plan)
    ]


def _chain(models: Sequence[int], budgets: Budgets, dropped: frozenset[int]) -> Chain:
    """The levels that have a budget, and the target."""
    used = [(model, n) for model, n in zip(models, budgets, strict=False) if n]
    drafters = tuple(model for model, _ in used)
    return Chain(
        (*drafters, models[-1]),
        tuple(n for _, n in used),
        dropped_bonus=tuple(m for m in drafters[1:] if m in dropped),
    )


def _stands(plan: Verify) -> bool:
    """Whether the rules are sound where leaving levels out has put them."""
    try:
        check(plan, allow_lossy=True)
    except ValueError:
        return False
    return True
