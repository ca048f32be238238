"""P5 Figure 7: speed over the window size K, and how much it varies."""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence

from hierspec_lab.papers.lab import Lab
from hierspec_lab.papers.measured import (
    Measured,
    notes,
    require_all,
    side_by_side,
    speedups,
    uncompared_table,
)
from hierspec_lab.papers.tables import Figure, Reproduction, Table

from .systems import NOT_AS_PRINTED, drafts, levels_by_system, method, paper_temperature, roles

WINDOWS = (2, 4, 6, 8, 10, 12, 15)
SYSTEMS = ("vanilla M1", "vanilla M2", "pre-verify + self-verify", "full")
_RESAMPLES = 1000


def measure(lab: Lab) -> Reproduction:
    """Measure every system with every window in turns; at temperature 1, as in P5, if given."""
    small, large = drafts(lab, "p5-window")
    by_window = {k: levels_by_system(small, large, k) for k in WINDOWS}
    methods = [
        method(lab, f"{name}, K = {k}", levels[name])
        for k, levels in by_window.items()
        for name in SYSTEMS
    ]
    temperature = paper_temperature(lab.temperatures)
    _, *measurements = require_all(side_by_side(lab, methods, temperature, "p5-window"))
    by_system = {system: measurements[i :: len(SYSTEMS)] for i, system in enumerate(SYSTEMS)}
    figure = _figure(lab, temperature, by_system)
    table = _table(lab, temperature, by_system)
    return Reproduction("p5-window", (table,), (figure,), lab.to_dict())


def variation(values: Sequence[float]) -> float:
    """Return (max − min) / max: 0 if the window does not matter, 1 if a bad one stops all."""
    return (max(values) - min(values)) / max(values)


def variation_interval(ratios: Sequence[Sequence[float]], seed: int = 0) -> tuple[float, float]:
    """Return a 95 % bootstrap interval of the variation of medians, over prompts.

    Args:
        ratios: [windows][prompts] speed-ups; a draw takes the same prompts for every window.
    """
    rng = random.Random(seed)
    prompts = range(len(ratios[0]))
    variations = []
    for _ in range(_RESAMPLES):
        sample = rng.choices(prompts, k=len(prompts))
        variations.append(variation([statistics.median(row[i] for i in sample) for row in ratios]))
    variations.sort()
    return variations[_RESAMPLES // 40], variations[-_RESAMPLES // 40 - 1]


def _figure(lab: Lab, temperature: float, systems: dict[str, list[Measured]]) -> Figure:
    return Figure(
        f"Figure 7 at temperature {temperature:g}",
        "speed-up over plain decoding by window size, median and half its 95 % interval",
        "window size K, tokens",
        "speed-up",
        tuple(speedups(system, WINDOWS, measurements) for system, measurements in systems.items()),
        notes=(
            "K is every level's in the first three and M1's alone in the full system, whose M2 "
            "has no fixed window.",
            *notes(lab),
        ),
    )


def _table(lab: Lab, temperature: float, systems: dict[str, list[Measured]]) -> Table:
    return uncompared_table(
        f"Figure 7, variation at temperature {temperature:g}",
        "(max − min) / max of the median speed-ups over K",
        "system",
        [(system, _numbers(measurements)) for system, measurements in systems.items()],
        ("best K", "speed-up", "worst K", "speed-up there", "variation", "low 95", "high 95"),
        {**roles(lab), "K": list(WINDOWS)},
        notes=(
            "P5 draws this as a picture and claims that windows which adapt vary less and that "
            "the full system is faster than vanilla at every K.",
            "Noise alone gives a variation above 0; its interval comes from drawing the prompts "
            "again, the same for every K.",
            *NOT_AS_PRINTED,
            *notes(lab),
        ),
    )


def _numbers(measurements: Sequence[Measured]) -> tuple[object, ...]:
    """Return a system's row from its measurements at each of :data:`WINDOWS`."""
    ratios = [
        [plain.ms_per_token / run.ms_per_token for plain, run in zip(m.plain, m.runs, strict=True)]
        for m in measurements
    ]
    medians = [statistics.median(row) for row in ratios]
    best, worst = medians.index(max(medians)), medians.index(min(medians))
    return (
        WINDOWS[best],
        medians[best],
        WINDOWS[worst],
        medians[worst],
        variation(medians),
        *variation_interval(ratios),
    )
