"""A stand-in for a measured profile."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

from hierspec.planner.estimates import ideal


class FakeProfile:
    """What ``hierspec plan`` asks of a profile; it remembers temperatures and largest drafts."""

    NAMES = ("small", "mid", "target")
    RATES = ((None, 0.75, 0.55), (None, None, 0.8))
    COSTS = (0.25, 4, 33)

    def __init__(self, pairs=(), classes=0) -> None:
        self.pairs, self.classes = pairs, classes
        self.asked: list[object] = []
        self.max_measured = 9
        self.temperatures = {}

    def nearest(self, temperature):
        return float(temperature > 0)

    def measured(self, temperature):
        return SimpleNamespace(pairs=self.pairs)

    def estimates(self, temperature, max_budget=None):
        self.asked.append((temperature, max_budget))
        known = ideal(self.COSTS, self.RATES, self.NAMES, max_budget or 9)
        return dataclasses.replace(known, classes=(known,) * self.classes)

    def hierarchy(self, chain):
        return {"target": {"model": "target"}, "levels": [{"chain": list(chain.models)}]}
