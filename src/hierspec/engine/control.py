"""Online control: which levels draft, and with which budgets, decided anew before every round.

A controller hands out a *plan* at the start of each round of the target: a hierarchy of its own,
made of the loaded levels. What it knows are the rounds before: how many tokens each emitted, and
what became of the drafts of every level. Nothing of the round in progress reaches it. So given the
text and all that happened so far, a round is the round of some fixed lossless hierarchy, and the
output law stays the target's whatever the controller does [MATH §2]. :mod:`hierspec.exact`
certifies that by enumeration, control state included.

Every sequence has a state and a plan of its own, which follow from its own text alone: so a seeded
text is the same in any company. Calls are shared all the same: the runtime puts together requests
that read the same, whatever budgets and levels lie below (:mod:`hierspec.engine.runtime`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from hierspec.core.nodes import Concatenate, Draft, Verify, initial_states, walk
from hierspec.core.proposals import States
from hierspec.core.windows import Counting, Counts, Window
from hierspec.errors import HierspecError


@dataclass(frozen=True, slots=True)
class RoundReport:
    """What a controller learns of a sequence's round of the target.

    Attributes:
        num_emitted: tokens it added to the text.
        counts: by node index: what the level above kept of that level's drafts in this round.
    """

    num_emitted: int
    counts: tuple[Counts, ...]


class Controller(Protocol):
    """Stateless: the state is explicit and hashable, so that the exact interpreter can follow it.

    Attributes:
        root: all levels, with windows that count (:func:`plan_of`); it gives node indices, window
            states and metrics.
        plans: every root it may choose, with the node indices of ``root``.
    """

    @property
    def root(self) -> Verify: ...

    @property
    def plans(self) -> Sequence[Verify]: ...

    def initial(self, num_prompt: int = 0, num_wanted: int = 128) -> Any:
        """Return the state before a text's first round.

        Args:
            num_prompt: tokens of its prompt.
            num_wanted: tokens its output may have.
        """
        ...

    def plan(self, state: Any) -> Verify:
        """Return the root of the next round: one of ``plans``."""
        ...

    def update(self, state: Any, report: RoundReport) -> Any:
        """Return the state after a round."""
        ...


def levels_below(root: Verify) -> list[Draft | Verify]:
    """List the levels that draft for the target, smallest first.

    Raises:
        HierspecError: it is not a plain chain.
    """
    levels: list[Draft | Verify] = []
    for node in walk(root.below):
        if isinstance(node, Concatenate):
            raise HierspecError(
                f"level {node.name!r} is a concatenation, which online control cannot vary: give "
                "it a plain chain of levels, or run without a controller"
            )
        levels.append(node)
    return levels


def plan_of(root: Verify, budgets: Sequence[int]) -> Verify:
    """Return ``root`` with these budgets of its drafting levels, smallest first; 0 omits a level.

    Nodes keep their indices, and their windows count. The lowest level used only drafts.

    Raises:
        HierspecError: not a plain chain, or not one budget for each level below the target.
    """
    levels = levels_below(root)
    if len(budgets) != len(levels) or any(budget < 0 for budget in budgets):
        raise HierspecError(
            f"a plan has one budget, 0 or more, for each of the {len(levels)} levels below the "
            f"target; got {list(budgets)}"
        )
    used = [
        dataclasses.replace(node, budget=budget, window=_counting(node.window))
        for node, budget in zip(levels, budgets, strict=True)
        if budget
    ]
    rules = [node.rule for node in used[1:] if isinstance(node, Verify)] + [root.rule]
    below: Draft | Verify | None = None
    for node, above in zip(used, rules, strict=False):
        if isinstance(node, Verify) and below is not None:
            below = dataclasses.replace(node, below=below, exact_length=above.fixed_length)
            continue
        count = node.num_drafts if isinstance(node, Draft) and above.multi_draft else 1
        below = Draft(
            node.index, node.name, node.model, node.budget, node.window, node.temperature, count
        ).for_rule(above)
    return dataclasses.replace(root, below=below)


def _counting(window: Window) -> Counting:
    return window if isinstance(window, Counting) else Counting(window)


def label(plan: Verify) -> str:
    """Name a plan: ``"plain"``, or its levels with their budgets: ``"small 3 > mid 12"``."""
    if plan.below is None:
        return "plain"
    return " > ".join(f"{node.name} {node.budget}" for node in levels_below(plan))


def report(root: Verify, num_emitted: int, states: States) -> tuple[RoundReport, States]:
    """Make a round's report from its window states → it, and the next round's states: counts at 0.

    Args:
        root: the controller's.
    """
    counts, cleared = [Counts()] * len(states), list(states)
    for node in walk(root.below):
        if not isinstance(node, Concatenate) and isinstance(node.window, Counting):
            counts[node.index] = node.window.counts(states[node.index])
            cleared[node.index] = node.window.clear_counts(states[node.index])
    return RoundReport(num_emitted, tuple(counts)), tuple(cleared)


class Steering:
    """A controller at work on one sequence: its state, and a record of how rounds were spent."""

    def __init__(self, controller: Controller, num_prompt: int, num_wanted: int) -> None:
        self.controller = controller
        self.state = controller.initial(num_prompt, num_wanted)
        self.switches = 0
        self.rounds: dict[str, int] = {}
        self.tokens: dict[str, int] = {}
        self._last: Verify | None = None

    def plan(self) -> Verify:
        return self.controller.plan(self.state)

    def ended(self, num_emitted: int, states: States) -> States:
        """Record a round: tokens emitted and the window states → the next round's states."""
        plan = self.plan()
        self.switches += self._last not in (None, plan)
        self._last = plan
        name = label(plan)
        self.rounds[name] = self.rounds.get(name, 0) + 1
        self.tokens[name] = self.tokens.get(name, 0) + num_emitted
        seen, states = report(self.controller.root, num_emitted, states)
        self.state = self.controller.update(self.state, seen)
        return states

    def to_dict(self) -> dict[str, Any]:
        """Return the ``switches`` between plans, and ``rounds`` and ``tokens`` of each."""
        return {"switches": self.switches, "rounds": dict(self.rounds), "tokens": dict(self.tokens)}


class Jumping:
    """A controller that jumps between given plans by all that the last round showed.

    It serves no speed: it depends on earlier rounds as wildly as a controller may (kept tokens of
    inner levels included), which makes it what certificates try.

    Args:
        root: the loaded hierarchy, a plain chain.
        budgets: one list for each plan, as :func:`plan_of` takes them.
    """

    def __init__(self, root: Verify, budgets: Sequence[Sequence[int]]) -> None:
        self.root = plan_of(root, [node.budget for node in levels_below(root)])
        self.plans = tuple(plan_of(root, each) for each in budgets)
        if not self.plans:
            raise HierspecError("a controller needs at least one plan")

    def initial(self, num_prompt: int = 0, num_wanted: int = 128) -> int:
        return 0

    def plan(self, state: int) -> Verify:
        return self.plans[state]

    def update(self, state: int, report: RoundReport) -> int:
        seen = state + 1 + report.num_emitted
        for place, counts in enumerate(report.counts):
            seen += (place + 2) * int(counts.kept) + int(counts.rejected)
        return seen % len(self.plans)


def initial_window_states(root: Verify, controller: Controller | None) -> States:
    """Return a new sequence's window states, with counters where a controller needs them."""
    return initial_states(root if controller is None else controller.root)
