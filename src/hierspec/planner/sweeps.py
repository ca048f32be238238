"""Many plans over a grid, for the maps: which exits to take, whether a further model pays."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product

import numpy as np

from .chain import Chain
from .estimates import Estimates, ideal
from .latency import Latency, latency

Price = Callable[[Estimates, Chain], Latency]


@dataclass(frozen=True, slots=True, eq=False)
class Sweep:
    """A grid of plans.

    Attributes:
        rows, cols: what the edges say.
        values: [rows, cols] speed-up over plain decoding; NaN: no such plan.
        details: [rows, cols] budgets, ``"4, 6"``.
        groups: [rows, cols] numbers into ``group_names``: which kind of hierarchy is best.
    """

    rows: tuple[str, ...]
    cols: tuple[str, ...]
    values: np.ndarray
    details: tuple[tuple[str, ...], ...]
    groups: np.ndarray | None = None
    group_names: tuple[str, ...] = ()


def pairs_of_exits(
    estimates: Estimates,
    exits: Mapping[int, int],
    budgets: tuple[int, int] | None = None,
    largest: int = 8,
) -> Sweep:
    """Rows: the intermediate verifier's exit; columns: the draft's; the lower triangle.

    Args:
        exits: layer → model number.
        budgets: of draft and verifier (on the diagonal the draft's); ``None``: the best ones up
            to ``largest`` for each pair.

    Raises:
        ValueError: no exits, or one whose number is not that of a model below the target.
    """
    for layer, number in exits.items():
        if not 0 <= number < estimates.target:
            raise ValueError(
                f"exit {layer} is model {number}, but the models below the target are "
                f"0 to {estimates.target - 1}"
            )
    if not exits:
        raise ValueError("there are no exits; give {layer: model number, ...}")
    layers = sorted(exits)
    count = len(layers)
    values = np.full((count, count), np.nan)
    details = [[""] * count for _ in layers]
    for r, c in product(range(count), range(count)):
        draft, middle = exits[layers[c]], exits[layers[r]]
        levels = (draft, estimates.target) if r == c else (draft, middle, estimates.target)
        if r < c or not all(estimates.can_draft(*pair) for pair in pairwise(levels)):
            continue
        choices = [budgets[: len(levels) - 1]] if budgets else None
        chain, ms = cheapest(estimates, levels, choices, largest)
        values[r, c] = estimates.plain_ms / ms
        details[r][c] = ", ".join(str(budget) for budget in chain.budgets)
    labels = tuple(str(layer) for layer in layers)
    return Sweep(labels, labels, values, tuple(map(tuple, details)))


def further_model(
    costs: Sequence[float],
    acceptances: Sequence[float],
    target_cost: float = 1024.0,
    drafter_cost: float = 256.0,
    acceptance: float = 0.5,
    largest: int = 15,
    price: Price = latency,
) -> Sweep:
    """P1 Table 9: target A, drafter B, and a model C of each cost (columns) and acceptance (rows).

    C's tokens are accepted by A as rarely as the triangle inequality allows: max(0, α_CB + α_BA −
    1). All budgets up to ``largest`` are tried, and priced by the exact model, overshoot handed up;
    the paper's own numbers come of ``price=corollary``.
    """
    hierarchies = {"A alone": (2,), "A-B": (1, 2), "A-C": (0, 2), "A-B-C": (0, 1, 2)}
    values = np.empty((len(acceptances), len(costs)))
    groups = np.empty(values.shape, dtype=int)
    details = [[""] * len(costs) for _ in acceptances]
    for (r, rate), (c, cost) in product(enumerate(acceptances), enumerate(costs)):
        through = max(0.0, rate + acceptance - 1)
        rates = [[None, rate, through], [None, None, acceptance], [None] * 3]
        estimates = ideal([cost, drafter_cost, target_cost], rates, longest=2 * largest + 1)
        found = [
            cheapest(estimates, levels, None, largest, price) for levels in hierarchies.values()
        ]
        # A tie goes to the smaller hierarchy: a model that saves nothing is not worth loading.
        groups[r, c] = min(range(len(found)), key=lambda i: (round(found[i][1], 9), i))
        chain, ms = found[groups[r, c]]
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


def cheapest(
    estimates: Estimates,
    levels: tuple[int, ...],
    choices: Iterable[tuple[int, ...]] | None = None,
    largest: int = 8,
    price: Price = latency,
) -> tuple[Chain, float]:
    """The best budgets for these levels, and its milliseconds a token; tries all of them."""
    if choices is None:
        choices = product(range(1, largest + 1), repeat=len(levels) - 1)
    priced = ((price(estimates, Chain(levels, tuple(b))).ms_per_token, b) for b in choices)
    ms, budgets = min(priced)
    return Chain(levels, tuple(budgets)), ms
