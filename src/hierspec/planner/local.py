"""Local search on the exact latency: change budgets, then levels, as long as it pays.

Under the exact model what a level is offered is a law of lengths, no single number, so dynamic
programming is exact for P1's formula only (MATH §4). Its plans are good starts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations, pairwise

from .batch import Quotes
from .chain import Chain
from .estimates import Estimates

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


def search(quotes: Quotes, space: Space, starts: Iterable[Chain]) -> None:
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


def polish(quotes: Quotes, space: Space, chains: Sequence[Chain]) -> list[Chain]:
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


def _best(quotes: Quotes, chains: Sequence[Chain], count: int) -> list[Chain]:
    """The best ``count`` chains of different levels."""
    found: dict[tuple[int, ...], Chain] = {}
    ranked = sorted(zip(quotes.ask(chains).tolist(), chains, strict=True), key=lambda pair: pair[0])
    for ms, chain in ranked:
        if len(found) == count or ms == float("inf"):
            break
        found.setdefault(chain.levels, chain)
    return list(found.values())
