"""``hierspec plan``: find the fastest hierarchy of models, and whether to speculate at all."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from hierspec.errors import HierspecError, errors_in

from .options import AsJson, output_option, parse_size

if TYPE_CHECKING:
    from hierspec.planner.estimates import Estimates
    from hierspec.planner.plan import LatencyModel, Plan
    from hierspec.planner.search import Variations
    from hierspec.planner.simulated import Records
    from hierspec.profiling.profile import Profile

    from .rendering.plan import Simulations

PROFILE_KIND = "hierspec-profile"


def plan(
    file: Annotated[
        Path,
        typer.Argument(help="A profile, or PROBLEM.json: costs and acceptance rates of models."),
    ],
    latency_model: Annotated[
        str | None,
        typer.Option(
            help="exact (default), or corollary: the paper P1's formula, in which a level hands up "
            "exactly as many tokens as were asked of it, and never more."
        ),
    ] = None,
    max_models: Annotated[
        int | None, typer.Option(min=1, help="Maximum number of models, the target included.")
    ] = None,
    max_speculative_tokens: Annotated[
        int | None, typer.Option(min=1, help="Maximum tokens asked of a level; default: 15.")
    ] = None,
    memory_budget: Annotated[
        str | None, typer.Option(help="Memory for weights, such as 2GiB or 500MB.")
    ] = None,
    temperature: Annotated[
        float | None,
        typer.Option(help="With a profile: plan for this temperature; default: 0, greedy."),
    ] = None,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Use a profile of other hardware, versions or weights than those here."
        ),
    ] = False,
    top: Annotated[int, typer.Option(min=1, help="Hierarchies to show, the best included.")] = 5,
    to: Annotated[
        str | None,
        typer.Option(
            help="Also print the best plan that vllm or transformers (name one) can run, as its "
            "command or code."
        ),
    ] = None,
    output: Annotated[
        Path | None,
        output_option(
            "With a profile: write the fastest hierarchy to this .json file, for generate "
            "--hierarchy."
        ),
    ] = None,
    picture: Annotated[
        Path | None, typer.Option(help="Draw the plan: a .svg or .png file.")
    ] = None,
    heat_map: Annotated[
        Path | None,
        typer.Option(
            "--map",
            help="Draw a heat map, .svg or .png: the speed-up over pairs of early exits, or over "
            "cost and acceptance of a further model.",
        ),
    ] = None,
    simulate: Annotated[
        int | None,
        typer.Option(min=2, help="Also simulate each hierarchy, for so many calls of the target."),
    ] = None,
    acceptances: Annotated[
        str | None,
        typer.Option(
            help="With --simulate, what is accepted: iid, by independent draws; curves, as often "
            "as measured (the default for a profile); recorded, the drafts of the profile in order."
        ),
    ] = None,
    costs: Annotated[
        str | None,
        typer.Option(
            help="With --simulate: real (default), or artificial: every call of a model costs the "
            "same."
        ),
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Find the fastest hierarchy, or say that plain decoding does.

    Example:

      hierspec plan problem.json --max-models 3
    """
    from hierspec.planner import search

    _check_pictures(picture, heat_map)
    task = _read_task(file, latency_model, max_speculative_tokens, temperature, force)
    _check_exports(output, to, task.profile)
    _check_simulation(acceptances, costs, simulate, task.profile)
    for warning in task.warnings:
        print(f"hierspec: warning: {warning}", file=sys.stderr)
    result = search.plan(
        task.estimates,
        latency_model=task.latency_model,
        max_models=max_models,
        memory=None if memory_budget is None else parse_size(memory_budget),
        top=top,
        variations=task.variations,
    )
    unit = "" if task.profile is None else "ms"
    if output is not None:
        _write_hierarchy(result, task, output)
    if picture is not None:
        from hierspec.planner.pictures import draw_plan

        draw_plan(result, picture, unit=unit)
        print(
            f"{picture}: the plan's levels, and the times of the hierarchies near it",
            file=sys.stderr,
        )
    if heat_map is not None:
        description = _draw_map(task.estimates, task.profile, heat_map)
        print(f"{heat_map}: {description}", file=sys.stderr)
    exported = None if to is None else _export(result, task, to)
    simulations = None
    if simulate is not None:
        simulations = _simulate(
            result, simulate, acceptances, costs, task.profile, temperature or 0.0
        )
    if as_json:
        out = result.to_dict() | {"warnings": list(task.warnings)}
        if task.profile is not None:
            out["hierarchy"] = task.profile.hierarchy(result.best.chain)
        if simulations is not None:
            out = simulations.add_to(out)
        if exported is not None:
            out["export"] = exported
        print(json.dumps(out))
        return 0
    from .rendering.plan import show

    limits = {"--max-models 1": max_models == 1, "--memory-budget": memory_budget is not None}
    show(
        result,
        unit=f" {unit}" if unit else "",
        simulations=simulations,
        top=top,
        limits=[name for name, applies in limits.items() if applies],
    )
    if exported is not None:
        print(f"\nThe best that {exported['engine']} can express:\n")
        print(exported.get("command") or exported["python"])
        print(f"\n{exported['note']}")
    return 0


