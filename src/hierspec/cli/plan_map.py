"""``hierspec plan --map``: the heat map that suits the models at hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..planner.estimates import Estimates
from ..planner.maps import cost_acceptance_map, exits_map

_STEPS = 8  # costs of the further model: the drafter's, halved so often


def draw(estimates: Estimates, profile: Any, path: Path) -> str:
    """Write the map; returns what it shows.

    With two early exits or more: the speed-up over (draft exit, intermediate exit). Otherwise: how
    cheap and how good a further model below the best single drafter would have to be.
    """
    exits = _exits(profile)
    if len(exits) > 1:
        exits_map(estimates, exits, path)
        return "speed-up over (draft exit, intermediate exit)"
    target = estimates.target
    drafters = [i for i in range(target) if estimates.can_draft(i, target)]
    if not drafters:
        raise ValueError("--map needs a model that can draft for the target")
    best = max(drafters, key=lambda i: float(estimates.survival[i, target, 1]))
    cost = float(estimates.draft_ms[best, 1])
    cost_acceptance_map(
        [float(f"{cost / 2**step:.2g}") for step in range(_STEPS, 0, -1)],
        [step / 10 for step in range(10)],
        path,
        target_cost=float(estimates.plain_ms),
        drafter_cost=cost,
        acceptance=float(estimates.survival[best, target, 1]),
        largest=estimates.max_budget,
        title=f"When a model below {estimates.names[best]} is worth a level",
    )
    return f"speed-up over (cost, acceptance) of a further model below {estimates.names[best]}"


def _exits(profile: Any) -> dict[int, int]:
    """Layer → number of the profile's early exits."""
    if profile is None:
        return {}
    levels = [model["level"] for model in profile.models[:-1]]
    return {
        level["exit_layer"]: i for i, level in enumerate(levels) if level["method"] == "early_exit"
    }
