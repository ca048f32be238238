"""Maps of plans over two choices: which exits to take, whether a further model pays.

:func:`exits_map` asks P3's question (Figures 5 and 8): after which layers should the draft and the
intermediate verifier leave the trunk? :func:`cost_acceptance_map` asks P1's (Table 9): what must a
further model cost, and how well must it guess, to be worth a level?
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from pathlib import Path

import numpy as np

from hierspec.errors import HierspecError
from hierspec.planner.estimates import Chain, Estimates, ideal
from hierspec.planner.latency import latency
from hierspec_lab.plotting.heat_map import heat_map


@dataclass(frozen=True, slots=True, eq=False)
class Sweep:
    """A grid of plans.

    Attributes:
        rows, cols: labels of the axes.
        values: [rows, cols] speed-up over plain decoding; NaN: no such plan.
        details: [rows, cols] budgets, ``"4, 6"``.
        groups: [rows, cols] indices into ``group_names``: which kind of hierarchy is best.
    """

    rows: tuple[str, ...]
    cols: tuple[str, ...]
    values: np.ndarray
    details: tuple[tuple[str, ...], ...]
    groups: np.ndarray | None = None
    group_names: tuple[str, ...] = ()


def sweep_exits(estimates: Estimates, exits: Mapping[int, int], largest: int = 8) -> Sweep:
    """Compute a sweep of verifier's exit (rows) by draft's exit (columns): the lower triangle.

    Args:
        exits: layer → model number.
        largest: budgets up to it are tried, and each pair gets the best ones.

    Raises:
        HierspecError: no exits, or one whose number is not that of a model below the target.
    """
    for layer, number in exits.items():
        if not 0 <= number < estimates.target:
            raise HierspecError(
                f"exit {layer} is model {number}, but the models below the target are "
                f"0 to {estimates.target - 1}"
            )
    if not exits:
        raise HierspecError("there are no exits; give {layer: model number, ...}")
    layers = sorted(exits)
    count = len(layers)
    values = np.full((count, count), np.nan)
    details = [[""] * count for _ in layers]
    for r, c in product(range(count), range(count)):
        draft, middle = exits[layers[c]], exits[layers[r]]
        models = (draft, estimates.target) if r == c else (draft, middle, estimates.target)
        if r < c or not all(estimates.can_draft(i, k) for i, k in pairwise(models)):
            continue
        chain, ms = cheapest_chain(estimates, models, largest)
        values[r, c] = estimates.plain_ms / ms
        details[r][c] = ", ".join(str(budget) for budget in chain.budgets)
    labels = tuple(str(layer) for layer in layers)
    return Sweep(labels, labels, values, tuple(map(tuple, details)))


def sweep_further_model(
    costs: Sequence[float],
    acceptances: Sequence[float],
    target_cost: float = 1024.0,
    drafter_cost: float = 256.0,
    acceptance: float = 0.5,
    largest: int = 15,
) -> Sweep:
    """Compute P1 Table 9: target A, drafter B, a model C of each cost (column), acceptance (row).

    C's tokens are accepted by A as rarely as the triangle inequality allows: max(0, α_CB + α_BA −
    1). All budgets up to ``largest`` are tried, and priced by the exact model, overshoot handed up;
    the paper prices them by its formula.
    """
    hierarchies = {"A alone": (2,), "A-B": (1, 2), "A-C": (0, 2), "A-B-C": (0, 1, 2)}
    values = np.empty((len(acceptances), len(costs)))
    groups = np.empty(values.shape, dtype=int)
    details = [[""] * len(costs) for _ in acceptances]
    for (r, rate), (c, cost) in product(enumerate(acceptances), enumerate(costs)):
        c_by_target = max(0.0, rate + acceptance - 1)
        rates = [[None, rate, c_by_target], [None, None, acceptance], [None] * 3]
        estimates = ideal([cost, drafter_cost, target_cost], rates, longest=2 * largest + 1)
        plans = [cheapest_chain(estimates, models, largest) for models in hierarchies.values()]
        # A tie goes to the smaller hierarchy: a model that saves nothing is not worth loading.
        groups[r, c] = min(range(len(plans)), key=lambda i: (round(plans[i][1], 9), i))
        chain, ms = plans[groups[r, c]]
        values[r, c] = target_cost / ms
        details[r][c] = ", ".join(str(budget) for budget in chain.budgets)
    return Sweep(
        tuple(f"{rate:g}" for rate in acceptances),
        tuple(f"{cost:g}" for cost in costs),
        values,
        tuple(map(tuple, details)),
        groups,
        tuple(hierarchies),
    )


def cheapest_chain(
    estimates: Estimates, models: tuple[int, ...], largest: int
) -> tuple[Chain, float]:
    """Return the chain of these models with the best budgets, and its milliseconds a token."""
    choices = product(range(1, largest + 1), repeat=len(models) - 1)
    ms, budgets = min((latency(estimates, Chain(models, b)).ms_per_token, b) for b in choices)
    return Chain(models, budgets), ms


def exits_map(estimates: Estimates, exits: Mapping[int, int], path: str | Path) -> Sweep:
    """Draw the predicted speed-up over (draft exit, intermediate exit) [P3, Figures 5 and 8].

    Each pair has its best budgets, printed in its cell. On the diagonal one exit drafts for the
    target.

    Args:
        exits: layer → model number, the target left out.
    """
    sweep = sweep_exits(estimates, exits)
    heat_map(
        sweep.values,
        sweep.rows,
        sweep.cols,
        path,
        "Speed-up over plain decoding, by exits",
        row_title="intermediate verifier: exit after layer",
        col_title="draft: exit after layer",
        value_title="times as fast as plain decoding",
        details=sweep.details,
        centre=1.0,
        note="Small: the best numbers of tokens, the draft's first. Diagonal: no intermediate "
        "verifier. Framed: the fastest.",
    )
    return sweep


def cost_acceptance_map(
    costs: Sequence[float],
    acceptances: Sequence[float],
    path: str | Path,
    *,
    target_cost: float = 1024.0,
    drafter_cost: float = 256.0,
    acceptance: float = 0.5,
    largest: int = 15,
    title: str = "When a further model is worth a level",
    names: tuple[str, str] = ("The target", "the drafter"),
    unit: str = "",
) -> Sweep:
    """Draw the speed-up with a model C of each cost and acceptance below A and B [P1, Table 9].

    Args:
        costs: of a call of C; ``acceptances``: of C's tokens by B.
        target_cost, drafter_cost: of a call of A and of B.
        acceptance: of B's tokens by A.
        names: of A and B.
        unit: of the costs; none for bare numbers.
    """
    sweep = sweep_further_model(costs, acceptances, target_cost, drafter_cost, acceptance, largest)
    levels = dict(zip(sweep.group_names, ("alone", "B", "C", "C, B"), strict=True))
    kinds = {
        "A alone": "A alone: plain decoding",
        "A-B": "B drafts for A: C is not worth a level",
        "A-C": "C drafts for A, without B",
        "A-B-C": "C drafts for B, and B for A: C is worth a level",
    }
    assert sweep.groups is not None
    details = [[levels[sweep.group_names[n]] for n in row] for row in sweep.groups]
    unit_suffix = f", {unit}" if unit else ""
    heat_map(
        sweep.values,
        sweep.rows,
        sweep.cols,
        path,
        title,
        row_title="share of C's tokens that B accepts",
        col_title=f"cost of a call of C, the further model{unit_suffix}",
        details=details,
        groups=sweep.groups,
        group_names=[kinds[name] for name in sweep.group_names],
        best=None,
        note=f"Cells: times as fast as plain decoding, and below what drafts. {names[0]} (A) costs "
        f"{target_cost:.4g}{' ' * bool(unit)}{unit} a call, {names[1]} (B) "
        f"{drafter_cost:.4g}{' ' * bool(unit)}{unit}; "
        f"A accepts {100 * acceptance:.3g} % of B's tokens.",
    )
    return sweep
