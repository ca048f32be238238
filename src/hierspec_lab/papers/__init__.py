"""The papers' tables and figures reproduced, beside what was printed.

Some are computed from printed inputs (:data:`COMPUTED`); the others run the paper's experiment on
the models at hand (:data:`MEASURED`, with a :class:`~hierspec_lab.papers.lab.Lab`).
"""

from __future__ import annotations

import dataclasses
from difflib import get_close_matches
from importlib import import_module
from typing import Any

from hierspec.errors import HierspecError

from .tables import Cell, Curve, Figure, Grid, Reproduction, Table, TableRow

__all__ = [
    "COMPUTED",
    "MEASURED",
    "NAMES",
    "Cell",
    "Curve",
    "Figure",
    "Grid",
    "Reproduction",
    "Table",
    "TableRow",
    "reproduce",
]

COMPUTED = {  # name → (module with ``compute() -> Reproduction``, what it shows)
    "p1-tables": ("p1.tables", "P1 Tables 1, 8, 9: plans from the printed rates and costs"),
    "p1-simulation": ("p1.simulation", "P1 Table 5: formulas against simulation"),
    "p2-orders": ("p2.orders", "P2 Theorem 3.4: interleaved against horizontal and single drafts"),
    "p4-operations": ("p4.operations", "P4 Appendix G: operations of verification and forwards"),
}
MEASURED: dict[str, tuple[str, str]] = {  # name → (module with ``measure(lab)``, what it shows)
    "p1-coin-flips": ("p1.coin_flips", "P1 Table 5: coins for acceptances, on the clock"),
    "p1-models": ("p1.models", "P1 Tables 1, 3, 4, 6: K models planned, predicted and measured"),
    "p2-models": ("p2.models", "P2 Theorem 3.4: both orders and either drafter, measured"),
    "p3-exits": ("p3.exits", "P3 Figures 5, 6, 8: pairs of early exits against single ones"),
    "p3-figure4": ("p3.figure4", "P3 Figure 4: what the last layer accepts of early exits"),
    "p3-figure9": ("p3.figure9", "P3 Figure 9: lengths of the data sets' prompts"),
    "p3-lengths": ("p3.lengths", "P3 Figure 7: throughput over N_d and N_i"),
    "p3-table1": ("p3.table1", "P3 Table 1: HiSpec against its baselines"),
    "p3-wall": ("p3.wall", "P3 Table 2, Figure 2: verification time against drafting time"),
    "p4-cap": ("p4.cap", "P4 Table A.3: what forgetting the cap brings, and what it costs"),
    "p4-cost": ("p4.cost", "P4 Table A.4: what share of decoding is verification"),
    "p4-drafts": ("p4.drafts", "P4 Table 2: several drafts a round"),
    "p4-rules": ("p4.rules", "P4 Table 3: verification rules by draft length and temperature"),
    "p5-ablation": ("p5.ablation", "P5 Tables 1, 2: self-verify, pre-verify, both, all of it"),
    "p5-entropy": ("p5.entropy", "P5 Figure 6: entropies of kept and of rejected draft tokens"),
    "p5-redundancy": ("p5.redundancy", "P5 Table 4: redundancy and target utilisation"),
    "p5-window": ("p5.window", "P5 Figure 7: speed over the window size K"),
    "p5-windows-over-time": ("p5.windows_over_time", "P5 Figure 8: windows round by round"),
}
NAMES = (*COMPUTED, *MEASURED)


def reproduce(what: str, lab: Any = None) -> Reproduction:
    """Compute or measure one of :data:`NAMES`, and record what it was measured on.

    Args:
        lab: models and prompts (:class:`~hierspec_lab.papers.lab.Lab`), for :data:`MEASURED`.

    Raises:
        HierspecError: there is none of that name, or it needs models and none were given.
    """
    if what in COMPUTED:
        return import_module(f".{COMPUTED[what][0]}", __name__).compute()
    if what not in MEASURED:
        near = get_close_matches(what, NAMES, 1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise HierspecError(
            f"nothing to reproduce named {what!r}{hint}; there is: {', '.join(NAMES)}"
        )
    if lab is None:
        raise HierspecError(
            f"{what} is measured on models: give a lab (hierspec_lab.papers.lab.Lab)"
        )
    from hierspec_lab.bench.environment import environment

    machine = environment()  # its load averages should not be those of the measurement
    lab = dataclasses.replace(lab, record={})  # of this reproduction alone
    reproduction: Reproduction = import_module(f".{MEASURED[what][0]}", __name__).measure(lab)
    measured_on = {
        "temperatures": list(lab.temperatures),
        **(reproduction.measured_on or lab.to_dict()),
        "environment": machine,
    }
    return dataclasses.replace(reproduction, measured_on=measured_on, record=lab.record)