@dataclass(frozen=True, slots=True, eq=False)
class PlanningTask:
    """The input of the planner, from a file and options.

    Attributes:
        variations: the variations that hierarchies may have besides plain chains.
        profile: the source of the estimates; ``None`` for a problem file.
    """

    estimates: Estimates
    latency_model: LatencyModel
    variations: Variations
    warnings: tuple[str, ...] = ()
    profile: Profile | None = None


def _read_task(
    file: Path,
    latency_model: str | None,
    max_speculative_tokens: int | None,
    temperature: float | None,
    force: bool,
) -> PlanningTask:
    """Read a problem or a profile, changed by options.

    Raises:
        HierspecError: the file is neither, or an option does not go with it.
    """
    from hierspec.planner import problem as problems
    from hierspec.planner.search import ALL_VARIATIONS, NO_VARIATIONS
    from hierspec.utils.checks import check_temperature

    data = problems.load_json(file)
    if max_speculative_tokens is not None:
        problems.check_largest_budget(max_speculative_tokens, "--max-speculative-tokens")
    if data.get("kind") != PROFILE_KIND:
        if "kind" in data and "costs" not in data:
            raise HierspecError(
                f"{file}: neither a problem (an object with costs and acceptance) nor a "
                f'profile ("kind": "{PROFILE_KIND}")'
            )
        if temperature is not None or force:
            raise HierspecError(
                "--temperature and --force are for profiles; this file is a problem"
            )
        changes = {"max_speculative_tokens": max_speculative_tokens, "latency_model": latency_model}
        data = {**data, **{key: value for key, value in changes.items() if value is not None}}
        with errors_in(file):
            problem = problems.parse_problem(data)
        return PlanningTask(
            problem.estimates, problem.latency_model, NO_VARIATIONS, problem.warnings
        )

    from hierspec.profiling.noise import busy_message
    from hierspec.profiling.profile import load_profile

    temperature = temperature or 0.0
    check_temperature(temperature, "--temperature")
    profile = load_profile(file, force=force)
    estimates = profile.estimates(temperature, max_budget=max_speculative_tokens)
    warnings: tuple[str, ...] = ()
    largest = profile.max_measured
    if (max_speculative_tokens or 0) > largest:
        warnings = (f"budgets above {largest} were not measured: curves are extrapolated",)
    if (measured := profile.nearest(temperature)) != temperature:
        warnings += (f"planned with what was measured at temperature {measured:g}, the nearest",)
    warnings += tuple(filter(None, [busy_message(profile.data.temperatures.values())]))
    model = cast("LatencyModel", latency_model or "exact")
    variations = ALL_VARIATIONS if model == "exact" else NO_VARIATIONS
    return PlanningTask(estimates, model, variations, warnings, profile)


