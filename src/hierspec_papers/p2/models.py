"""P2's negative result with measured numbers: two drafters interleaved, horizontal, and alone.

P2 could not run its method. Here α, β, c and c_s of the models at hand are measured and put into
Theorem 3.4, and the sound form of its Algorithm 2 is run beside the other ways to use the same
three models: tokens of M_q first and then of M_s (horizontal), and either drafter alone.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial

from hierspec.bench.methods.ours import HierarchyMethod
from hierspec.profiling import costs, rates
from hierspec.profiling.agreement import agreements
from hierspec.profiling.candidates import load, parse
from hierspec.profiling.rounds import DraftingPlan
from hierspec_papers.lab import Lab, draft_level
from hierspec_papers.measured import (
    INTERVAL,
    Measured,
    all_ran,
    notes,
    own_table,
    side_by_side,
    speedups,
)
from hierspec_papers.tables import Curve, Figure, Reproduction, Table

from .formula import (
    compare,
    horizontal_speedup,
    horizontal_tokens,
    interleaved_speedup,
    interleaved_tokens,
)

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
        given = Inputs(**lab.once(key, partial(_inputs, lab, temperature)))
        best = {order.name: (order.n, order.m) for order in _compare(given)}
        sweep = [("interleaved", (n, BLOCKS)) for n in PER_BLOCK]
        sweep += [("horizontal", (n * BLOCKS, BLOCKS)) for n in PER_BLOCK if n]
        chosen = [(name, best[name]) for name in ("small", "mid", "horizontal", "interleaved")]
        wanted = list(dict.fromkeys((*sweep, *chosen)))
        methods = [method(lab, name, *lengths) for name, lengths in wanted]
        plain, *found = all_ran(side_by_side(lab, methods, temperature, "p2-models"))
        ran = {("plain", (0, 0)): plain, **dict(zip(wanted, found, strict=True))}
        tables += [_orders(lab, temperature, given, ran), _sweep(lab, temperature, given, ran)]
        figures.append(_figure(lab, temperature, given, ran))
    return Reproduction("p2-models", tuple(tables), tuple(figures), lab.to_dict())


def inputs(lab: Lab, temperature: float) -> Inputs:
    """Measure α and β along the target's own texts, and costs of single calls of each model."""
    small, mid = lab.models.drafts[0], lab.models.drafts[-1]
    pool = load(lab.models.target, [parse(small), parse(mid)], lab.models.loaded)
    plan = DraftingPlan(places=1, rounds=1, max_budget=1, temperature=temperature, seed=lab.seed)
    lab.report(f"acceptance and costs, temperature {temperature:g}", 0.0)
    texts = rates.continuations(pool, lab.prompts, lab.max_new_tokens, plan)
    starts, stops = [len(p) for p in lab.prompts], [len(t) for t in texts]
    sums, _ = agreements(pool, texts, starts, stops, plan)
    beta, alpha = (
        (found.overlap if temperature else found.equal) / max(found.positions, 1)
        for found in (sums[0, 2], sums[1, 2])
    )
    small_ms, mid_ms, target_ms = costs.single_calls(pool, texts[0], temperature, REPEATS)
    return Inputs(alpha, beta, mid_ms / target_ms, small_ms / mid_ms)


def _inputs(lab: Lab, temperature: float) -> dict[str, float]:
    return asdict(inputs(lab, temperature))  # ready for JSON


def method(lab: Lab, name: str, n: int, m: int) -> HierarchyMethod:
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


def theorem(given: Inputs, name: str, n: int, m: int) -> tuple[float, float]:
    """Return tokens a call and speed-up by the formula."""
    interleaved = name == "interleaved"
    tokens = interleaved_tokens if interleaved else horizontal_tokens
    speedup = interleaved_speedup if interleaved else horizontal_speedup
    return (
        float(tokens(given.alpha, given.beta, n, m)),
        float(speedup(given.alpha, given.beta, given.c, given.c_s, n, m)),
    )


def _compare(given: Inputs):
    return compare(given.alpha, given.beta, given.c, given.c_s, LONGEST)


