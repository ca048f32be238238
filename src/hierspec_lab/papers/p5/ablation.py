"""P5 Tables 1 and 2: speed-ups of self-verify, of pre-verify, and of the full system."""

from __future__ import annotations

from collections.abc import Sequence

from hierspec_lab.papers.lab import Lab
from hierspec_lab.papers.measured import (
    SPEEDUP_COLUMNS,
    Measured,
    notes,
    offered_per_call,
    require_all,
    side_by_side,
    uncompared_table,
)
from hierspec_lab.papers.tables import Cell, Reproduction, Table, TableRow

from .systems import (
    DATASETS,
    ELSEWHERE,
    NOT_AS_PRINTED,
    dataset,
    drafts,
    levels_by_system,
    method,
    roles,
)

# Speed-ups as printed, by data set in the order of DATASETS.
TABLE_2 = {
    "vanilla M2": ("2.40", "2.22", "2.51", "2.50"),
    "pre-verify": ("2.53", "2.31", "2.47", "2.48"),
    "self-verify M2": ("2.63", "2.57", "2.68", "2.54"),
    "pre-verify + self-verify": ("2.69", "2.66", "2.65", "2.63"),
    "full": ("2.95", "2.92", "2.64", "2.99"),
}
TABLE_1 = {  # of the full system, by temperature
    1.0: ("2.91", "2.92", "2.64", "2.99"),
    0.0: ("3.13", "3.39", "3.36", "3.24"),
}


def measure(lab: Lab) -> Reproduction:
    """Measure all systems and plain decoding in turns, at each of the lab's temperatures."""
    small, large = drafts(lab, "p5-ablation")
    methods = [method(lab, name, levels) for name, levels in levels_by_system(small, large).items()]
    measurements = {
        temperature: require_all(side_by_side(lab, methods, temperature, "p5-ablation"))
        for temperature in lab.temperatures
    }
    tables = [_systems(lab, temperature, part) for temperature, part in measurements.items()]
    if 1.0 in measurements:
        tables.append(_table_2(lab, measurements[1.0]))
    tables += _table_1(lab, measurements)
    return Reproduction("p5-ablation", tuple(tables), measured_on=lab.to_dict())


def _systems(lab: Lab, temperature: float, measurements: list[Measured]) -> Table:
    greedy = ("same as plain",) if temperature == 0.0 else ()
    return uncompared_table(
        f"Systems at temperature {temperature:g}",
        "speed-up over plain decoding; tokens written and tokens offered per call of the target",
        "system",
        [(system.name, _numbers(system, temperature)) for system in measurements],
        (*SPEEDUP_COLUMNS, "written a call", "offered a call", *greedy),
        roles(lab),
        notes=(
            "Tokens written a call are the mean acceptance length, bonus included.",
            *NOT_AS_PRINTED,
            *notes(lab),
        ),
    )


def _numbers(system: Measured, temperature: float) -> tuple[object, ...]:
    equal = (system.same_as_plain_cell(temperature),) if temperature == 0.0 else ()
    return (*system.speedup_cells, system.tokens_per_call, offered_per_call(system.runs), *equal)


def _table_2(lab: Lab, measurements: list[Measured]) -> Table:
    ours = {system.name: system for system in measurements}
    return _printed(
        lab,
        "Table 2",
        "speed-ups at temperature 1",
        [(name, ours[name], printed) for name, printed in TABLE_2.items()],
        "The print does not say which draft self-verify alone has; its vanilla decoding has M2, "
        "so self-verify has M2 here, too.",
    )


def _table_1(lab: Lab, measurements: dict[float, list[Measured]]) -> list[Table]:
    """Return a table of the full system at the printed temperatures that were measured."""
    rows = [
        (f"full, temperature {temperature:g}", measurements[temperature][-1], printed)
        for temperature, printed in TABLE_1.items()
        if temperature in measurements
    ]
    note = (
        "P5 took the other rows of this table from their own papers. The full system is compared "
        "with SpecDec++, PEARL and EAGLE-3 among the evidence (docs/papers/evidence.md)."
    )
    caption = "the full system by temperature"
    return [_printed(lab, "Table 1", caption, rows, note)] if rows else []


def _printed(
    lab: Lab,
    name: str,
    caption: str,
    rows: Sequence[tuple[str, Measured, tuple[str, ...]]],
    note: str,
) -> Table:
    """Return a table of measured speed-ups beside those printed for the lab's data set."""
    column = DATASETS.index(dataset(lab))
    return Table(
        name,
        f"{caption}; printed: {dataset(lab)}",
        "system",
        ("speed-up",),
        tuple(
            TableRow(
                label, (Cell(printed[column], system.speedup_cells[0]),), system.speedup_cells[1:]
            )
            for label, system, printed in rows
        ),
        SPEEDUP_COLUMNS[1:],
        roles(lab),
        compared=False,
        notes=(note, ELSEWHERE, *notes(lab)),
    )
