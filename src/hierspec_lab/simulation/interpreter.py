"""The simulated interpreter: latency without models, from acceptances and costs.

It drives the same coroutines as the runtime. Acceptances decide how many draft tokens a check
accepts, prices what each call takes (:mod:`.rates_and_costs`). This is how P1's latency formula and
the planner's exact model are checked against the algorithm itself [P1 Table 5; MATH §4].

A level's model is a number here: the model's row in the rates and costs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hierspec.core.distributions import OneHotDistributions
from hierspec.core.nodes import (
    Concatenate,
    Draft,
    LevelNode,
    Node,
    Verify,
    initial_states,
    walk,
)
from hierspec.core.proposals import Proposal, Verdict
from hierspec.core.requests import Check, Propose
from hierspec.core.round import Coroutine, propose, verified
from hierspec.engine.control import Controller, Steering
from hierspec.engine.trace import Tracer, event_of
from hierspec.errors import HierspecError

from .rates_and_costs import Acceptances, ByCall, CallPrices, Cost

NumberedVerify = Verify[int, int]
NumberedNode = Node[int, int]
DraftLengths = Callable[[int, int], int]  # (model, budget) → tokens of a new draft
_UNLIMITED = 1 << 30


@dataclass(slots=True)
class LevelCount:
    """Counters of one level; ``num_accepted_tokens`` are those that the level above accepted."""

    name: str
    calls: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    milliseconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Simulation:
    """Totals over all rounds.

    Attributes:
        ms_per_token: total cost / tokens emitted.
        standard_error: of ``ms_per_token``, from the spread between rounds.
        mean_acceptance_length: tokens emitted per target call, bonus included.
        levels: by node index.
        control: under a controller: switches, and rounds and tokens of each plan.
    """

    ms_per_token: float
    standard_error: float
    num_tokens: int
    target_calls: int
    levels: list[LevelCount] = field(repr=False)
    control: dict[str, Any] | None = None

    @property
    def mean_acceptance_length(self) -> float:
        return self.num_tokens / self.target_calls


def simulate(
    root: NumberedVerify,
    acceptances: Acceptances,
    costs: Sequence[float] | Cost | CallPrices,
    rounds: int | None = None,
    tracer: Tracer | None = None,
    *,
    tokens: int | None = None,
    controller: Controller | None = None,
    catch_up: Sequence[float] | None = None,
    lengths: DraftLengths | None = None,
) -> Simulation:
    """Run ``rounds`` rounds of the target, or as many as ``tokens`` tokens take.

    Args:
        root: nodes whose ``model`` is a number (:mod:`hierspec.config.numbered`).
        costs: ms per call of each model; a function of (model, tokens scored), which are 1 for a
            draft step, n + 1 for a check of n tokens; or :class:`CallPrices`.
        tokens: how many to emit; the last rounds are limited to those still missing.
        controller: chooses each round's plan; made from ``root``.
        catch_up: for each model, ms to read a token of a round that did not call it, paid at its
            next call. Default: free.
        lengths: lengths of drafts where drafters stop by themselves; default: their budgets.

    Raises:
        HierspecError: a window or rule that reads distributions, which a simulation lacks; both or
            neither of ``rounds`` and ``tokens`` given.
    """
    if (rounds is None) == (tokens is None):
        raise HierspecError("give the rounds to run or the tokens to emit, one of the two")
    for plan in controller.plans if controller else [root]:
        _refuse_distribution_readers(plan)
    prices = costs if isinstance(costs, CallPrices) else ByCall(costs)
    run = _Run(root, acceptances, prices, tracer, controller, catch_up, lengths)
    steering = Steering(controller, 0, tokens or rounds or 0) if controller else None
    per_round: list[tuple[float, int]] = []
    while len(per_round) < rounds if rounds is not None else run.committed < (tokens or 0):
        plan = steering.plan() if steering else root
        limit = _UNLIMITED if tokens is None else tokens - run.committed
        start_ms = run.total
        verdict, states = run.drive(verified(plan, (), limit, run.states))
        per_round.append((run.total - start_ms, len(verdict.emitted)))
        run.end_round(len(verdict.emitted))
        run.states = steering.record_round(len(verdict.emitted), states) if steering else states
    spent, emitted = np.array(per_round).T
    ratio = spent.sum() / emitted.sum()
    error = math.sqrt(((spent - ratio * emitted) ** 2).sum()) / emitted.sum()
    levels = run.levels
    return Simulation(
        float(ratio),
        float(error),
        int(emitted.sum()),
        levels[root.index].calls,
        levels,
        steering.to_dict() if steering else None,
    )


def _refuse_distribution_readers(plan: NumberedVerify) -> None:
    for node in walk(plan):
        if not isinstance(node, Concatenate) and node.window.signal is not None:
            raise HierspecError(
                f"level {node.name!r}: a simulation has no distributions for a window to read"
            )
        if isinstance(node, Verify) and node.rule.fixed_length:
            raise HierspecError(
                f"level {node.name!r}: the follow-up calls of {node.rule.name!r} depend on "
                "distributions, which a simulation has none of"
            )


class _Run:
    """Answers requests of the round, and adds up prices and counters."""

    def __init__(
        self,
        root: NumberedVerify,
        acceptances: Acceptances,
        prices: CallPrices,
        tracer: Tracer | None,
        controller: Controller | None,
        catch_up: Sequence[float] | None,
        lengths: DraftLengths | None,
    ) -> None:
        nodes = sorted(walk(root), key=lambda node: node.index)
        self.models = [-1 if isinstance(node, Concatenate) else node.model for node in nodes]
        self.levels = [LevelCount(node.name) for node in nodes]
        self.states = initial_states(root if controller is None else controller.root)
        self.acceptances, self.prices, self.tracer = acceptances, prices, tracer
        self.catch_up, self.lengths = catch_up, lengths or (lambda _, budget: budget)
        self.unread = dict.fromkeys(self.models, 0)  # tokens that a model has not read
        self.called_models: set[int] = set()
        self.total = 0.0
        self.committed = 0

    def drive(self, coroutine: Coroutine) -> Any:
        """Answer a coroutine's requests until it returns."""
        answer: Any = None
        while True:
            try:
                request = coroutine.send(answer)
            except StopIteration as stop:
                return stop.value
            start_ms = self.total
            if isinstance(request, Check):
                assert isinstance(request.node, Verify)
                answer = self.check(request.node, request.draft)
            else:
                assert isinstance(request, Propose)
                answer = self.propose(request)
            if self.tracer is not None:
                times = (start_ms / 1e3, (self.total - start_ms) / 1e3)  # its cost is its time
                event = event_of(request, answer, 0, self.committed, times)
                if event is not None:
                    self.tracer.record(event)

    def propose(self, request: Propose) -> tuple[Proposal, Any]:
        node, limit = request.node, request.limit
        if not isinstance(node, Draft):
            return self.drive(propose(node, request.pending, limit, request.states))
        n = self.lengths(node.model, max(min(node.budget, limit), 0))
        if n:
            self.pay(node, self.prices.draft(node.model, n), n)
        return _tokens(n, node.index), request.states

    def check(self, node: NumberedVerify, draft: Proposal) -> Verdict:
        n = len(draft)
        self.pay(node, self.prices.check(_drafter(node.below), node.model, n))
        tau = self.acceptances.kept(node.model, [self.models[i] for i in draft.owners])
        for position, owner in enumerate(draft.owners):
            self.levels[owner].num_draft_tokens += 1
            self.levels[owner].num_accepted_tokens += position < tau
        drops_bonus = not node.bonus and tau == n > 0
        return Verdict(tau, _tokens(tau + (not drops_bonus), node.index))

    def end_round(self, num_emitted: int) -> None:
        """Count the round's tokens as unread by every model that had no call in it."""
        self.committed += num_emitted
        for model in self.unread:
            if model not in self.called_models:
                self.unread[model] += num_emitted
        self.called_models.clear()

    def pay(self, node: LevelNode[int, int], price: float, calls: int = 1) -> None:
        if self.catch_up is not None:
            price += self.unread[node.model] * self.catch_up[node.model]
        self.unread[node.model] = 0
        self.called_models.add(node.model)
        self.total += price
        level = self.levels[node.index]
        level.calls += calls
        level.milliseconds += price


def _drafter(below: NumberedNode | None) -> int | None:
    """Return the model whose tokens ``below`` hands up, the largest if there are several."""
    if isinstance(below, Concatenate):
        return max(model for part in below.parts if (model := _drafter(part)) is not None)
    return None if below is None else below.model


def _tokens(n: int, index: int) -> Proposal:
    zeros, owners = (0,) * n, (index,) * n
    return Proposal(zeros, OneHotDistributions(zeros), owners, owners, (math.nan,) * n)
