"""P2's negative result with measured numbers: two drafters interleaved, horizontal, and alone.

P2 could not run its method. Here α, β, c and c_s of the models at hand are measured and put into
Theorem 3.4, and the sound form of its Algorithm 2 is run beside the other ways to use the same
three models: tokens of M_q first and then of M_s (horizontal), and either drafter alone.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from hierspec.profiling import costs, rates
from hierspec.profiling.agreement import agreements, mean_agreement
from hierspec.profiling.candidates import load, parse
from hierspec.profiling.rounds import DraftingSettings
from hierspec_lab.bench.methods.ours import HierarchyMethod
from hierspec_lab.papers.lab import Lab, draft_level
from hierspec_lab.papers.measured import (
    SPEEDUP_COLUMNS,
    Measured,
    notes,
    require_all,
    side_by_side,
    speedups,
    uncompared_table,
)
from hierspec_lab.papers.tables import Curve, Figure, Reproduction, Table

from . import formula

BLOCKS = 4  # m of the sweep over n, as in ``p2-orders``
PER_BLOCK = (0, 1, 2, 3)  # n
REPEATS = 9  # of every timed call
LONGEST = 12  # tokens of a draft, in the search for the best lengths

Lengths = tuple[int, int]  # n of M_s (in each block where interleaved), m of M_q


@dataclass(frozen=True, slots=True)
class Inputs:
    """Inputs of Theorem 3.4.

    Attributes:
        alpha, beta: acceptances of M_q and M_s by M_p.
        c, c_s: cost(M_q) / cost(M_p) and cost(M_s) / cost(M_q).
    """

    alpha: float
    beta: float
    c: float
    c_s: float


def measure(lab: Lab) -> Reproduction:
    """Measure both tables and the figure at each of the lab's temperatures.

    Raises:
        HierspecError: fewer than two draft models, or no prompt.
    """
    lab.require("p2-models", drafts=2)
    tables, figures = [], []
    for temperature in lab.temperatures:
        key = f"inputs of the theorem, temperature {temperature:g}"
        stored = lab.once(key, lambda t=temperature: asdict(measure_inputs(lab, t)))
        inputs = Inputs(**stored)
        best = {order.name: (order.n, order.m) for order in _best_orders(inputs)}
        sweep = [("interleaved", (n, BLOCKS)) for n in PER_BLOCK]
        sweep += [("horizontal", (n * BLOCKS, BLOCKS)) for n in PER_BLOCK if n]
        chosen = [(name, best[name]) for name in ("small", "mid", "horizontal", "interleaved")]
        keys = list(dict.fromkeys((*sweep, *chosen)))
        methods = [build_method(lab, name, *lengths) for name, lengths in keys]
        plain, *measured = require_all(side_by_side(lab, methods, temperature, "p2-models"))
        by_order = {("plain", (0, 0)): plain, **dict(zip(keys, measured, strict=True))}
        tables.append(_orders(lab, temperature, inputs, by_order))
        tables.append(_sweep(lab, temperature, inputs, by_order))
        figures.append(_figure(lab, temperature, inputs, by_order))
    return Reproduction("p2-models", tuple(tables), tuple(figures), lab.to_dict())


def measure_inputs(lab: Lab, temperature: float) -> Inputs:
    """Measure α and β along the target's own texts, and costs of single calls of each model."""
    small, mid = lab.models.drafts[0], lab.models.drafts[-1]
    pool = load(lab.models.target, [parse(small), parse(mid)], lab.models.loaded)
    drafting = DraftingSettings(
        places=1, rounds=1, max_budget=1, temperature=temperature, seed=lab.seed
    )
    lab.report(f"acceptance and costs, temperature {temperature:g}", 0.0)
    texts = rates.continuations(pool, lab.prompts, lab.max_new_tokens, drafting)
    starts, stops = [len(p) for p in lab.prompts], [len(t) for t in texts]
    *_, scores = agreements(pool, texts, starts, stops, drafting)
    beta, alpha = (
        mean_agreement(scores, pair, greedy=not temperature) for pair in ((0, 2), (1, 2))
    )
    small_ms, mid_ms, target_ms = costs.single_calls(pool, texts[0], temperature, REPEATS)
    return Inputs(alpha, beta, mid_ms / target_ms, small_ms / mid_ms)


def build_method(lab: Lab, name: str, n: int, m: int) -> HierarchyMethod:
    """Return a way to use the three models, verified tokenwise, as the theorem assumes."""
    small, mid = lab.models.drafts[0], lab.models.drafts[-1]
    if not n or not m:
        levels = [draft_level(small, n) if n else draft_level(mid, m)]
    elif name == "interleaved":
        parts = [[draft_level(small, n)], [draft_level(mid, 1)]]
        levels = [{"method": "concatenate", "parts": parts, "repeat": m}]
    else:
        levels = [
            {"method": "concatenate", "parts": [[draft_level(mid, m)], [draft_level(small, n)]]}
        ]
    return HierarchyMethod(f"{name} {n} {m}", lab.models, levels, verify="tokenwise")


