"""Made-up costs and acceptances of three levels: what a controller plans by."""

from __future__ import annotations

import dataclasses

import numpy as np

from hierspec.planner.estimates import ideal

# ms of one call; a verification costs 4 % more for every token it is given.
COSTS, GROWTH = (0.4, 3.0, 11.0), 0.04


def rates(low, high, across):
    """Acceptance of small by mid, of mid by the target, of small by the target."""
    return [[0.0, low, across], [0.0, 0.0, high], [0.0] * 3]


GOOD = rates(0.8, 0.9, 0.7)


def estimates(costs=COSTS, acceptance=GOOD):
    found = ideal(costs, acceptance)
    lengths = np.arange(found.survival.shape[2])
    return dataclasses.replace(found, verify_ms=found.verify_ms * (1.0 + GROWTH * lengths))
