"""P1's Tables 1, 8 and 9, from the inputs it prints (Tables 6 and 7, Appendix B.3 and B.4).

Numbers are by the formula of Corollary 3.1 with γ exact, for the best models and budgets T ≤ 15.
Where they differ from the printed ones, notes say why, as far as it can be known.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hierspec.planner.estimates import Chain, Estimates, ideal
from hierspec.planner.latency import latency
from hierspec_lab.papers.tables import Cell, Reproduction, Table, TableRow
from hierspec_lab.planning.dynamic import build_graph, rank_chains

LARGEST_BUDGET = 15  # "a sufficiently large maximum value for T" [P1 §4.2]

FIRST_COSTS = (1e-5, 0.003, 0.01, 0.25, 4.0, 33.0)
SECOND_COSTS = (5e-5, 2e-4, 0.05, 2.0, 8.0, 33.0)

# Tables 6 and 7: row i, acceptance of model i's tokens by models i + 1 … 6.
TABLE_6 = (
    (0.75, 0.5, 0.25, 0.0, 0.0),
    (0.75, 0.5, 0.25, 0.05),
    (0.75, 0.5, 0.3),
    (0.75, 0.55),
    (0.8,),
)
TABLE_7 = (
    (0.525, 0.125, 0.0, 0.0, 0.0),
    (0.6, 0.275, 0.025, 0.0),
    (0.675, 0.425, 0.225),
    (0.75, 0.55),
    (0.8,),
)

# Tables 1 and 8: (expected speed-up, expected latency) with the 1 … 6 largest models.
TABLE_1 = (
    ("1.0000", "33.00"),
    ("2.2971", "14.37"),
    ("3.0211", "10.89"),
    ("3.0620", "10.64"),
    ("3.0829", "10.63"),
    ("3.0839", "10.61"),
)
TABLE_8 = (
    ("1.0000", "33.00"),
    ("1.7090", "19.31"),
    ("2.1366", "15.45"),
    ("2.2587", "14.61"),
    ("2.2817", "14.46"),
    ("2.2910", "14.40"),
)

# Table 9: rows are the acceptance of C's tokens by B, columns the cost of C.
TABLE_9 = """
1.20 1.20 1.20 1.20 1.20 1.20 1.20 1.20 1.20
1.20 1.20 1.20 1.20 1.20 1.20 1.20 1.20 1.20
1.21 1.21 1.20 1.20 1.20 1.20 1.20 1.20 1.20
1.23 1.23 1.22 1.22 1.21 1.20 1.20 1.20 1.20
1.25 1.25 1.24 1.24 1.23 1.21 1.20 1.20 1.20
1.27 1.27 1.27 1.26 1.25 1.23 1.20 1.20 1.20
1.30 1.29 1.29 1.28 1.27 1.25 1.22 1.20 1.20
1.34 1.33 1.33 1.32 1.30 1.28 1.24 1.20 1.20
1.42 1.41 1.40 1.38 1.35 1.31 1.27 1.21 1.20
1.65 1.64 1.63 1.60 1.55 1.48 1.39 1.25 1.20
"""
COST_A, COST_B, RATE_B_A = 1024.0, 256.0, 0.5
COSTS_C = tuple(2.0**i for i in range(9))
RATES_C_B = tuple(i / 10 for i in range(10))

_ESTIMATED = "P1 estimates γ by simulation (§2.4); here it is exact."


def compute() -> Reproduction:
    """Compute all three tables."""
    first = _by_number_of_models(
        "Table 1",
        "first example",
        (FIRST_COSTS, TABLE_6),
        TABLE_1,
        (
            _ESTIMATED,
            "The printed columns disagree with each other: from {rows} models on, the latency "
            "divided into 33 is not the printed speed-up at any rounding (three models: 33 / "
            "10.89 = 3.0303, printed 3.0211). So no computation can match both.",
            "With overshoot handed up, as Algorithm 1 does, the same plans cost what the last "
            "column says: the printed latencies lie between that and the formula.",
        ),
    )
    second = _by_number_of_models(
        "Table 8",
        "second example",
        (SECOND_COSTS, TABLE_7),
        TABLE_8,
        (
            _ESTIMATED,
            "Two models need no γ: 33 / 19.3089 is 1.7091; 33 over the rounded 19.31 is 1.7090.",
            "The printed column cannot come from the printed inputs: its 15.45 for three models "
            "lies below 15.88, which no hierarchy of these three can go below by Wald's identity, "
            "overshoot handed up or not.",
        ),
    )
    return Reproduction("p1-tables", (first, second, _table_9()))


def example(costs: Sequence[float], rates: Sequence[Sequence[float]], models: int) -> Estimates:
    """Return estimates for the largest ``models`` of an example, named as in P1: M1 is smallest."""
    count = len(costs)
    square: list[list[float | None]] = [[None] * count for _ in range(count)]
    for i, row in enumerate(rates):
        square[i][i + 1 :] = row
    return ideal(
        costs[-models:],
        [row[-models:] for row in square[-models:]],
        [f"M{i + 1}" for i in range(count)][-models:],
        LARGEST_BUDGET,
    )


def triple(cost: float, rate: float) -> Estimates:
    """Return estimates for C, B and A of Table 9, from C's cost and acceptance by B.

    C's acceptance by A is the least that the triangle inequality allows: α_CB + α_BA ≤ α_CA + 1
    [P1 Appendix B.3], "a lower bound" in B.4.
    """
    lowest = max(0.0, round(rate + RATE_B_A - 1.0, 12))
    return ideal(
        (cost, COST_B, COST_A),
        ((None, rate, lowest), (None, None, RATE_B_A), (None, None, None)),
        ("C", "B", "A"),
        LARGEST_BUDGET,
    )


def best_plan(estimates: Estimates) -> tuple[float, Chain]:
    """Return the lowest latency by the formula, and the plan that has it."""
    return rank_chains(build_graph(estimates))[0]


def _by_number_of_models(
    name: str,
    caption: str,
    inputs: tuple[Sequence[float], Sequence[Sequence[float]]],
    printed: Sequence[tuple[str, str]],
    notes: tuple[str, ...],
) -> Table:
    rows = []
    for models, (speedup, ms) in enumerate(printed, 1):
        estimates = example(*inputs, models)
        ms_planned, chain = best_plan(estimates)
        rows.append(
            TableRow(
                str(models),
                (Cell(speedup, estimates.plain_ms / ms_planned), Cell(ms, ms_planned)),
                (
                    [estimates.names[i] for i in chain.models],
                    list(chain.budgets),
                    latency(estimates, chain).ms_per_token,
                ),
            )
        )
    inconsistent = [n for n, row in enumerate(printed, 1) if not _consistent(*row)]
    return Table(
        name,
        f"{caption}: speed-up and latency with the largest models, one more at a time",
        "number of models",
        ("speed-up", "latency"),
        tuple(rows),
        ("levels", "num_speculative_tokens", "latency with overshoot"),
        as_inputs(*inputs),
        notes=tuple(note.format(rows=(*inconsistent, "no")[0]) for note in notes),
    )


def as_inputs(
    costs: Sequence[float], rates: Sequence[Sequence[float]], **settings: Any
) -> dict[str, Any]:
    """Return an example's costs and rates as a table's ``inputs``."""
    square = [[None] * (i + 1) + list(row) for i, row in enumerate([*rates, ()])]
    largest = {"max_speculative_tokens": LARGEST_BUDGET}
    return {"costs": list(costs), "acceptance": square, **largest, **settings}


def _consistent(speedup: str, ms: str, plain: float = 33.0) -> bool:
    """Return whether a latency and a speed-up that round to these can multiply to ``plain``."""
    low = (float(speedup) - 5e-5) * (float(ms) - 5e-3)
    return low <= plain <= (float(speedup) + 5e-5) * (float(ms) + 5e-3)


def _table_9() -> Table:
    rows = []
    printed = [line.split() for line in TABLE_9.strip().splitlines()]
    for rate, line in zip(RATES_C_B, printed, strict=True):
        cells = []
        for cost, text in zip(COSTS_C, line, strict=True):
            estimates = triple(cost, rate)
            ms, chain = best_plan(estimates)
            models = "-".join(estimates.names[i] for i in reversed(chain.models))
            cells.append(Cell(text, COST_A / ms, models))
        rows.append(TableRow(f"{rate:.1f}", tuple(cells)))
    return Table(
        "Table 9",
        "speed-up of the best hierarchy of A, B and C by C's cost and acceptance by B",
        "acceptance of C by B",
        tuple(f"{cost:.1f}" for cost in COSTS_C),
        tuple(rows),
        inputs={
            "costs": {"A": COST_A, "B": COST_B, "C": list(COSTS_C)},
            "acceptance": {"B by A": RATE_B_A, "C by B": list(RATES_C_B)},
            "max_speculative_tokens": LARGEST_BUDGET,
        },
        grid=True,
        notes=(
            "C's acceptance by A is the least that the triangle inequality allows: "
            "max(0, α_CB + 0.5 - 1).",
            "The printed header names eight costs for nine columns: the ninth is 256.",
            f"{_ESTIMATED} Cells that differ do so by one unit of 0.01.",
            "The colours that marked the best hierarchies are lost in the text, so these are not "
            "compared.",
        ),
    )
