"""P3's Figures 5, 6 and 8: which two exits to use, measured on the early exits of any target.

P3's claims: the pair near (L/8, L/4) is the fastest, and both earlier and later intermediate exits
are slower; and against a single exit (LayerSkip) the intermediate check raises acceptance by the
target and throughput together.

Where the target has trained exit heads, only their exits are tried. A table says how much memory
each choice needs beyond the target: computed, not measured.
"""

from __future__ import annotations

from collections.abc import Sequence

from hierspec.methods.early_exit import trained_exits
from hierspec_lab.bench.memory import weight_bytes
from hierspec_lab.bench.methods.ours import HierarchyMethod
from hierspec_lab.papers.lab import Lab
from hierspec_lab.papers.measured import (
    SPEEDUP_COLUMNS,
    Measured,
    notes,
    require_all,
    side_by_side,
    uncompared_table,
)
from hierspec_lab.papers.tables import Curve, Figure, Grid, Reproduction, Table

from .systems import (
    N_D,
    N_I,
    cache_bytes,
    candidate_exits,
    default_exits,
    head_bytes,
    hispec,
    single_exit,
)

RULES = ("leading", "tokenwise", "block")  # at the intermediate exit
PRINTED_PAIR = "3-8 of 32 layers"  # P3 Appendix C: the fastest pair of Llama3-8B
_COLUMNS = (*SPEEDUP_COLUMNS, "tokens a call", "kept by target", "same as plain")

ExitPair = tuple[int, int]


def measure(lab: Lab) -> Reproduction:
    """Measure every pair and every single exit, at each of the lab's temperatures.

    Raises:
        HierspecError: the target is too shallow for two exits.
    """
    default = default_exits(lab.models)
    exits = candidate_exits(lab.models)
    pairs = [(low, high) for low in exits for high in exits if low < high]
    single_methods = [single_exit(lab.models, layer) for layer in exits]
    pair_methods = [hispec(lab.models, *pair) for pair in pairs]
    other_rules = [hispec(lab.models, *default, rule=rule) for rule in RULES[1:]]
    methods = [*single_methods, *pair_methods, *other_rules]
    tables, figures = [], []
    for temperature in lab.temperatures:
        measured = require_all(side_by_side(lab, methods, temperature, "p3-exits"))[1:]
        by_exit = dict(zip(exits, measured[: len(exits)], strict=True))
        by_pair = dict(zip(pairs, measured[len(exits) :], strict=False))
        rules = [by_pair[default], *measured[len(exits) + len(pairs) :]]
        tables += [
            _throughput(lab, temperature, by_exit, by_pair, default),
            _rules(lab, temperature, default, rules),
        ]
        figures += [
            _grid(lab, temperature, exits, by_pair, default),
            _tradeoff(lab, temperature, by_exit, by_pair),
        ]
    labels = [*map(str, exits), *(_label(pair, default) for pair in pairs)]
    tables.append(_memory(lab, labels, [*single_methods, *pair_methods]))
    return Reproduction("p3-exits", tuple(tables), tuple(figures), lab.to_dict())


def _throughput(
    lab: Lab,
    temperature: float,
    by_exit: dict[int, Measured],
    by_pair: dict[ExitPair, Measured],
    default: ExitPair,
) -> Table:
    by_label = {str(layer): measured for layer, measured in by_exit.items()}
    by_label |= {_label(pair, default): measured for pair, measured in by_pair.items()}
    rows = [(label, measured.cells(temperature, -1)) for label, measured in by_label.items()]
    fastest = max(by_pair, key=lambda pair: _speed(by_pair[pair]))
    return uncompared_table(
        f"Figures 5 and 8, temperature {temperature:g}",
        "throughput over plain decoding: single exits (LayerSkip), and draft-intermediate pairs",
        "exits",
        rows,
        _COLUMNS,
        {"num_layers": lab.models.num_layers, "N_d": N_D, "N_i": N_I, "single": N_I},
        notes=(
            f"Fastest pair here: {fastest[0]}-{fastest[1]} of {lab.models.num_layers} layers; the "
            f"default is {default[0]}-{default[1]}. P3's fastest: {PRINTED_PAIR}. Neighbours whose "
            "intervals overlap are not told apart.",
            f"A single exit drafts {N_I} tokens, as many as HiSpec holds for the target; kept by "
            "target: share of the tokens handed to it.",
            *_heads_note(lab),
            *notes(lab),
        ),
    )


