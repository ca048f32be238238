"""Any plan run by the simulated interpreter: what the planner's prices are checked against.

P1's Table 5 compares four latencies: real or independent acceptances, real or constant costs.
Here *real* is what was measured: recorded drafts, or their survival curves, and milliseconds by
pair and length. Under curves and real costs :func:`hierspec.planner.latency.latency` is exact.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import count, pairwise

from ..call_prices import Prices
from ..hierarchy import Concatenate, Draft, Node, Verify
from ..simulate import LevelCount, Simulation, simulate
from ..verifiers import base as verifiers
from .chain import Chain
from .estimates import Estimates
from .sources import Drawn, Records, Replayed, Source

ACCEPTANCES = ("iid", "curves", "recorded")
COSTS = ("real", "artificial")


def root_of(chain: Chain, names: Sequence[str] | None = None) -> Verify:
    """``chain`` as nodes for :func:`hierspec.simulate.simulate`: models are numbers.

    Args:
        names: of all models, by number.
    """
    index, rule = count(), verifiers.get("tokenwise")

    def named(model: int, more: str = "") -> str:
        return (names[model] if names else f"model {model}") + more

    def draft(model: int, budget: int, more: str = "") -> Draft:
        return Draft(next(index), named(model, more), model, budget)

    def verify(model: int, budget: int, below: Node | None) -> Verify:
        bonus = model == target or model not in chain.dropped_bonus
        return Verify(next(index), named(model), model, budget, rule, below, bonus=bonus)

    *drafters, target = chain.levels
    below: Node | None = None
    if chain.order == "chain":
        for at, (model, budget) in enumerate(zip(drafters, chain.budgets, strict=True)):
            below = verify(model, budget, below) if at else draft(model, budget)
            if at and chain.tail:
                parts = below, draft(drafters[0], chain.tail, " (tail)")
                below = Concatenate(next(index), f"{named(model)} and tail", parts)
    else:
        (small, mid), (n, m) = drafters, chain.budgets
        if chain.order == "interleaved":
            parts, repeat = (draft(small, n), draft(mid, 1)), m
        else:
            parts, repeat = (draft(mid, m), draft(small, n)), 1
        below = Concatenate(next(index), chain.order, parts, repeat)
    return verify(target, 1, below)


def simulated(
    estimates: Estimates,
    chain: Chain,
    acceptances: str | Records = "curves",
    costs: str | Prices | Sequence[float] = "real",
    rounds: int = 2000,
    seed: int = 0,
) -> Simulation:
    """Run ``rounds`` rounds of the target under ``chain``.

    Args:
        acceptances: ``"iid"``: coin flips at the acceptance of a draft's first token;
            ``"curves"``: the measured survival; records: real drafts in order, with no regard to
            ``estimates.classes``, so easy text weighs as much as it takes rounds.
        costs: ``"real"``: the estimates' by pair and length; ``"artificial"``: a constant per
            call of each model (:func:`artificial`); or prices of one's own.
        rounds: over all classes of text together, where the estimates have some: each gets
            equally many, ms per token is the mean over them as the planner's is, and counts are
            sums.

    Raises:
        ValueError: a level cannot draft for the one above it, or has no records; names that are
            none.
    """
    _check(estimates, chain)
    if isinstance(acceptances, str):
        check_name(acceptances, ACCEPTANCES[:-1], "acceptances other than Records")
    if isinstance(costs, str):
        check_name(costs, COSTS, "costs")
    if isinstance(acceptances, Records) or not estimates.classes:
        source: Source
        if isinstance(acceptances, Records):
            source = Replayed(acceptances, estimates)
        else:
            source = Drawn(estimates, acceptances == "iid", seed)
        prices = Measured(estimates) if costs == "real" else costs
        return simulate(
            root_of(chain, estimates.names),
            source,
            artificial(estimates) if isinstance(prices, str) else prices,
            rounds,
            lengths=source.drafted,
        )
    each = -(-rounds // len(estimates.classes))
    return _mean(
        [
            simulated(one, chain, acceptances, costs, each, seed + at)
            for at, one in enumerate(estimates.classes)
        ]
    )


def check_name(name: str, names: Sequence[str], what: str) -> None:
    """Refuse one that is none of ``names``."""
    if name not in names:
        raise ValueError(f"{what} cannot be {name!r}; there are: {', '.join(names)}")


def artificial(estimates: Estimates) -> list[float]:
    """A constant per call of each model, as P1 has it: its single step; plain decoding's for the
    target."""
    return [*estimates.draft_ms[:-1, 1].tolist(), estimates.plain_ms]


class Measured:
    """The estimates' costs; longer drafts are priced as the longest that is known."""

    def __init__(self, estimates: Estimates) -> None:
        self._draft, self._check = estimates.draft_ms.tolist(), estimates.verify_ms.tolist()
        self._last = estimates.survival.shape[2] - 1
        self._plain, self._target = estimates.plain_ms, estimates.target

    def draft(self, model: int, n: int) -> float:
        return self._draft[model][min(n, self._last)]

    def check(self, drafter: int | None, model: int, n: int) -> float:
        if drafter is None:
            return self._plain if model == self._target else self._draft[model][1]
        return self._check[drafter][model][min(n, self._last)]


def _check(estimates: Estimates, chain: Chain) -> None:
    *drafters, target = chain.levels
    if chain.order == "chain":
        pairs = set(pairwise(chain.levels))
        if chain.tail:
            pairs |= {(drafters[0], model) for model in chain.levels[2:]}
    else:
        pairs = {(model, target) for model in drafters}
    for i, k in sorted(pairs):
        if not estimates.can_draft(i, k):
            names = estimates.names
            raise ValueError(f"nothing is known of {names[i]}'s drafts for {names[k]}")


def _mean(parts: Sequence[Simulation]) -> Simulation:
    """Over kinds of text with equally many tokens."""
    levels = [LevelCount(level.name) for level in parts[0].levels]
    for part in parts:
        for total, level in zip(levels, part.levels, strict=True):
            total.calls += level.calls
            total.num_draft_tokens += level.num_draft_tokens
            total.num_accepted_tokens += level.num_accepted_tokens
            total.milliseconds += level.milliseconds
    return replace(
        parts[0],
        ms_per_token=sum(part.ms_per_token for part in parts) / len(parts),
        standard_error=math.hypot(*(part.standard_error for part in parts)) / len(parts),
        num_tokens=sum(part.num_tokens for part in parts),
        target_calls=sum(part.target_calls for part in parts),
        levels=levels,
    )
