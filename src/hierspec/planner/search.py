"""The search for the hierarchy that serves a token fastest, plain decoding included.

A local search follows the best of some starts, changing budgets, then levels, as long as that
pays: plain decoding, the chain whose levels each are the cheapest, the best single drafters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations

from .cheapest import cheapest_chain
from .estimates import Chain, Estimates, Order
from .latency import Latency, PriceCache, latency
from .plan import Plan, PricedChain

_STARTS = 12  # of each kind; the local search follows the best few
_INCUMBENTS = 3  # starts that are followed to the end
_TRIALS = 6  # sets of levels whose budgets are adapted before a change of levels is judged
_STEPS = (-2, -1, 1, 2)
_ROUNDING = 1e-12  # relative; a change must beat it
_TOP = 5  # hierarchies reported: the best, and runners-up of other levels


@dataclass(frozen=True, slots=True)
class Variations:
    """Variations of a plain chain that the search may try; by default none.

    Attributes:
        tail: most tokens of the smallest model that a middle level may append to what it hands up
            (P1's horizontal heuristic).
        dropped_bonus: whether middle levels may drop their bonus token.
        horizontal: whether a model's draft may be continued by a smaller one's, both verified by
            the target (P2's horizontal order): rows that a look-up adds cost next to nothing.
    """

    tail: int = 0
    dropped_bonus: bool = False
    horizontal: bool = False


NO_VARIATIONS = Variations()
ALL_VARIATIONS = Variations(tail=4, dropped_bonus=True, horizontal=True)


def plan(estimates: Estimates, *, variations: Variations = NO_VARIATIONS) -> Plan:
    """Search for the fastest hierarchy, plain decoding included."""
    space = Space(estimates, variations)
    return plan_from(estimates, rank(PriceCache(estimates), space, [cheapest_chain(estimates)]))


def plan_from(
    estimates: Estimates,
    ranking: Sequence[Chain],
    top: int = _TOP,
    price: Callable[[Estimates, Chain], Latency] = latency,
) -> Plan:
    """Return the plan of a ranking of chains, best first."""
    choices = [
        PricedChain(chain, price(estimates, chain)) for chain in distinct_levels(ranking, top)
    ]
    best, *runners_up = sorted(choices, key=lambda choice: (choice.ms, len(choice.chain.models)))
    stacked = next((chain for chain in ranking if len(chain.models) > 2), None)
    if len(best.chain.models) > 2 or stacked is None:
        return Plan(estimates, best, tuple(runners_up))
    return Plan(estimates, best, tuple(runners_up), PricedChain(stacked, price(estimates, stacked)))


@dataclass(frozen=True)
class Space:
    """The chains that may be chosen."""

    estimates: Estimates
    variations: Variations = NO_VARIATIONS

    @cached_property
    def usable(self) -> tuple[int, ...]:
        """The drafters."""
        return tuple(range(self.estimates.target))

    @cached_property
    def budgets(self) -> range:
        return self.estimates.budgets

    @cached_property
    def trial_budgets(self) -> tuple[int, ...]:
        """A few budgets to try a new level with, denser where small."""
        return tuple(b for b in (1, 2, 3, 4, 6, 8, 11, 15, 21, 30) if b in self.budgets)

    def contains(self, chain: Chain) -> bool:
        """Return whether a chain's levels and budgets are allowed."""
        return all(budget in self.budgets for budget in chain.budgets) and self.estimates.allows(
            chain
        )


def search(prices: PriceCache, space: Space, starts: Iterable[Chain]) -> None:
    """Follow the best starts by small changes; all priced chains stay in ``prices.ms_by_chain``."""
    starts = [start for start in dict.fromkeys(starts) if space.contains(start)]
    followed: set[Chain] = set()
    for chain in _best_chains(prices, polish(prices, space, starts), _INCUMBENTS):
        while chain not in followed:
            followed.add(chain)
            changed = _best_chains(prices, list(change_levels(chain, space)), _TRIALS)
            best = _best_chains(prices, polish(prices, space, changed), 1)
            ms = prices.ms_by_chain
            if best and _is_less(ms[best[0]], ms[chain]):
                chain = best[0]


def polish(prices: PriceCache, space: Space, chains: Sequence[Chain]) -> list[Chain]:
    """Adapt each chain's budgets (tail, bonuses, order) until no small change helps."""
    settled: list[Chain] = []
    ms = prices.ms_by_chain
    while chains:
        changes = [list(neighbours(chain, space)) for chain in chains]
        prices.price([*chains, *(changed for near in changes for changed in near)])
        improved = []
        for chain, near in zip(chains, changes, strict=True):
            best = min(near, key=ms.__getitem__, default=chain)
            if _is_less(ms[best], ms[chain]):
                improved.append(best)
            else:
                settled.append(chain)
        chains = list(dict.fromkeys(improved))
    return settled


def _is_less(ms: float, than: float) -> bool:
    """Return whether a price is lower by more than rounding, whatever its sign."""
    return ms < than and than - ms > _ROUNDING * abs(ms)


def neighbours(chain: Chain, space: Space) -> Iterator[Chain]:
    """Yield neighbours: one other budget, two changed a little, another tail, bonus or order."""
    budgets = chain.budgets
    for i in range(len(budgets)):
        for budget in space.budgets:
            if budget != budgets[i]:
                yield replace(chain, budgets=(*budgets[:i], budget, *budgets[i + 1 :]))
    for i, j in combinations(range(len(budgets)), 2):
        for a in _STEPS:
            for b in _STEPS:
                changed = list(budgets)
                changed[i] += a
                changed[j] += b
                if changed[i] in space.budgets and changed[j] in space.budgets:
                    yield replace(chain, budgets=tuple(changed))
    middle = chain.models[1:-1] if chain.order == "chain" else ()
    if middle:
        for tail in range(space.variations.tail + 1):
            if tail != chain.tail and space.estimates.can_draft(chain.models[0], chain.models[-1]):
                yield replace(chain, tail=tail)
    if space.variations.dropped_bonus:
        for model in middle:
            flipped = tuple(sorted({*chain.dropped_bonus} ^ {model}))
            yield replace(chain, dropped_bonus=flipped)
    if space.variations.horizontal and len(budgets) == 2:
        order: Order = "horizontal" if chain.order == "chain" else "chain"
        yield Chain(chain.models, budgets, order)


def change_levels(chain: Chain, space: Space) -> Iterator[Chain]:
    """Yield chains with one level added, removed or replaced."""
    models, budgets = chain.models, chain.budgets
    changed = [
        Chain(models[:i] + models[i + 1 :], budgets[:i] + budgets[i + 1 :])
        for i in range(len(budgets))
    ]
    for new in space.usable:
        if new in models:
            continue
        place = sum(model < new for model in models)
        added = tuple(sorted((*models, new)))
        for budget in space.trial_budgets:
            changed.append(Chain(added, (*budgets[:place], budget, *budgets[place:])))
            if space.variations.horizontal and len(added) == 3:
                changed.append(replace(changed[-1], order="horizontal"))
        for i in {place - 1, place} - {-1, len(budgets)}:
            replaced = tuple(sorted({*models} - {models[i]} | {new}))
            for budget in {budgets[i], *space.trial_budgets}:
                changed.append(
                    Chain(replaced, (*budgets[:i], budget, *budgets[i + 1 :]), chain.order)
                )
    yield from filter(space.contains, changed)


def rank(prices: PriceCache, space: Space, starts: Iterable[Chain], top: int = _TOP) -> list[Chain]:
    """Return all chains that the search has priced, best first.

    Args:
        starts: beside plain decoding and single drafters.
        top: how many of the best, each of other levels, get their best budgets.
    """
    target = space.estimates.target
    singles = [Chain((i, target), (budget,)) for i in space.usable for budget in space.budgets]
    singles = [chain for chain in singles if space.contains(chain)]
    search(prices, space, [Chain((target,)), *starts, *_best_chains(prices, singles, _STARTS)])
    if top > 1:  # runners-up deserve their best budgets too
        leaders = distinct_levels(_rank_priced(prices), 2 * top)
        polish(prices, space, [c for c in leaders if c.order != "interleaved" and not c.plain])
    return _rank_priced(prices)


def _rank_priced(prices: PriceCache) -> list[Chain]:
    priced = [(ms, chain) for chain, ms in prices.ms_by_chain.items() if ms < float("inf")]
    priced.sort(key=lambda pair: (pair[0], len(pair[1].models), pair[1].budgets))
    return [chain for _, chain in priced]


def _best_chains(prices: PriceCache, chains: Sequence[Chain], count: int) -> list[Chain]:
    prices.price(chains)
    ms = prices.ms_by_chain
    possible = [chain for chain in chains if ms[chain] < float("inf")]
    return distinct_levels(sorted(possible, key=ms.__getitem__), count, by_order=True)


def distinct_levels(chains: Iterable[Chain], count: int, by_order: bool = False) -> list[Chain]:
    """Return the first chain of each of the first sets of levels, or of levels in an order."""
    found: dict[tuple[object, ...], Chain] = {}
    for chain in chains:
        if len(found) == count:
            break
        found.setdefault((chain.models, chain.order if by_order else ""), chain)
    return list(found.values())
