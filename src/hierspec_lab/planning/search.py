"""The product's search within limits, from more starts, with P2's interleaved order and a lower
bound; and the search by P1's formula alone.

The formula's dynamic program (:mod:`.dynamic`) is certain of its optimum. Under the exact model its
plans are starts, as is the chain near the bound: the best plan is the one found without them, its
runners-up may be better.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from hierspec.errors import HierspecError
from hierspec.planner.estimates import Chain, Estimates
from hierspec.planner.latency import PriceCache, latency
from hierspec.planner.search import (
    NO_VARIATIONS,
    Space,
    Variations,
    distinct_levels,
    plan_from,
    rank,
)

from .bound import lower_bound
from .concatenations import concatenations
from .corollary import corollary
from .dynamic import build_graph, rank_chains, validate_limits
from .plans import LATENCY_MODELS, BoundedPlan, LatencyModel

_STARTS = 12  # of each kind


@dataclass(frozen=True)
class LimitedSpace(Space):
    """The chains within limits.

    Attributes:
        max_models: most models, the target included.
        memory: most bytes of weights (:meth:`Estimates.bytes`).
    """

    max_models: int | None = None
    memory: int | None = None

    @cached_property
    def usable(self) -> tuple[int, ...]:
        """The drafters that fit beside the target."""
        target = self.estimates.target
        return tuple(i for i in range(target) if self.fit_memory((i, target)))

    def fit_memory(self, models: Sequence[int]) -> bool:
        return self.memory is None or self.estimates.bytes(models) <= self.memory

    def contains(self, chain: Chain) -> bool:
        is_shallow = self.max_models is None or len(chain.models) <= self.max_models
        return is_shallow and self.fit_memory(chain.models) and Space.contains(self, chain)


def plan(
    estimates: Estimates,
    *,
    latency_model: LatencyModel = "exact",
    max_models: int | None = None,
    memory: int | None = None,
    top: int = 5,
    variations: Variations = NO_VARIATIONS,
) -> BoundedPlan:
    """Search for the fastest hierarchy, plain decoding included.

    Args:
        latency_model: ``"exact"``: what the algorithm costs, overshoot handed up;
            ``"corollary"``: P1's formula, which prices plain chains only.
        max_models: most models, the target included.
        memory: most bytes of weights (:meth:`Estimates.bytes`).
        top: hierarchies to report: the best, and ``top - 1`` runners-up of other levels.
        variations: options beyond levels and budgets; with P2's horizontal order comes its
            interleaved one.

    Raises:
        HierspecError: an option makes no sense, or the target alone exceeds the memory.
    """
    began = time.perf_counter()
    if latency_model not in LATENCY_MODELS:
        raise HierspecError(
            f"no latency model called {latency_model!r}; there are: {', '.join(LATENCY_MODELS)}"
        )
    is_exact = latency_model == "exact"
    if not is_exact and variations != NO_VARIATIONS:
        raise HierspecError("P1's formula prices plain chains only: use the exact latency model")
    validate_limits(estimates, max_models, memory, top)
    space = LimitedSpace(estimates, variations, max_models, memory)
    ranked = rank_chains(build_graph(estimates), max_models, memory)
    ranking = [chain for _, chain in ranked if space.contains(chain)]
    # The formula covers neither drafters that stop by themselves nor classes.
    bounded = estimates if is_exact else replace(estimates, joint_survival={}, classes=())
    bound = lower_bound(
        bounded,
        max_models=max_models,
        usable=space.usable,
        tail=variations.tail,
        orders=variations.horizontal,
        dropped_bonus=variations.dropped_bonus,
    )
    if is_exact:
        prices = PriceCache(estimates)
        if variations.horizontal and (max_models is None or max_models >= 3):
            found = concatenations(estimates, space.usable)
            fitting = [pair for pair in found if space.fit_memory(pair[1].models)]
            best = heapq.nsmallest(_STARTS, fitting, key=lambda pair: pair[0])
            prices.price([chain for _, chain in best])
        near = lower_bound(
            estimates, max_models=max_models, usable=space.usable, dropped_bonus=False
        )
        ranking = rank(prices, space, [near.chain, *distinct_levels(ranking, _STARTS)], top)
    found = plan_from(estimates, ranking, top, latency if is_exact else corollary)
    ms = found.best.ms
    return BoundedPlan(
        estimates,
        found.best,
        found.runners_up,
        found.stacked,
        # Attained up to rounding, which must not put the bound above the plan.
        lower_bound=ms if 0.0 < bound.ms - ms < 1e-9 * ms else bound.ms,
        search_seconds=time.perf_counter() - began,
        latency_model=latency_model,
    )
