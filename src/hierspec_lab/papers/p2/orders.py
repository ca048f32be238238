"""P2's negative result: its formula, the other ways to use its three models, and simulations.

P2 prints no numbers (its Figure 1 is a picture), so formulas are compared with simulations, not
with printed cells, and the figure's panels have values of our own. α, β, c and c_s are those of
:mod:`hierspec_lab.papers.p2.formula`.
"""

from __future__ import annotations

import numpy as np

from hierspec.planner.estimates import Chain
from hierspec_lab.papers.tables import Curve, Figure, Reproduction, Table, TableRow
from hierspec_lab.planning.simulated import build_root
from hierspec_lab.simulation import CoinFlips, Simulation, simulate

from . import formula

ALPHA, BETA, C, C_S, M = 0.8, 0.5, 0.1, 0.1, 4
LONGEST_N = 16
ROUNDS = 4000  # of each simulation: errors near 1 %

_COSTS = (C * C_S, C, 1.0)  # of M_s, M_q and M_p: in calls of M_p, so 1 / latency is the speed-up
_RATES = ((0.0, 0.0, BETA), (0.0, 0.0, ALPHA), (0.0, 0.0, 0.0))
BLOCKS = (1, 2, 4, 8)  # m, a curve each in a panel
PANELS = ((0.3, 0.05), (0.5, 0.1), (0.7, 0.2), (0.78, 0.1))  # β and c_s: better models cost more
_INPUTS = {"alpha": ALPHA, "beta": BETA, "c": C, "c_s": C_S}


def compute() -> Reproduction:
    """Return both tables, the panels of Figure 1, and whether a small model pays in each."""
    return Reproduction("p2-orders", (_lengths(), _orders(), _panels()), _figure_1())


def simulate_order(name: str, n: int, m: int) -> Simulation:
    """Simulate one way to use the three models, named as in :class:`Ordering`."""
    if name == "plain" or n + m == 0:
        chain = Chain((2,))
    elif n == 0:
        chain = Chain((1, 2), (m,))
    elif m == 0:
        chain = Chain((0, 2), (n,))
    else:
        order = "interleaved" if name == "interleaved" else "horizontal"
        chain = Chain((0, 1, 2), (n, m), order=order)
    return simulate(build_root(chain), CoinFlips(_RATES, seed=n), _COSTS, ROUNDS)


def _figure_1() -> tuple[Figure, ...]:
    """Return the panels: tokens and speed-up over n, with a curve for each m; α and c are fixed."""
    ns = np.arange(LONGEST_N + 1)
    panels = []
    for beta, c_s in PANELS:
        tokens = [formula.interleaved_tokens(ALPHA, beta, ns, m) for m in BLOCKS]
        speedups = [formula.interleaved_speedup(ALPHA, beta, C, c_s, ns, m) for m in BLOCKS]
        for quantity, y_label, values in (
            ("tokens", "tokens a call", tokens),
            ("time", "speed-up over plain decoding", speedups),
        ):
            curves = tuple(
                Curve(f"m = {m}", tuple(map(float, ns)), tuple(map(float, y)))
                for m, y in zip(BLOCKS, values, strict=True)
            )
            panels.append(
                Figure(
                    f"Figure 1, {quantity}, β = {beta}",
                    f"α = {ALPHA}, β = {beta}, c = {C}, c_s = {c_s}",
                    "n, tokens of M_s in a block",
                    y_label,
                    curves,
                    notes=("n = 0 is M_q alone. P2 does not print its values of α, β, c and c_s.",),
                )
            )
    return tuple(panels)


def _panels() -> Table:
    """Return a table of the best n for each panel and m, and its gain over M_q alone."""
    rows = []
    for beta, c_s in PANELS:
        for m in BLOCKS:
            speedups = formula.interleaved_speedup(ALPHA, beta, C, c_s, np.arange(LONGEST_N + 1), m)
            best = int(speedups.argmax())
            figures = (m, best, *(float(speedups[n]) for n in (best, 0, -1)))
            rows.append(TableRow(f"{beta}, {c_s}", (), figures))
    return Table(
        "Figure 1",
        f"the best n of each curve, beside M_q alone (n = 0) and n = {LONGEST_N}",
        "β, c_s",
        (),
        tuple(rows),
        ("m", "best n", "speed-up at best n", "at n = 0", f"at n = {LONGEST_N}"),
        {"alpha": ALPHA, "c": C, "panels": [list(panel) for panel in PANELS]},
        notes=(
            "P2's reading of its picture: a smaller model does not help in most cases, longer runs "
            "of it hurt, and a better one permits more m at which it helps. A small m leaves the "
            "most to gain: there M_q drafts too few tokens by itself.",
        ),
    )


def _lengths() -> Table:
    rows = []
    for n in range(LONGEST_N + 1):
        figures = (
            float(formula.interleaved_speedup(ALPHA, BETA, C, C_S, n, M)),
            *_speedup(simulate_order("interleaved", n, M)),
            float(formula.horizontal_speedup(ALPHA, BETA, C, C_S, n * M, M)),
            *_speedup(simulate_order("horizontal", n * M, M)),
        )
        rows.append(TableRow(str(n), (), figures))
    return Table(
        "Theorem 3.4",
        f"speed-up of {M} blocks, each n tokens of M_s and then 1 of M_q; beside it as many "
        "tokens of both in line, those of M_q first",
        "n",
        (),
        tuple(rows),
        (
            "interleaved",
            "interleaved simulated",
            "interleaved error",
            "horizontal",
            "horizontal simulated",
            "horizontal error",
        ),
        {**_INPUTS, "m": M, "rounds": ROUNDS},
        notes=(
            f"α = {ALPHA}, β = {BETA}, c = c_s = {C}, m = {M}; n = 0 is M_q alone. Errors are "
            f"standard errors of {ROUNDS} simulated rounds.",
            "P2 prints no numbers to compare with: its Figure 1 is a picture.",
            "Every token of M_s in a block makes it slower here, down to below plain decoding, as "
            "P2 finds: a rejected one makes all that follow it worthless. In line, at the same "
            "cost, those of M_q come first and lose nothing.",
            "Algorithm 2 as printed emits from full p after a rejection and is lossy; tokens and "
            "costs are those of its sound form too, which draws from the residual of the model "
            "that drafted the slot.",
        ),
    )


def _orders() -> Table:
    return Table(
        "Orders",
        "the best of each way to use the three models, at most 15 tokens a draft",
        "way",
        (),
        tuple(map(_order_row, formula.compare_orders(ALPHA, BETA, C, C_S))),
        ("n of M_s", "m of M_q", "tokens a call", "speed-up", "simulated", "error"),
        {**_INPUTS, "longest": 15, "rounds": ROUNDS},
        notes=(
            "small and mid are single drafts by M_s and M_q. Interleaving never beats both of "
            "them, at any α, β, c and c_s.",
            "The horizontal order yields at least as many tokens at equal cost whenever α ≥ β, "
            "and here it beats every other.",
        ),
    )


def _order_row(ordering: formula.Ordering) -> TableRow:
    simulation = simulate_order(ordering.name, ordering.n, ordering.m)
    figures = (ordering.n, ordering.m, ordering.tokens, ordering.speedup, *_speedup(simulation))
    return TableRow(ordering.name, (), figures)


def _speedup(simulation: Simulation) -> tuple[float, float]:
    """Return the speed-up over plain decoding, which costs 1 a token, and its standard error."""
    ms = simulation.ms_per_token
    return 1.0 / ms, simulation.standard_error / ms**2