def theorem(inputs: Inputs, name: str, n: int, m: int) -> tuple[float, float]:
    """Return tokens a call and speed-up by the formula."""
    interleaved = name == "interleaved"
    tokens = formula.interleaved_tokens if interleaved else formula.horizontal_tokens
    speedup = formula.interleaved_speedup if interleaved else formula.horizontal_speedup
    return (
        float(tokens(inputs.alpha, inputs.beta, n, m)),
        float(speedup(inputs.alpha, inputs.beta, inputs.c, inputs.c_s, n, m)),
    )


def _best_orders(inputs: Inputs) -> tuple[formula.Ordering, ...]:
    return formula.compare_orders(inputs.alpha, inputs.beta, inputs.c, inputs.c_s, LONGEST)


MeasuredByOrder = dict[tuple[str, Lengths], Measured]  # by order and its lengths


def _orders(lab: Lab, temperature: float, inputs: Inputs, by_order: MeasuredByOrder) -> Table:
    lengths = {order.name: (order.n, order.m) for order in _best_orders(inputs)}
    single = max(
        (by_order[name, lengths[name]] for name in ("small", "mid")),
        key=lambda measured: measured.speedup.median,
    )
    speedup = by_order["interleaved", lengths["interleaved"]].speedup_over(single.runs)
    return uncompared_table(
        f"Orders, temperature {temperature:g}",
        f"M_s = {lab.models.drafts[0]}, M_q = {lab.models.drafts[-1]}, M_p = "
        f"{lab.target}; each at its best lengths by the formula",
        "way",
        [
            (name, _figures(inputs, name, order_lengths, by_order, temperature))
            for name, order_lengths in lengths.items()
        ],
        ("n of M_s", "m of M_q", *_COLUMNS),
        {"alpha": inputs.alpha, "beta": inputs.beta, "c": inputs.c, "c_s": inputs.c_s},
        notes=(
            f"Measured: α = {inputs.alpha:.3f}, β = {inputs.beta:.3f} along the target's own text; "
            f"c = {inputs.c:.3f}, c_s = {inputs.c_s:.3f} of single calls.",
            f"Interleaved over the faster single draft, per prompt: "
            f"{speedup.format(unit='')}; P2's finding is that this is below 1.",
            "The formula takes acceptances to be independent and a check of any length to cost one "
            "call; what it leaves out is the difference between its column and the measured one.",
            *notes(lab),
        ),
    )


def _sweep(lab: Lab, temperature: float, inputs: Inputs, by_order: MeasuredByOrder) -> Table:
    orders = [(n, "interleaved", n) for n in PER_BLOCK]
    orders += [(n, "horizontal", n * BLOCKS) for n in PER_BLOCK if n]
    rows = [
        (f"{name} {n}", _figures(inputs, name, (num_small, BLOCKS), by_order, temperature)[2:])
        for n, name, num_small in sorted(orders, key=lambda order: order[0])
    ]
    return uncompared_table(
        f"Theorem 3.4, temperature {temperature:g}",
        f"{BLOCKS} blocks, each n tokens of M_s and then 1 of M_q; beside it as many tokens of "
        "both in line, those of M_q first",
        "order, n",
        rows,
        _COLUMNS,
        {"m": BLOCKS, "alpha": inputs.alpha, "beta": inputs.beta, "c": inputs.c, "c_s": inputs.c_s},
        notes=(
            "interleaved 0 is M_q alone. P2's Figure 1 is a picture: no printed numbers.",
            "The sound form: ratio and residual with the distribution of the model that drafted "
            "the slot; as printed, Algorithm 2 is lossy.",
        ),
    )


def _figure(lab: Lab, temperature: float, inputs: Inputs, by_order: MeasuredByOrder) -> Figure:
    curves = []
    x = tuple(map(float, PER_BLOCK))
    for name, factor in (("interleaved", 1), ("horizontal", BLOCKS)):
        # Without a token of M_s the two orders are the same.
        keys = [(name if n else "interleaved", (n * factor, BLOCKS)) for n in PER_BLOCK]
        predicted = tuple(theorem(inputs, order, *lengths)[1] for order, lengths in keys)
        curves.append(Curve(f"{name}, formula", x, predicted))
        measured = [by_order[key] for key in keys]
        curves.append(speedups(f"{name}, measured", x, measured, "points"))
    return Figure(
        f"Figure 1, temperature {temperature:g}",
        f"speed-up over tokens of M_s per block, m = {BLOCKS}",
        "n, tokens of M_s per token of M_q",
        "speed-up over plain decoding",
        tuple(curves),
        notes=notes(lab),
    )


_COLUMNS = ("tokens by formula", "tokens a call", "by formula", *SPEEDUP_COLUMNS, "same as plain")


def _figures(
    inputs: Inputs, name: str, lengths: Lengths, by_order: MeasuredByOrder, temperature: float
) -> tuple:
    measured = by_order[name, lengths]
    tokens, speedup = theorem(inputs, name, *lengths)
    return (
        *lengths,
        *(tokens, measured.tokens_per_call, speedup),
        *measured.speedup_cells,
        measured.same_as_plain_cell(temperature),
    )
