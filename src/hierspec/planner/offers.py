"""The plans that a loaded hierarchy offers to online control: the menu, as nodes and as chains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..control import levels_below, plan_of
from ..hierarchy import Verify
from ..verifiers.soundness import check
from .chain import Chain
from .estimates import Estimates
from .menu import menu

Budgets = tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Offer:
    """A plan.

    Attributes:
        budgets: of the levels below the target, smallest first; 0 where one is left out.
        plan: what runs.
        chain: what is priced.
    """

    budgets: Budgets
    plan: Verify
    chain: Chain


def offers(root: Verify, estimates: Estimates, chain: Chain) -> list[Offer]:
    """Plain decoding first, then every plan of :func:`hierspec.planner.menu.menu` that is sound.

    Args:
        root: the loaded hierarchy, a plain chain of levels.
        chain: which model of ``estimates`` each level is; its budgets are among those offered.
    """
    nodes = levels_below(root)
    dropped = frozenset(
        model
        for model, node in zip(chain.levels, nodes, strict=False)
        if isinstance(node, Verify) and not node.bonus
    )
    found = {b: plan_of(root, b) for b in menu(estimates, chain.levels, chain.budgets, dropped)}
    return [
        Offer(budgets, plan, _chain(chain.levels, budgets, dropped))
        for budgets, plan in found.items()
        if _stands(plan)
    ]


def _chain(models: Sequence[int], budgets: Budgets, dropped: frozenset[int]) -> Chain:
    """The levels that have a budget, and the target."""
    used = [(model, n) for model, n in zip(models, budgets, strict=False) if n]
    drafters = tuple(model for model, _ in used)
    return Chain(
        (*drafters, models[-1]),
        tuple(n for _, n in used),
        dropped_bonus=tuple(m for m in drafters[1:] if m in dropped),
    )


def _stands(plan: Verify) -> bool:
    """Whether the rules are sound where leaving levels out has put them."""
    try:
        check(plan, allow_lossy=True)
    except ValueError:
        return False
    return True
