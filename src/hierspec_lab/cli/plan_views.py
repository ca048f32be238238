"""What ``hierspec plan`` shows beside the plan: pictures, maps and simulations of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from hierspec.errors import HierspecError

if TYPE_CHECKING:
    from hierspec.planner.estimates import Estimates
    from hierspec.planner.plan import Plan
    from hierspec.profiling.profile import Profile
    from hierspec_lab.planning.plans import BoundedPlan, LatencyModel
    from hierspec_lab.planning.simulated import Records
    from hierspec_lab.simulation import Simulation

    from .plan_output import PlanColumn


@dataclass(frozen=True, slots=True, eq=False)
class PlanningTask:
    """The input of the planner, from a file and options.

    Attributes:
        every_shape: whether tails, dropped bonuses and P2's orders are tried.
        profile: the source of the estimates; ``None`` for a problem file.
    """

    estimates: Estimates
    latency_model: LatencyModel
    every_shape: bool
    warnings: tuple[str, ...] = ()
    profile: Profile | None = None
    temperature: float = 0.0


def plan_view(
    task: PlanningTask,
    picture: Path | None,
    heat_map: Path | None,
    simulate: int | None,
    acceptances: str | None,
    costs: str | None,
) -> Callable[[BoundedPlan], PlanColumn | None]:
    """Refuse what cannot be drawn or simulated; return what draws a plan and simulates it."""
    _validate_pictures(picture, heat_map)
    _validate_simulation(acceptances, costs, simulate, task.profile)
    unit = "" if task.profile is None else "ms"

    def show(plan: BoundedPlan) -> PlanColumn | None:
        if picture is not None:
            from hierspec_lab.planning.pictures import draw_plan

            draw_plan(plan, picture, unit=unit)
            note = "the plan's levels, and the times of the hierarchies near it"
            typer.echo(f"{picture}: {note}", err=True)
        if heat_map is not None:
            description = _draw_map(task.estimates, task.profile, heat_map)
            typer.echo(f"{heat_map}: {description}", err=True)
        if simulate is None:
            return None
        kind = acceptances or ("iid" if task.profile is None else "curves")
        return _simulate(plan, task, simulate, kind, costs or "real")

    return show


def _validate_pictures(*paths: Path | None) -> None:
    """Refuse pictures that cannot be drawn, before anything is computed."""
    for path in filter(None, paths):
        from hierspec_lab.plotting.figures import matplotlib, picture_path

        picture_path(path)
        matplotlib()


def _validate_simulation(
    acceptances: str | None, costs: str | None, rounds: int | None, profile: Profile | None
) -> None:
    """Refuse unknown names, and simulations that the file has no data for."""
    if rounds is None and acceptances is None and costs is None:
        return
    from hierspec_lab.planning.simulated import ACCEPTANCES, COSTS, validate_choice

    if rounds is None:
        raise HierspecError("--acceptances and --costs are for --simulate ROUNDS: add it")
    if acceptances is not None:
        validate_choice(acceptances, ACCEPTANCES, "--acceptances")
    if costs is not None:
        validate_choice(costs, COSTS, "--costs")
    if profile is None and acceptances == "recorded":
        raise HierspecError("--acceptances recorded is for profiles; this file is a problem")


def _draw_map(estimates: Estimates, profile: Profile | None, path: Path) -> str:
    """Draw the heat map and return what it shows.

    With two early exits or more: the speed-up over (draft exit, intermediate exit). Otherwise: how
    cheap and how good a further model below the best single drafter would have to be.
    """
    from hierspec_lab.planning.maps import cost_acceptance_map, exits_map

    exits = _exits(profile)
    if len(exits) > 1:
        exits_map(estimates, exits, path)
        return "speed-up over (draft exit, intermediate exit)"
    target = estimates.target
    drafters = [i for i in range(target) if estimates.can_draft(i, target)]
    if not drafters:
        raise HierspecError("--map needs a model that can draft for the target")
    best = max(drafters, key=lambda i: float(estimates.survival[i, target, 1]))
    cost = float(estimates.draft_ms[best, 1])
    cost_acceptance_map(
        [float(f"{cost / 2**step:.2g}") for step in range(8, 0, -1)],
        [step / 10 for step in range(10)],
        path,
        target_cost=float(estimates.plain_ms),
        drafter_cost=cost,
        acceptance=float(estimates.survival[best, target, 1]),
        largest=estimates.max_budget,
        title=f"When a model below {estimates.names[best]} is worth a level",
        names=(estimates.names[target], estimates.names[best]),
        unit="" if profile is None else "ms",
    )
    return f"speed-up over (cost, acceptance) of a further model below {estimates.names[best]}"


def _exits(profile: Profile | None) -> dict[int, int]:
    """Return the indices of the profile's early exits by their layer."""
    from hierspec.methods.early_exit import EarlyExitConfig

    if profile is None:
        return {}
    levels = [model.config for model in profile.models]
    return {
        level.exit_layer: i for i, level in enumerate(levels) if isinstance(level, EarlyExitConfig)
    }


_ACCEPTANCES = {
    "iid": "independent acceptances",
    "curves": "acceptances by the measured curves",
    "recorded": "recorded drafts in order",
}
_COSTS = {"real": "costs by pair and length", "artificial": "a constant cost per call"}


def _simulate(plan: Plan, task: PlanningTask, rounds: int, kind: str, costs: str) -> PlanColumn:
    """Simulate a plan and its runners-up."""
    from hierspec_lab.planning.simulated import records, simulate_chain

    from .plan_output import PlanColumn

    source: str | Records = kind
    note = ""
    if kind == "recorded":
        assert task.profile is not None  # as _validate_simulation has ensured
        source = records(task.profile, task.temperature)
        if plan.estimates.classes:
            note = "; every draft has the same weight, while plans weight classes of text by tokens"
        if task.profile.nearest(task.temperature) > 0:
            note += "; drafts are kept as by tokenwise verification, plans are for block"
    runs = [
        simulate_chain(plan.estimates, choice.chain, source, costs, rounds)
        for choice in (plan.best, *plan.runners_up)
    ]
    values = [
        {
            "ms_per_token": run.ms_per_token,
            "standard_error": run.standard_error,
            "acceptances": kind,
            "costs": costs,
            "rounds": rounds,
        }
        for run in runs
    ]
    caption = (
        f"simulated ± standard error: {rounds} rounds each, {_ACCEPTANCES[kind]}, "
        f"{_COSTS[costs]}{note}"
    )
    return PlanColumn("simulated", [_cell(run) for run in runs], values, caption)


def _cell(run: Simulation) -> str:
    from .plan_output import figure

    error = run.standard_error
    if error < 1e-6 * run.ms_per_token:  # of plain decoding: only rounding
        return f"{figure(run.ms_per_token)} ± 0"
    decimals = max(0, 1 - math.floor(math.log10(error)))  # two digits of the error
    return f"{run.ms_per_token:,.{decimals}f} ± {error:.{decimals}f}"
