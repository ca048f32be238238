"""P3's Table 1: HiSpec against single-exit, adaptive-exit and look-ahead baselines.

All are run as presets on the same target, and compared with averages of the printed table.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from hierspec.errors import HierspecError
from hierspec.presets import registry
from hierspec_lab.bench.methods.ours import HierarchyMethod
from hierspec_lab.papers.lab import Lab
from hierspec_lab.papers.measured import (
    SPEEDUP_COLUMNS,
    Measured,
    method_of,
    notes,
    side_by_side,
    uncompared_table,
)
from hierspec_lab.papers.tables import Reproduction, Table

DATA_SETS = ("ShareGPT", "CNN/DM", "HumanEval", "GSM8K", "XSum")
# model → method → speed-up over plain decoding on each of DATA_SETS, as printed
TABLE_1: dict[str, dict[str, tuple[float, ...]]] = {
    "Llama3-8B": {
        "AdaDecode": (1.00, 1.12, 1.36, 1.39, 1.06),
        "LayerSkip": (1.14, 1.70, 1.54, 1.77, 1.31),
        "LookAhead": (1.20, 1.44, 1.19, 1.20, 1.37),
        "HiSpec": (2.01, 2.08, 1.91, 1.93, 1.84),
    },
    "Llama2-7B": {
        "LayerSkip": (1.31, 1.93, 1.71, 1.69, 1.43),
        "LookAhead": (1.37, 1.34, 1.24, 1.50, 1.43),
        "HiSpec": (1.70, 1.95, 1.84, 1.92, 1.50),
    },
    "Llama2-13B": {
        "LayerSkip": (1.21, 1.43, 1.51, 1.76, 1.29),
        "LookAhead": (1.26, 1.55, 1.23, 1.43, 1.45),
        "SWIFT": (1.02, 1.03, 1.05, 1.01, 0.97),
        "HiSpec": (1.62, 1.57, 1.52, 1.65, 1.55),
    },
    "CodeLlama-7B": {
        "LayerSkip": (1.31, 1.07, 1.50, 1.75, 1.34),
        "LookAhead": (1.35, 1.58, 1.23, 1.36, 1.46),
        "HiSpec": (1.49, 1.63, 1.60, 1.75, 1.61),
    },
    "CodeLlama-34B": {
        "AdaDecode": (1.19, 1.53, 1.67, 1.56, 1.37),
        "LayerSkip": (1.23, 1.42, 1.50, 1.52, 1.42),
        "LookAhead": (1.31, 1.50, 1.18, 1.32, 1.49),
        "SWIFT": (1.09, 1.13, 1.24, 1.12, 1.05),
        "HiSpec": (1.55, 1.59, 1.67, 1.60, 1.45),
    },
    "Llama2-70B": {
        "LayerSkip": (1.30, 1.47, 1.32, 1.48, 1.29),
        "SWIFT": (1.10, 1.17, 1.12, 1.09, 1.10),
        "HiSpec": (1.64, 1.93, 1.69, 1.72, 1.63),
    },
}
PRESETS = {  # printed name → ours
    "AdaDecode": "adadecode",
    "LayerSkip": "layerskip",
    "LookAhead": "lookahead",
    "SWIFT": "swift",
    "HiSpec": "hispec",
}


def printed(method: str, data_set: str | None = None) -> list[float]:
    """Return the printed cells of a method for all models, of one data set or of all."""
    columns = range(len(DATA_SETS)) if data_set is None else [DATA_SETS.index(data_set)]
    return [rows[method][i] for rows in TABLE_1.values() if method in rows for i in columns]


def measure(lab: Lab) -> Reproduction:
    """Measure all presets that the target can run, at each of the lab's temperatures.

    Raises:
        HierspecError: the target is too shallow for HiSpec.
    """
    registry.preset(PRESETS["HiSpec"], lab.models.target)  # refuses a shallow target
    methods: list[HierarchyMethod] = []
    missing: dict[str, str] = {}
    for name, preset in PRESETS.items():
        try:
            config = registry.preset(preset, lab.models.target, lab.models.drafts)
            methods.append(method_of(name, lab, config.to_dict()))
        except HierspecError as error:
            missing[name] = str(error)
    tables = [
        _table(lab, temperature, side_by_side(lab, methods, temperature, "p3-table1"), missing)
        for temperature in lab.temperatures
    ]
    return Reproduction("p3-table1", tuple(tables), (), lab.to_dict())


def _table(
    lab: Lab, temperature: float, measurements: Sequence[Measured], missing: dict[str, str]
) -> Table:
    ran = {method.name: method for method in measurements if not method.reason}
    missing = missing | {method.name: method.reason for method in measurements if method.reason}
    rows: list[tuple[str, tuple[object, ...]]] = [
        ("plain", ("", "", "", *ran["plain"].cells(temperature)))
    ]
    for name in PRESETS:
        cells = printed(name)
        cell_range = f"{min(cells):.2f}–{max(cells):.2f}"
        printed_cells = (fmean(cells), cell_range, fmean(printed(name, "HumanEval")))
        our_cells = ran[name].cells(temperature) if name in ran else ("",) * 5
        rows.append((name, (*printed_cells, *our_cells)))
    comparison = ()
    if {"HiSpec", "LayerSkip"} <= ran.keys():
        gain = ran["HiSpec"].speedup_over(ran["LayerSkip"].runs)
        comparison = (
            f"HiSpec over LayerSkip here: {gain.format(unit='')}; "
            f"P3's cells give {_printed_gain():.2f} on average (its text "
            "says 1.28).",
        )
    return uncompared_table(
        f"Table 1, temperature {temperature:g}",
        "speed-up over plain decoding; printed: averages over models and data sets",
        "method",
        rows,
        (
            *("printed mean", "printed range", "printed HumanEval mean"),
            *(*SPEEDUP_COLUMNS, "tokens a call", "same as plain"),
        ),
        {"presets": PRESETS},
        notes=(
            *comparison,
            *(f"{name} is left out: {reason}" for name, reason in missing.items()),
            "; ".join(
                f"{name}: {registry.PRESETS[preset].summary}"
                for name, preset in PRESETS.items()
                if preset in registry.PRESETS
            )
            + ".",
            "Methods run as their presets are, untuned; hierspec bench tunes comparable methods "
            "over equally large grids.",
            *notes(lab),
        ),
    )


def _printed_gain() -> float:
    """Return HiSpec over LayerSkip, the mean over all printed cells."""
    return fmean(
        h / s
        for rows in TABLE_1.values()
        for h, s in zip(rows["HiSpec"], rows["LayerSkip"], strict=True)
    )
