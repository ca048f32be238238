"""Local search on the exact latency: change budgets, then levels, as long as it pays.

Under the exact model what a level is offered is a law of lengths, no single number, so dynamic
programming is exact for P1's formula only (MATH §4). Its plans are good starts.

The planner: from what is known of some models to the hierarchy that serves a token fastest.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations, pairwise

from hierspec.errors import HierspecError

from . import dynamic
from .bound import lower_bound
from .corollary import corollary
from .estimates import Chain, Estimates
from .latency import PriceCache, latency
from .mixed import mixed
from .plan import Choice, LatencyModel, Plan

_INCUMBENTS = 3  # starts that are followed to the end
_TRIALS = 6  # sets of levels whose budgets are adapted before a change of levels is judged
_STEPS = (-2, -1, 1, 2)
_BETTER = 1.0 - 1e-12  # a change must beat rounding


@dataclass(frozen=True)
class Space:
    """The chains that may be chosen.

    Attributes:
        max_models: most models in a chain, the target included.
        memory: most bytes of weights.
        tail: longest tail; 0: none.
        dropped_bonus: whether middle levels may drop theirs.
    """

    estimates: Estimates
    max_models: int | None = None
    memory: int | None = None
    tail: int = 0
    dropped_bonus: bool = False

    @cached_property
    def usable(self) -> tuple[int, ...]:
        """Drafters that fit beside the target."""
        target = self.estimates.target
        return tuple(i for i in range(target) if self.fits((i, target)))

    @cached_property
    def budgets(self) -> tuple[int, ...]:
        longest = self.estimates.survival.shape[2] - 1
        return tuple(range(1, min(self.estimates.max_budget, longest) + 1))

    @cached_property
    def spread(self) -> tuple[int, ...]:
        """A few budgets, denser where small: what a new level is tried with."""
        return tuple(sorted({b for b in (1, 2, 3, 4, 6, 8, 11, 15, 21, 30) if b in self.budgets}))

    def fits(self, levels: Sequence[int]) -> bool:
        return self.memory is None or self.estimates.bytes(levels) <= self.memory

    def allows(self, levels: Sequence[int]) -> bool:
        """Whether these levels may be stacked; who stops by itself can only draft."""
        return (
            (self.max_models is None or len(levels) <= self.max_models)
            and all(self.estimates.can_draft(i, k) for i, k in pairwise(levels))
            and not any(i in self.estimates.windows for i in levels[1:-1])
            and self.fits(levels)
        )

    def admits(self, chain: Chain) -> bool:
        """Whether a chain may be chosen as it is."""
        return self.allows(chain.levels) and all(b in self.budgets for b in chain.budgets)


def search(quotes: PriceCache, space: Space, starts: Iterable[Chain]) -> None:
    """Follow the best starts downhill; all that was priced is in ``quotes.known``."""
    starts = [start for start in dict.fromkeys(starts) if space.admits(start)]
    followed: set[Chain] = set()
    for chain in _best(quotes, polish(quotes, space, starts), _INCUMBENTS):
        while chain not in followed:
            followed.add(chain)
            ms = quotes.ask([chain])[0]
            changed = list(restructured(chain, space))
            quotes.ask(changed)
            trials = polish(quotes, space, _best(quotes, changed, _TRIALS))
            nearest = _best(quotes, trials, 1)
            if nearest and quotes.ask(nearest)[0] < ms * _BETTER:
                (chain,) = nearest


def polish(quotes: PriceCache, space: Space, chains: Sequence[Chain]) -> list[Chain]:
    """Each chain with its budgets (tail, bonuses) changed until no small change helps."""
    done: list[Chain] = []
    while chains:
        offers = [list(nudged(chain, space)) for chain in chains]
        ms = quotes.ask([*chains, *(new for offer in offers for new in offer)])
        now, ms, moving = ms[: len(chains)], ms[len(chains) :], []
        for chain, offer, price in zip(chains, offers, now, strict=True):
            mine, ms = ms[: len(offer)], ms[len(offer) :]
            if len(mine) and mine.min() < price * _BETTER:
                moving.append(offer[int(mine.argmin())])
            else:
                done.append(chain)
        chains = list(dict.fromkeys(moving))
    return done


def nudged(chain: Chain, space: Space) -> Iterator[Chain]:
    """Any budget of one level, small steps of two, and where allowed tails and bonuses."""
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
    middle = chain.levels[1:-1]
    if middle and chain.levels[0] not in space.estimates.windows:
        for tail in range(space.tail + 1):
            if tail != chain.tail and space.estimates.can_draft(chain.levels[0], chain.levels[-1]):
                yield replace(chain, tail=tail)
    if space.dropped_bonus:
        for model in middle:
            flipped = tuple(sorted({*chain.dropped_bonus} ^ {model}))
            yield replace(chain, dropped_bonus=flipped)


def restructured(chain: Chain, space: Space) -> Iterator[Chain]:
    """One level more, fewer, or another in its place."""
    levels, budgets = chain.levels, chain.budgets
    for i in range(len(budgets)):
        yield from _built(space, levels[:i] + levels[i + 1 :], budgets[:i] + budgets[i + 1 :])
    for new in space.usable:
        if new in levels:
            continue
        at = sum(level < new for level in levels)
        for budget in space.spread:
            yield from _built(
                space, (*levels[:at], new, *levels[at:]), (*budgets[:at], budget, *budgets[at:])
            )
        for i in {at - 1, at} - {-1, len(budgets)}:
            replaced = tuple(sorted({*levels} - {levels[i]} | {new}))
            for budget in {budgets[i], *space.spread}:
                yield from _built(space, replaced, (*budgets[:i], budget, *budgets[i + 1 :]))


def _built(space: Space, levels: tuple[int, ...], budgets: tuple[int, ...]) -> Iterator[Chain]:
    if space.allows(levels):
        yield Chain(levels, budgets)


def _best(quotes: PriceCache, chains: Sequence[Chain], count: int) -> list[Chain]:
    """The best ``count`` chains of different levels."""
    found: dict[tuple[int, ...], Chain] = {}
    ranked = sorted(zip(quotes.ask(chains).tolist(), chains, strict=True), key=lambda pair: pair[0])
    for ms, chain in ranked:
        if len(found) == count or ms == float("inf"):
            break
        found.setdefault(chain.levels, chain)
    return list(found.values())


LATENCY_MODELS = ("exact", "corollary")
_STARTS = 12  # of each kind; the local search follows the best few


@dataclass(frozen=True, slots=True)
class Shapes:
    """What a hierarchy may have beyond levels and budgets; by default nothing.

    Attributes:
        tail: longest tail of smallest-model tokens (P1's horizontal heuristic).
        dropped_bonus: whether middle levels may drop their bonus token.
        orders: whether P2's interleaved and horizontal orders count.
    """

    tail: int = 0
    dropped_bonus: bool = False
    orders: bool = False


PLAIN = Shapes()
EVERY = Shapes(tail=4, dropped_bonus=True, orders=True)


def plan(
    estimates: Estimates,
    *,
    latency_model: LatencyModel = "exact",
    max_models: int | None = None,
    memory: int | None = None,
    top: int = 5,
    shapes: Shapes = PLAIN,
) -> Plan:
    """The best hierarchy found, plain decoding included.

    Args:
        latency_model: ``"exact"``: what the algorithm costs, overshoot handed up;
            ``"corollary"``: P1's formula, of which the optimum is found for certain.
        max_models: most models, the target included.
        memory: most bytes of weights (:meth:`Estimates.bytes`).
        top: hierarchies to report: the best, and ``top - 1`` runners-up of other levels.
        shapes: what else may be chosen from; P1's formula knows no more than plain chains.

    Raises:
        ValueError: an option makes no sense, or the target alone exceeds the memory.
    """
    began = time.perf_counter()
    _check(estimates, latency_model, max_models, memory, top, shapes)
    space = Space(estimates, max_models, memory, shapes.tail, shapes.dropped_bonus)
    bounded = estimates
    if latency_model == "corollary":
        ranked: Iterable[Chain] = _by_formula(space)
        price = corollary
        bounded = replace(estimates, windows={}, classes=())  # the formula knows of none
    else:
        ranked = _by_search(space, shapes, top)
        price = latency
    bound = lower_bound(
        bounded,
        max_models=max_models,
        usable=space.usable,
        tail=shapes.tail,
        orders=shapes.orders,
    )
    chosen: dict[tuple[int, ...], Choice] = {}
    for chain in ranked:
        if len(chosen) == top:
            break
        if chain.levels not in chosen:
            chosen[chain.levels] = Choice(chain, price(estimates, chain))
    best, *others = sorted(
        chosen.values(), key=lambda choice: (choice.ms, len(choice.chain.levels))
    )
    return Plan(
        estimates=estimates,
        best=best,
        runners_up=tuple(others),
        # Attained up to rounding, which must not put the bound above the plan.
        lower_bound=best.ms if 0.0 < bound.ms - best.ms < 1e-9 * best.ms else bound.ms,
        search_seconds=time.perf_counter() - began,
        latency_model=latency_model,
    )


def _by_formula(space: Space) -> Iterable[Chain]:
    found = dynamic.shortest(dynamic.graph(space.estimates), space.max_models, space.memory)
    return [chain for _, chain in found if space.allows(chain.levels)]


def _by_search(space: Space, shapes: Shapes, top: int) -> list[Chain]:
    """All chains that were priced, best first."""
    estimates, quotes = space.estimates, PriceCache(space.estimates)
    target = estimates.target
    singles = [
        Chain((i, target), (budget,))
        for i in space.usable
        if space.allows((i, target))
        for budget in space.budgets
    ]
    quotes.ask(singles)
    bound = lower_bound(estimates, max_models=space.max_models, usable=space.usable)
    starts = [Chain((target,)), bound.chain, *_apart(quotes, singles, _STARTS)]
    starts += _spread(_by_formula(space), _STARTS)
    search(quotes, space, starts)
    if shapes.orders and (space.max_models is None or space.max_models >= 3):
        found = sorted(mixed(estimates, space.usable), key=lambda pair: pair[0])
        quotes.ask([chain for _, chain in found if space.fits(chain.levels)][:_STARTS])
    if top > 1:  # runners-up deserve their best budgets too
        polish(quotes, space, [c for c in _apart(quotes, quotes.known, 2 * top) if _movable(c)])
    return sorted(
        (chain for chain, ms in quotes.known.items() if ms < float("inf")),
        key=lambda chain: (quotes.known[chain], len(chain.levels), chain.budgets),
    )


def _movable(chain: Chain) -> bool:
    return chain.order == "chain" and not chain.plain


def _apart(quotes: PriceCache, chains: Iterable[Chain], count: int) -> list[Chain]:
    """The best chains, no two of the same levels."""
    return _spread(sorted(chains, key=quotes.known.__getitem__), count)


def _spread(chains: Iterable[Chain], count: int) -> list[Chain]:
    found: dict[tuple[int, ...], Chain] = {}
    for chain in chains:
        if len(found) == count:
            break
        found.setdefault(chain.levels, chain)
    return list(found.values())


def _check(
    estimates: Estimates,
    latency_model: str,
    max_models: int | None,
    memory: int | None,
    top: int,
    shapes: Shapes,
) -> None:
    if latency_model not in LATENCY_MODELS:
        raise HierspecError(
            f"no latency model called {latency_model!r}; there are: {', '.join(LATENCY_MODELS)}"
        )
    if top < 1 or (max_models is not None and max_models < 1):
        raise HierspecError("top and max_models are at least 1; the target counts as a model")
    if latency_model == "corollary" and shapes != PLAIN:
        raise HierspecError("P1's formula prices plain chains only: use the exact latency model")
    if memory is not None and not estimates.owners:
        raise HierspecError("a memory budget takes sizes of the models: add memory_bytes")
    if memory is not None and (needed := estimates.bytes([estimates.target])) > memory:
        raise HierspecError(
            f"the target alone needs {needed} bytes of weights, more than the {memory} allowed"
        )
