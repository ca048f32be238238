"""A plan with a bound for all others, as ``hierspec plan`` prints it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

from hierspec.planner.plan import Plan

LatencyModel = Literal["exact", "corollary"]
LATENCY_MODELS: tuple[LatencyModel, ...] = get_args(LatencyModel)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class BoundedPlan(Plan):
    """A plan, and a lower bound for all chains.

    Attributes:
        lower_bound: milliseconds a token that no chain of these models can go below.
        latency_model: ``"exact"`` (overshoot handed up) or ``"corollary"`` (P1's formula).
    """

    lower_bound: float
    search_seconds: float
    latency_model: LatencyModel = "exact"

    def to_dict(self) -> dict[str, Any]:
        """Return the object that ``plan --json`` prints."""
        return {
            **Plan.to_dict(self),
            "lower_bound": self.lower_bound,
            "latency_model": self.latency_model,
            "search_seconds": self.search_seconds,
        }
