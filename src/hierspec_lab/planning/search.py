"""The product's search, from P1's plans too, and the search by P1's formula alone.

The formula's dynamic program (:mod:`.dynamic`) is certain of its optimum. Under the exact model its
plans are starts: the best plan is the one found without them, its runners-up may be better.
"""

from __future__ import annotations

import time
from dataclasses import replace

from hierspec.errors import HierspecError
from hierspec.planner import search
from hierspec.planner.bound import lower_bound
from hierspec.planner.estimates import Estimates
from hierspec.planner.plan import LATENCY_MODELS, LatencyModel, Plan
from hierspec.planner.search import NO_VARIATIONS, Space, Variations, plan_from

from .corollary import corollary
from .dynamic import build_graph, rank_chains


def plan(
    estimates: Estimates,
    *,
    latency_model: LatencyModel = "exact",
    max_models: int | None = None,
    memory: int | None = None,
    top: int = 5,
    variations: Variations = NO_VARIATIONS,
) -> Plan:
    """Search for the fastest hierarchy as :func:`hierspec.planner.search.plan` does.

    Args:
        latency_model: ``"exact"``: what the algorithm costs, overshoot handed up;
            ``"corollary"``: P1's formula, which prices plain chains only.

    Raises:
        HierspecError: an option makes no sense, or the target alone exceeds the memory.
    """
    began = time.perf_counter()
    if latency_model not in LATENCY_MODELS:
        raise HierspecError(
            f"no latency model called {latency_model!r}; there are: {', '.join(LATENCY_MODELS)}"
        )
    if latency_model == "corollary" and variations != NO_VARIATIONS:
        raise HierspecError("P1's formula prices plain chains only: use the exact latency model")
    search.validate_limits(estimates, max_models, memory, top)
    space = Space(estimates, max_models, memory, variations)
    ranked = rank_chains(build_graph(estimates), max_models, memory)
    ranking = [chain for _, chain in ranked if space.can_stack(chain.models)]
    if latency_model == "exact":
        return search.plan(
            estimates,
            max_models=max_models,
            memory=memory,
            top=top,
            variations=variations,
            starts=ranking,
        )
    bounded = replace(estimates, joint_survival={}, classes=())  # the formula covers neither
    bound = lower_bound(bounded, max_models=max_models, usable=space.usable, dropped_bonus=False)
    return plan_from(estimates, ranking, top, bound.ms, began, latency_model, corollary)
