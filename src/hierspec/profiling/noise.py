"""Whether other programs disturbed the measurement of costs: noticed, recorded and reported."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hierspec.errors import HierspecWarning

from .schema import MeasuredCost, Noise


class BusyWarning(HierspecWarning, RuntimeWarning):
    """Costs were measured beside other work."""


TOLERATED = 0.25  # interquartile range of one call's times, over their median


def noise(costs: Sequence[MeasuredCost], load_before: Sequence[float]) -> Noise:
    """Return what the profile keeps of noise beside its costs.

    Args:
        load_before: averages of 1, 5 and 15 minutes before anything was timed, so that the
            measurement's own work is not in them; empty where the system keeps none.
    """
    return {
        "spread": round(spread(costs), 4),
        "load_average": list(load_before),
        "cores": os.cpu_count() or 1,
    }


def spread(costs: Sequence[MeasuredCost]) -> float:
    """Return the median over calls of (upper − lower quartile) / median of its times."""
    spreads = [
        (found["high"] - found["low"]) / found["median"]
        for cost in costs
        for found in (*cost["draft"].values(), *cost["check"].values())
        if found["median"] > 0 and found["count"] > 3
    ]
    return float(np.median(spreads)) if spreads else 0.0


def said(temperatures: Mapping[str, Any]) -> str:
    """Return a sentence for users whose machine was busy; empty where it was quiet enough.

    Args:
        temperatures: the profile's, by label.
    """
    found = [one["noise"] for one in temperatures.values() if one.get("noise")]
    spreads = max((one["spread"] for one in found), default=0.0)
    load, cores = max(
        ((one["load_average"][0], one["cores"]) for one in found if one["load_average"]),
        default=(0.0, 1),
    )
    why = []
    if load >= cores:
        why.append(f"the load average was {load:g} on {cores} cores before it began")
    if spreads > TOLERATED:
        why.append(f"half of a call's times lie {100 * spreads:.0f} % apart")
    if not why:
        return ""
    return (
        f"the machine was busy while costs were measured ({'; '.join(why)}): plans from them may "
        "be off; measure again when it is quiet"
    )
