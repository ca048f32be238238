"""``hierspec plan``: find the fastest hierarchy of models, and whether to speculate at all."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from hierspec.cli.options import AsJson
from hierspec.errors import HierspecError, errors_in

from .options import output_option, parse_size
from .plan_views import PlanningTask, plan_view

if TYPE_CHECKING:
    from hierspec.planner.plan import Plan
    from hierspec.profiling.profile import Profile
    from hierspec_lab.planning.plans import LatencyModel

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
        int | None,
        typer.Option(min=1, help="Maximum num_speculative_tokens of a level; default: 15."),
    ] = None,
    memory_budget: Annotated[
        str | None, typer.Option(help="Limit for the memory of weights, such as 2GiB or 500MB.")
    ] = None,
    temperature: Annotated[
        float | None,
        typer.Option(help="With a profile: plan for this temperature; default: 0, greedy."),
    ] = None,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Use a profile even if hardware, versions or weights differ from those here.",
        ),
    ] = False,
    top: Annotated[
        int, typer.Option(min=1, help="How many hierarchies to show, the best included.")
    ] = 5,
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
    """Find the fastest hierarchy of some models, or report that plain decoding is faster.

    Example:

      hierspec plan problem.json --max-models 3
    """
    from hierspec.planner.search import ALL_VARIATIONS, NO_VARIATIONS
    from hierspec_lab.planning.search import plan as search

    task = _read_task(file, latency_model, max_speculative_tokens, temperature, force)
    _validate_exports(file, output, to, task.profile)
    view = plan_view(task, picture, heat_map, simulate, acceptances, costs)
    for warning in task.warnings:
        print(f"hierspec: warning: {warning}", file=sys.stderr)
    memory = None if memory_budget is None else parse_size(memory_budget)
    result = search(
        task.estimates,
        latency_model=task.latency_model,
        max_models=max_models,
        memory=memory,
        top=top,
        variations=ALL_VARIATIONS if task.every_shape else NO_VARIATIONS,
    )
    unit = "" if task.profile is None else "ms"
    if output is not None:
        _write_hierarchy(result, task, output)
    exported = None if to is None else _export(result, task, to, max_models, memory)
    column = view(result)
    columns = [] if column is None else [column]
    if as_json:
        out: dict[str, Any] = result.to_dict() | {"warnings": list(task.warnings)}
        if task.profile is not None:
            out["hierarchy"] = task.profile.hierarchy(result.best.chain)
        for column in columns:
            best, *others = column.values
            out[column.title] = best
            for chain, value in zip(out["runners_up"], others, strict=True):
                chain[column.title] = value
        if exported is not None:
            out["export"] = exported
        print(json.dumps(out))
        return 0
    from .plan_output import show

    limits = {"--max-models 1": max_models == 1, "--memory-budget": memory_budget is not None}
    show(
        result,
        unit=f" {unit}" if unit else "",
        columns=columns,
        top=top,
        limits=[name for name, applies in limits.items() if applies],
    )
    if exported is not None:
        print(f"\nThe best that {exported['engine']} can express:\n")
        print(exported.get("command") or exported["python"])
        print(f"\n{exported['note']}")
    return 0


def _read_task(
    file: Path,
    latency_model: str | None,
    max_speculative_tokens: int | None,
    temperature: float | None,
    force: bool,
) -> PlanningTask:
    """Read a problem or a profile, changed by options."""
    from hierspec.utils.schema import validate
    from hierspec.utils.validation import validate_temperature
    from hierspec_lab.planning import problem as problems

    data = problems.load_json(file)
    if max_speculative_tokens is not None:
        validate(problems.LargestBudget, max_speculative_tokens, "--max-speculative-tokens")
    if data.get("kind") != PROFILE_KIND:
        if "kind" in data and "costs" not in data:
            raise HierspecError(
                f"{file}: neither a problem (an object with costs and acceptance) nor a "
                f'profile ("kind": "{PROFILE_KIND}")'
            )
        if "levels" in data and not data.keys() & {"costs", "models"}:
            raise HierspecError(
                f"{file} is a hierarchy already (hierspec generate --hierarchy {file} runs it); "
                "a plan is made from a profile, or from a problem with costs and acceptance"
            )
        if temperature is not None or force:
            raise HierspecError(
                "--temperature and --force are for profiles; this file is a problem"
            )
        changes = {"max_speculative_tokens": max_speculative_tokens, "latency_model": latency_model}
        data = {**data, **{key: value for key, value in changes.items() if value is not None}}
        with errors_in(file):
            problem = problems.parse_problem(data)
        return PlanningTask(problem.estimates, problem.latency_model, False, problem.warnings)

    from hierspec.profiling.noise import busy_message
    from hierspec_lab.planning.profiles import load_valid_profile

    temperature = temperature or 0.0
    validate_temperature(temperature, "--temperature")
    profile = load_valid_profile(file, force=force)
    estimates = profile.estimates(temperature, max_budget=max_speculative_tokens)
    warnings: tuple[str, ...] = ()
    largest = profile.max_measured
    if (max_speculative_tokens or 0) > largest:
        warnings = (f"budgets above {largest} were not measured: curves are extrapolated",)
    if (measured := profile.nearest(temperature)) != temperature:
        warnings += (f"planned with what was measured at temperature {measured:g}, the nearest",)
    warnings += tuple(filter(None, [busy_message(profile.temperatures.values())]))
    model = cast("LatencyModel", latency_model or "exact")
    return PlanningTask(estimates, model, model == "exact", warnings, profile, temperature)


def _validate_exports(
    file: Path, path: Path | None, engine: str | None, profile: Profile | None
) -> None:
    """Refuse a file that generate would not read, an unknown engine, and both for a problem."""
    if engine is not None:
        from hierspec_lab.planning.export import ENGINES

        if engine not in ENGINES:
            raise HierspecError(f"no engine called {engine!r}; there are: {', '.join(ENGINES)}")
    for option, value in (("-o", path), ("--to", engine)):
        if value is not None and profile is None:
            raise HierspecError(
                f"{option} is for profiles: a problem file does not say which models it means"
            )
    if path is not None and path.resolve() == file.resolve():
        raise HierspecError(f"-o would replace the profile {path}: name another file")
    if path is not None and path.suffix != ".json":
        raise HierspecError(f"-o writes a .json file, not {str(path)!r}")


def _export(
    result: Plan, task: PlanningTask, engine: str, max_models: int | None, memory: int | None
) -> dict[str, Any]:
    from hierspec_lab.planning.export import export

    profile = task.profile
    assert profile is not None  # as _validate_exports has ensured
    levels = [model.level for model in profile.models[:-1]]
    return export(result, engine, [*levels, profile.target], max_models, memory)


def _write_hierarchy(result: Plan, task: PlanningTask, path: Path) -> None:
    from hierspec.utils.files import write_atomically

    assert task.profile is not None  # as _validate_exports has ensured
    hierarchy = task.profile.hierarchy(result.best.chain)
    write_atomically(path, json.dumps(hierarchy, indent=2) + "\n", "the hierarchy")
    print(f"{path}: hierspec generate --hierarchy {path} runs it", file=sys.stderr)