def _rules(lab: Lab, temperature: float, default: ExitPair, rules: list[Measured]) -> Table:
    greedy = (
        "Greedy distributions have one token each, so the three rules are one: differences in "
        "speed are what this measurement cannot tell apart."
    )
    sampled = (
        "All three are lossless here: under sampling leading hands up the distribution of its "
        "mixture, and the target verifies against that."
    )
    return uncompared_table(
        f"Intermediate rules, temperature {temperature:g}",
        f"the pair {default[0]}-{default[1]} under each rule of the intermediate exit",
        "rule",
        [
            (rule, (*measured.cells(temperature, -1), measured.acceptance(0)))
            for rule, measured in zip(RULES, rules, strict=True)
        ],
        (*_COLUMNS, "kept by intermediate"),
        notes=(greedy if temperature == 0 else sampled,),
    )


def _memory(lab: Lab, labels: Sequence[str], methods: Sequence[HierarchyMethod]) -> Table:
    """Return a table of the bytes that single exits and pairs need beyond plain decoding's."""
    plain = HierarchyMethod("plain", lab.models)
    weights, caches = weight_bytes(plain), cache_bytes(plain)
    weights_text = "" if weights is None else f"{weights:,} bytes of weights, "
    return uncompared_table(
        "Memory",
        "bytes that single exits and pairs need beyond the target's, computed from the models",
        "exits",
        [
            (label, (head_bytes(method), cache_bytes(method) - caches))
            for label, method in zip(labels, methods, strict=True)
        ],
        ("weights", "caches per token"),
        {"target weights": weights, "target caches per token": caches},
        notes=(
            "weights: of trained heads, none where an exit scores with the target's own. caches: "
            "hidden states at each exit; keys and values are the target's own [P3 §3.1].",
            f"The target's own: {weights_text}{caches:,} bytes of caches per token.",
        ),
    )


def _heads_note(lab: Lab) -> tuple[str, ...]:
    heads, trained = trained_exits(lab.target)
    if not heads:
        return ()
    layers = ", ".join(map(str, trained))
    return (f"Exits after layers {layers} have heads trained for them ({heads}).",)


def _grid(
    lab: Lab,
    temperature: float,
    exits: tuple[int, ...],
    by_pair: dict[ExitPair, Measured],
    pair: ExitPair,
) -> Figure:
    drafts, intermediates = exits[:-1], exits[1:]
    values = tuple(
        tuple(_speed(by_pair[low, high]) if (low, high) in by_pair else None for low in drafts)
        for high in intermediates
    )
    rows, columns = (
        tuple(f"{n} (default)" if n == default else str(n) for n in layers)
        for layers, default in ((intermediates, pair[1]), (drafts, pair[0]))
    )
    return Figure(
        f"Figure 8, temperature {temperature:g}",
        f"throughput of exit pairs over plain decoding, {lab.target}",
        "exit that drafts (layer)",
        "exit that verifies in between (layer)",
        grid=Grid(rows, columns, values),
        notes=(
            f"P3 circles the default pair, near L/8 and L/4: here {pair[0]}-{pair[1]}. Its own "
            f"fastest is {PRINTED_PAIR}; its bottom row (last intermediate exit) is slowest.",
            *notes(lab),
        ),
    )


def _tradeoff(
    lab: Lab, temperature: float, by_exit: dict[int, Measured], by_pair: dict[ExitPair, Measured]
) -> Figure:
    drafts = {low for low, _ in by_pair}
    best = max(drafts, key=lambda layer: _speed(by_exit[layer]))
    chosen = {high: measured for (low, high), measured in by_pair.items() if low == best}
    return Figure(
        f"Figure 6, temperature {temperature:g}",
        "acceptance by the target against throughput",
        "share of the tokens handed to the target that it keeps",
        "throughput over plain decoding",
        (
            _points("single exit (LayerSkip)", by_exit),
            _points(f"HiSpec, draft exit {best}", chosen),
        ),
        notes=(
            "Points from left to right are "
            + "; ".join(
                f"{label}: {_by_acceptance(by_layer)}"
                for label, by_layer in (("single exits", by_exit), ("intermediate exits", chosen))
            )
            + ".",
            "P3 (CodeLlama-34B, 48 layers): draft exit 7 with intermediate 12 has 1.25 times the "
            "throughput and 1.15 times the acceptance of the best single exit.",
            *notes(lab),
        ),
    )


def _points(label: str, by_layer: dict[int, Measured]) -> Curve:
    return Curve(
        label,
        tuple(measured.acceptance() for measured in by_layer.values()),
        tuple(map(_speed, by_layer.values())),
        "points",
        tuple(measured.half_width for measured in by_layer.values()),
    )


def _by_acceptance(by_layer: dict[int, Measured]) -> str:
    return ", ".join(map(str, sorted(by_layer, key=lambda layer: by_layer[layer].acceptance())))


def _label(pair: ExitPair, default: ExitPair) -> str:
    return f"{pair[0]}-{pair[1]}" + (" (default)" if pair == default else "")


def _speed(measured: Measured) -> float:
    return measured.speedup.median
