"""Online control: which levels draft, and with which budgets, decided anew before every round.

At the start of each round of the target a controller chooses a *plan*: a hierarchy made of the
loaded levels. It knows only the rounds before: how many tokens each emitted, and how many drafted
tokens of every level were accepted. So given the text and all that happened so far, a round is the
round of some fixed lossless hierarchy, and the output law stays the target's whatever the
controller does [MATH §2]. :mod:`hierspec.exact` certifies that by enumeration, the controller's
state included.

Every sequence has a state and a plan of its own, which depend on its own text alone: so a seeded
text is the same in any batch. Sequences with different plans still share calls
(:meth:`hierspec.engine.runtime.Runtime.round`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeGuard

from hierspec.core.nodes import (
    Concatenate,
    Draft,
    LevelNode,
    Node,
    Verify,
    walk,
    walk_levels,
)
from hierspec.core.proposals import States
from hierspec.core.windows import Counting, Counts
from hierspec.errors import HierspecError


@dataclass(frozen=True, slots=True)
class RoundReport:
    """What a controller learns from a sequence's round of the target.

    Attributes:
        num_emitted: tokens it added to the text.
        counts: by node index: how many of that level's tokens were drafted, accepted and rejected.
    """

    num_emitted: int
    counts: tuple[Counts, ...]


class Controller(Protocol):
    """What chooses plans. Its state is explicit and hashable, for the exact interpreter.

    Attributes:
        root: all levels, with windows that count (:func:`plan_of`); it defines node indices and
            window states.
        plans: every plan it may choose, with the node indices of ``root``.
    """

    @property
    def root(self) -> Verify: ...

    @property
    def plans(self) -> Sequence[Verify]: ...

    def initial(self, num_prompt_tokens: int = 0, max_new_tokens: int = 128) -> Any: ...

    def plan(self, state: Any) -> Verify: ...

    def update(self, state: Any, report: RoundReport) -> Any: ...


def levels_below(root: Verify) -> list[LevelNode]:
    """List the levels that draft for the target, smallest first, then what continues their draft.

    Raises:
        HierspecError: the levels are not a plain chain that one drafter may continue.
    """
    levels: list[LevelNode] = []
    for node in walk(root.below):
        if not isinstance(node, Concatenate):
            levels.append(node)
        elif node is not root.below or not _continues(node):
            raise HierspecError(
                f"level {node.name!r} is a concatenation, which online control cannot vary: give "
                "it a plain chain of levels, which one drafter may continue, or run without a "
                "controller"
            )
    return levels


def _continues(node: Node | None) -> TypeGuard[Concatenate]:
    """Return whether a node is levels, and once a drafter that continues what they have drafted."""
    if not isinstance(node, Concatenate) or len(node.parts) != 2 or node.repeat != 1:
        return False
    return isinstance(node.parts[1], Draft)


def plan_of(root: Verify, budgets: Sequence[int]) -> Verify:
    """Return ``root`` with these budgets of its levels (:func:`levels_below`); 0 omits a level.

    Nodes keep their indices, and their windows count. The lowest level with a budget only drafts.

    Raises:
        HierspecError: the levels cannot be listed, or do not have one budget each.
    """
    levels = levels_below(root)
    if len(budgets) != len(levels) or any(budget < 0 for budget in budgets):
        raise HierspecError(
            f"a plan has one budget, 0 or more, for each of the {len(levels)} levels below the "
            f"target; got {list(budgets)}"
        )
    used = [
        dataclasses.replace(
            node,
            budget=budget,
            window=node.window if isinstance(node.window, Counting) else Counting(node.window),
        )
        for node, budget in zip(levels, budgets, strict=True)
        if budget
    ]
    whole = root.below if len(used) > 1 and budgets[-1] and _continues(root.below) else None
    last = used.pop() if whole else None
    verifying = [node for node in used[1:] if isinstance(node, Verify)]
    below: LevelNode | None = None
    if used:
        leaf = used[0] if isinstance(used[0], Draft) else used[0].as_leaf()
        takes_several = (verifying or [root])[0].rule.multi_draft
        num_drafts = leaf.num_drafts if takes_several else 1
        below = dataclasses.replace(leaf, num_drafts=num_drafts, drafter=None)
    for node in verifying:
        below = node.over(below)
    if whole is not None:
        return root.over(dataclasses.replace(whole, parts=(below, last)))
    return root.over(below)


def label(plan: Verify, names: Mapping[int, str] | None = None) -> str:
    """Name a plan: ``"plain"``, or its levels with their budgets: ``"small 3 > mid 12"``."""
    if plan.below is None:
        return "plain"

    def named(node: Node) -> str:
        if isinstance(node, Concatenate):
            return " + ".join(map(named, node.parts))
        below = f"{named(node.below)} > " if isinstance(node, Verify) and node.below else ""
        return f"{below}{node.name if names is None else names[node.index]} {node.budget}"

    return named(plan.below)


def round_report(root: Verify, num_emitted: int, states: States) -> tuple[RoundReport, States]:
    """Return the report of a round, and its window states with their counts set to 0."""
    counts, cleared = [Counts()] * len(states), list(states)
    for node in walk_levels(root.below):
        if isinstance(node.window, Counting):
            counts[node.index] = node.window.counts(states[node.index])
            cleared[node.index] = node.window.clear_counts(states[node.index])
    return RoundReport(num_emitted, tuple(counts)), tuple(cleared)


class Steering:
    """A controller's state for one sequence, and how many rounds and tokens each plan had."""

    def __init__(self, controller: Controller, num_prompt_tokens: int, max_new_tokens: int) -> None:
        self.controller = controller
        self.state = controller.initial(num_prompt_tokens, max_new_tokens)
        self.switches = 0
        self.rounds: dict[str, int] = {}
        self.tokens: dict[str, int] = {}
        self._last: Verify | None = None

    def plan(self) -> Verify:
        return self.controller.plan(self.state)

    def record_round(self, num_emitted: int, states: States) -> States:
        """Record a round: tokens emitted and the window states → the next round's states."""
        plan = self.plan()
        self.switches += self._last not in (None, plan)
        self._last = plan
        name = label(plan)
        self.rounds[name] = self.rounds.get(name, 0) + 1
        self.tokens[name] = self.tokens.get(name, 0) + num_emitted
        report, states = round_report(self.controller.root, num_emitted, states)
        self.state = self.controller.update(self.state, report)
        return states

    def to_dict(self) -> dict[str, Any]:
        return {"switches": self.switches, "rounds": dict(self.rounds), "tokens": dict(self.tokens)}
