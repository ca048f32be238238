"""Detect, record and report that other programs disturbed the measurement of costs."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

import numpy as np

from hierspec.errors import HierspecWarning

from .schema import AtTemperature, CostNoise, MeasuredCost


class BusyWarning(HierspecWarning, RuntimeWarning):
    """Costs were measured beside other work."""


TOLERATED = 0.25  # interquartile range of one call's times, over their median


def noise(costs: Sequence[MeasuredCost], load_before: Sequence[float]) -> CostNoise:
    """Return the ``noise`` entry of a profile: the spread of its costs, the load and the cores.

    Args:
        load_before: averages of 1, 5 and 15 minutes before anything was timed, so that the
            measurement's own work is not in them; empty where the system keeps none.
    """
    return CostNoise(
        spread=round(spread(costs), 4),
        load_average=list(load_before),
        cores=os.cpu_count() or 1,
    )


def spread(costs: Sequence[MeasuredCost]) -> float:
    """Return the median over calls of (upper − lower quartile) / median of its times."""
    spreads = [
        (times.high - times.low) / times.median
        for cost in costs
        for times in (*cost.draft.values(), *cost.check.values())
        if times.median > 0 and times.count > 3
    ]
    return float(np.median(spreads)) if spreads else 0.0


def busy_message(temperatures: Iterable[AtTemperature]) -> str:
    """Return a sentence for users whose machine was busy; empty where it was quiet enough."""
    entries = [measured.noise for measured in temperatures if measured.noise]
    largest = max((entry.spread for entry in entries), default=0.0)
    load, cores = max(
        ((entry.load_average[0], entry.cores) for entry in entries if entry.load_average),
        default=(0.0, 1),
    )
    causes = []
    if load >= cores:
        causes.append(f"the load average was {load:g} on {cores} cores before it began")
    if largest > TOLERATED:
        causes.append(f"half of a call's times lie {100 * largest:.0f} % apart")
    if not causes:
        return ""
    return (
        f"the machine was busy while costs were measured ({'; '.join(causes)}): plans from them "
        "may be off; measure again when it is quiet"
    )