Ran = dict[tuple[str, Lengths], Measured]


def _orders(lab: Lab, temperature: float, given: Inputs, ran: Ran) -> Table:
    orders = _compare(given)
    lengths = {order.name: (order.n, order.m) for order in orders}
    mixed = ran["interleaved", lengths["interleaved"]]
    single = max(
        (ran[name, lengths[name]] for name in ("small", "mid")),
        key=lambda method: method.speedup.median,
    )
    gap = mixed.over(single.runs)
    return own_table(
        f"Orders, temperature {temperature:g}",
        f"M_s = {lab.models.drafts[0]}, M_q = {lab.models.drafts[-1]}, M_p = "
        f"{lab.target}; each at its best lengths by the formula",
        "way",
        [
            (order.name, _figures(given, order.name, (order.n, order.m), ran, temperature))
            for order in orders
        ],
        ("n of M_s", "m of M_q", *_COLUMNS),
        {"alpha": given.alpha, "beta": given.beta, "c": given.c, "c_s": given.c_s},
        notes=(
            f"Measured: α = {given.alpha:.3f}, β = {given.beta:.3f} along the target's own text; "
            f"c = {given.c:.3f}, c_s = {given.c_s:.3f} of single calls.",
            f"Interleaved over the faster single draft, per prompt: "
            f"{gap.format(unit='')}; P2's finding is that this is below 1.",
            "The formula takes acceptances to be independent and a check of any length to cost one "
            "call; what it leaves out stands between its column and the measured one.",
            *notes(lab),
        ),
    )


def _sweep(lab: Lab, temperature: float, given: Inputs, ran: Ran) -> Table:
    ways = [("interleaved", 1, n) for n in PER_BLOCK]
    ways += [("horizontal", BLOCKS, n) for n in PER_BLOCK if n]
    rows = [
        (f"{name} {n}", _figures(given, name, (n * each, BLOCKS), ran, temperature)[2:])
        for name, each, n in sorted(ways, key=lambda way: way[2])
    ]
    return own_table(
        f"Theorem 3.4, temperature {temperature:g}",
        f"{BLOCKS} blocks, each n tokens of M_s and then 1 of M_q; beside it as many tokens of "
        "both in line, those of M_q first",
        "order, n",
        rows,
        _COLUMNS,
        {"m": BLOCKS, "alpha": given.alpha, "beta": given.beta, "c": given.c, "c_s": given.c_s},
        notes=(
            "interleaved 0 is M_q alone. P2's Figure 1 is a picture: no printed numbers.",
            "The sound form: ratio and residual with the law of the model that drafted the slot; "
            "as printed, Algorithm 2 is lossy.",
        ),
    )


def _figure(lab: Lab, temperature: float, given: Inputs, ran: Ran) -> Figure:
    curves = []
    for name, each in (("interleaved", 1), ("horizontal", BLOCKS)):
        lengths = [(n, ("interleaved", (0, BLOCKS)) if n == 0 else (name, (n * each, BLOCKS)))
                   for n in PER_BLOCK]  # fmt: skip
        x = tuple(float(n) for n, _ in lengths)
        formula = tuple(theorem(given, way, *at)[1] for _, (way, at) in lengths)
        curves.append(Curve(f"{name}, formula", x, formula))
        found = [ran[key] for _, key in lengths]
        curves.append(speedups(f"{name}, measured", x, found, "points"))
    return Figure(
        f"Figure 1, temperature {temperature:g}",
        f"speed-up over tokens of M_s per block, m = {BLOCKS}",
        "n, tokens of M_s per token of M_q",
        "speed-up over plain decoding",
        tuple(curves),
        notes=notes(lab),
    )


_COLUMNS = ("tokens by formula", "tokens a call", "by formula", *INTERVAL, "same as plain")


def _figures(given: Inputs, name: str, lengths: Lengths, ran: Ran, temperature: float) -> tuple:
    measured = ran[name, lengths]
    tokens, speedup = theorem(given, name, *lengths)
    return (
        *lengths,
        *(tokens, measured.tokens_per_call, speedup),
        *measured.interval,
        measured.same(temperature),
    )
