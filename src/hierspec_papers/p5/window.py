"""P5 Figure 7: speed over the window size K, and how much it varies."""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence

from hierspec_papers.lab import Lab
from hierspec_papers.measured import Measured, all_ran, notes, own_table, side_by_side, speedups
from hierspec_papers.tables import Figure, Reproduction, Table

from .systems import NOT_AS_PRINTED, at_one, by_name, drafts, method, roles

WINDOWS = (2, 4, 6, 8, 10, 12, 15)
SYSTEMS = ("vanilla M1", "vanilla M2", "pre-verify + self-verify", "full")
_RESAMPLES = 1000


def measure(lab: Lab) -> Reproduction:
    """Every system with every window, interleaved; at temperature 1, as in P5, if that is given."""
    small, large = drafts(lab, "p5-window")
    every = [(k, by_name(small, large, k)) for k in WINDOWS]
    methods = [method(lab, f"{name}, K = {k}", of[name]) for k, of in every for name in SYSTEMS]
    temperature = at_one(lab.temperatures)
    _, *found = all_ran(side_by_side(lab, methods, temperature, "p5-window"))
    by_system = {
        system: [found[i] for i in range(at, len(found), len(SYSTEMS))]
        for at, system in enumerate(SYSTEMS)
    }
    figure = _figure(lab, temperature, by_system)
    table = _table(lab, temperature, by_system)
    return Reproduction("p5-window", (table,), (figure,), lab.to_dict())


def variation(values: Sequence[float]) -> float:
    """(max − min) / max: 0 where the window does not matter, 1 where a bad one stops everything."""
    return (max(values) - min(values)) / max(values)


def variation_interval(ratios: Sequence[Sequence[float]], seed: int = 0) -> tuple[float, float]:
    """95 % bootstrap interval of the variation of medians, by drawing prompts again.

    Args:
        ratios: [windows][prompts] speed-ups; a draw takes the same prompts for every window.
    """
    rng = random.Random(seed)
    prompts = range(len(ratios[0]))
    seen = []
    for _ in range(_RESAMPLES):
        drawn = rng.choices(prompts, k=len(prompts))
        seen.append(variation([statistics.median(row[i] for i in drawn) for row in ratios]))
    seen.sort()
    return seen[_RESAMPLES // 40], seen[-_RESAMPLES // 40 - 1]


def _figure(lab: Lab, temperature: float, systems: dict[str, list[Measured]]) -> Figure:
    return Figure(
        f"Figure 7 at temperature {temperature:g}",
        "speed-up over plain decoding by window size, median and half its 95 % interval",
        "window size K, tokens",
        "speed-up",
        tuple(speedups(system, WINDOWS, found) for system, found in systems.items()),
        notes=(
            "K is every level's in the first three and M1's alone in the full system, whose M2 "
            "has no fixed window.",
            *notes(lab),
        ),
    )


def _table(lab: Lab, temperature: float, systems: dict[str, list[Measured]]) -> Table:
    return own_table(
        f"Figure 7, variation at temperature {temperature:g}",
        "(max − min) / max of the median speed-ups over K",
        "system",
        [(system, _numbers(found)) for system, found in systems.items()],
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


def _numbers(found: Sequence[Measured]) -> tuple[object, ...]:
    """Of one system, a measurement for each of :data:`WINDOWS`."""
    ratios = [
        [a.ms_per_token / b.ms_per_token for a, b in zip(one.plain, one.runs, strict=True)]
        for one in found
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
