"""The planner: from what is known of some models to the hierarchy that serves a token fastest."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, replace

from . import dynamic
from .batch import Quotes
from .bound import lower_bound
from .chain import Chain
from .corollary import corollary
from .estimates import Estimates
from .latency import latency
from .local import Space, polish, search
from .mixed import mixed
from .plan import Choice, LatencyModel, Plan

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
    found = dynamic.shortest(dynamic.prices(space.estimates), space.max_models, space.memory)
    return [chain for _, chain in found if space.allows(chain.levels)]


def _by_search(space: Space, shapes: Shapes, top: int) -> list[Chain]:
    """All chains that were priced, best first."""
    estimates, quotes = space.estimates, Quotes(space.estimates)
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


def _apart(quotes: Quotes, chains: Iterable[Chain], count: int) -> list[Chain]:
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
        raise ValueError(
            f"no latency model called {latency_model!r}; there are: {', '.join(LATENCY_MODELS)}"
        )
    if top < 1 or (max_models is not None and max_models < 1):
        raise ValueError("top and max_models are at least 1; the target counts as a model")
    if latency_model == "corollary" and shapes != PLAIN:
        raise ValueError("P1's formula prices plain chains only: use the exact latency model")
    if memory is not None and not estimates.owners:
        raise ValueError("a memory budget takes sizes of the models: add memory_bytes")
    if memory is not None and (needed := estimates.bytes([estimates.target])) > memory:
        raise ValueError(
            f"the target alone needs {needed} bytes of weights, more than the {memory} allowed"
        )
