"""P3's Figure 7: throughput over the draft length N_d and over the buffer N_i.

P3's claim: both should be small (2 and 4), because longer chains of unverified tokens are flushed
when one of them is wrong.
"""

from __future__ import annotations

from collections.abc import Sequence

from hierspec_lab.papers.lab import Lab
from hierspec_lab.papers.measured import (
    SPEEDUP_COLUMNS,
    Measured,
    notes,
    require_all,
    side_by_side,
    speedups,
    uncompared_table,
)
from hierspec_lab.papers.tables import Figure, Reproduction, Table

from .systems import N_D, N_I, default_exits, hispec

DRAFTS = (1, 2, 3, 4, 6, 8)  # N_d, with N_i = 4
BUFFERS = (2, 4, 6, 8, 12)  # N_i, with N_d = 2


def measure(lab: Lab) -> Reproduction:
    """Measure both sweeps at the default exits.

    Raises:
        HierspecError: the target is too shallow for two exits.
    """
    exits = default_exits(lab.models)
    pairs = list(dict.fromkeys([*((n, N_I) for n in DRAFTS), *((N_D, n) for n in BUFFERS)]))
    tables, figures = [], []
    for temperature in lab.temperatures:
        methods = [hispec(lab.models, *exits, *lengths) for lengths in pairs]
        measurements = require_all(side_by_side(lab, methods, temperature, "p3-lengths"))[1:]
        by_lengths = dict(zip(pairs, measurements, strict=True))
        tables.append(_table(lab, temperature, by_lengths))
        figures += [
            _sweep(lab, temperature, "a", "N_d", [(n, by_lengths[n, N_I]) for n in DRAFTS]),
            _sweep(lab, temperature, "b", "N_i", [(n, by_lengths[N_D, n]) for n in BUFFERS]),
        ]
    return Reproduction("p3-lengths", tuple(tables), tuple(figures), lab.to_dict())


def _table(lab: Lab, temperature: float, measurements: dict[tuple[int, int], Measured]) -> Table:
    best = max(measurements, key=lambda lengths: measurements[lengths].speedup.median)
    return uncompared_table(
        f"Figure 7, temperature {temperature:g}",
        "throughput over plain decoding at the default exits",
        "N_d / N_i",
        [
            (f"{n_d} / {n_i}", measured.cells(temperature, 0, -1))
            for (n_d, n_i), measured in measurements.items()
        ],
        (
            *(*SPEEDUP_COLUMNS, "tokens a call"),
            *("kept by intermediate", "kept by target", "same as plain"),
        ),
        {"exits": list(default_exits(lab.models)), "default": [N_D, N_I]},
        notes=(
            f"Fastest here: N_d = {best[0]}, N_i = {best[1]}; P3 finds both best when small and "
            f"takes {N_D} and {N_I}. Longer ones pay where tokens are kept more often, or where "
            "the target costs more beside the exits.",
            *notes(lab),
        ),
    )


def _sweep(
    lab: Lab, temperature: float, part: str, name: str, points: Sequence[tuple[int, Measured]]
) -> Figure:
    fixed = f"N_i = {N_I}" if name == "N_d" else f"N_d = {N_D}"
    lengths, measurements = zip(*points, strict=True)
    return Figure(
        f"Figure 7{part}, temperature {temperature:g}",
        f"throughput over {name} ({fixed})",
        f"{name} (tokens)",
        "throughput over plain decoding",
        (speedups("HiSpec", lengths, measurements),),
        notes=("P3's curves fall from the left end on.", *notes(lab)),
    )