def _check_pictures(*paths: Path | None) -> None:
    """Refuse pictures that cannot be drawn, before anything is computed."""
    for path in filter(None, paths):
        from hierspec.plotting.figures import matplotlib, picture_path

        picture_path(path)
        matplotlib()


def _check_exports(path: Path | None, engine: str | None, profile: Profile | None) -> None:
    """Refuse a file that generate would not read, an unknown engine, and both for a problem."""
    if engine is not None:
        from hierspec.planner.export import ENGINES

        if engine not in ENGINES:
            raise HierspecError(f"no engine called {engine!r}; there are: {', '.join(ENGINES)}")
    for option, value in (("-o", path), ("--to", engine)):
        if value is not None and profile is None:
            raise HierspecError(
                f"{option} is for profiles: a problem file does not say which models it means"
            )
    if path is not None and path.suffix != ".json":
        raise HierspecError(f"-o writes a .json file, not {str(path)!r}")


def _check_simulation(
    acceptances: str | None, costs: str | None, rounds: int | None, profile: Profile | None
) -> None:
    """Refuse unknown names, and simulations that the file has no data for."""
    from hierspec.planner.simulated import ACCEPTANCES, COSTS, check_choice

    if rounds is None and (acceptances is not None or costs is not None):
        raise HierspecError("--acceptances and --costs are for --simulate ROUNDS: add it")
    if acceptances is not None:
        check_choice(acceptances, ACCEPTANCES, "--acceptances")
    if costs is not None:
        check_choice(costs, COSTS, "--costs")
    if profile is None and acceptances == "recorded":
        raise HierspecError("--acceptances recorded is for profiles; this file is a problem")


def _export(result: Plan, task: PlanningTask, engine: str) -> dict[str, Any]:
    from hierspec.planner.export import export

    profile = task.profile
    assert profile is not None  # as _check_exports has ensured
    levels = [model.level for model in profile.models[:-1]]
    return export(result, engine, [*levels, profile.data.target])


def _write_hierarchy(result: Plan, task: PlanningTask, path: Path) -> None:
    """Write the best hierarchy to a file, and print the command that runs it."""
    from hierspec.utils.files import write_atomically

    assert task.profile is not None  # as _check_exports has ensured
    hierarchy = task.profile.hierarchy(result.best.chain)
    write_atomically(path, json.dumps(hierarchy, indent=2) + "\n", "the hierarchy")
    print(f"{path}: hierspec generate --hierarchy {path} runs it", file=sys.stderr)


def _draw_map(estimates: Estimates, profile: Profile | None, path: Path) -> str:
    """Draw the heat map and return what it shows.

    With two early exits or more: the speed-up over (draft exit, intermediate exit). Otherwise: how
    cheap and how good a further model below the best single drafter would have to be.
    """
    from hierspec.planner.maps import cost_acceptance_map, exits_map

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


def _simulate(
    result: Plan,
    rounds: int,
    acceptances: str | None,
    costs: str | None,
    profile: Profile | None,
    temperature: float,
) -> Simulations:
    """Simulate a plan and its runners-up.

    Args:
        acceptances: default: the curves of a profile, or the independent rates of a problem.
    """
    from hierspec.planner.simulated import simulate_chain

    from .rendering.plan import Simulations

    kind = acceptances or ("iid" if profile is None else "curves")
    source: str | Records = kind
    note = ""
    if kind == "recorded":
        assert profile is not None
        source = profile.records(temperature)
        if result.estimates.classes:
            note = "; every draft has the same weight, while plans weight classes of text by tokens"
        if profile.nearest(temperature) > 0:
            note += "; drafts are kept as by tokenwise verification, plans are for block"
    chains = [choice.chain for choice in (result.best, *result.runners_up)]
    costs = costs or "real"
    runs = (simulate_chain(result.estimates, chain, source, costs, rounds) for chain in chains)
    return Simulations(tuple(runs), kind, costs, rounds, note)
