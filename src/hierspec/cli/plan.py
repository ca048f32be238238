"""``hierspec plan``: which models to stack with which budgets, and whether to speculate at all."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from ..checks import temperature as check_temperature
from ..planner.estimates import Estimates
from ..planner.plan import LatencyModel, Plan
from ..planner.problem import check_tokens, load_json, parse_problem
from ..planner.search import EVERY, PLAIN, Shapes, plan

PROFILE_KIND = "hierspec-profile"


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line says; ``None``: as the file says, or the default."""

    file: Path
    as_json: bool = False
    top: int = 5
    latency_model: str | None = None
    max_models: int | None = None
    memory_budget: str | None = None
    max_speculative_tokens: int | None = None
    temperature: float | None = None
    force: bool = False
    to: str | None = None
    picture: Path | None = None
    map: Path | None = None
    simulate: int | None = None
    acceptances: str | None = None
    costs: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Question:
    """What to plan for.

    Attributes:
        shapes: what beyond plain chains may be chosen.
        profile: where the estimates come from; ``None`` for a problem file.
    """

    estimates: Estimates
    latency_model: LatencyModel
    shapes: Shapes
    warnings: tuple[str, ...] = ()
    profile: Any = None


def run(options: Options) -> int:
    """0, also where plain decoding is the fastest: that is an answer."""
    for path in (options.picture, options.map):
        if path is not None:
            check_picture(path)
    question = read(options)
    if options.to is not None:
        check_engine(options.to, question)
    if (options.simulate, options.acceptances, options.costs) != (None, None, None):
        from .plan_simulate import check

        check(options.acceptances, options.costs, options.simulate, question.profile)
    for warning in question.warnings:
        print(f"hierspec: warning: {warning}", file=sys.stderr)
    memory = None if options.memory_budget is None else size(options.memory_budget)
    answer = plan(
        question.estimates,
        latency_model=question.latency_model,
        max_models=options.max_models,
        memory=memory,
        top=options.top,
        shapes=question.shapes,
    )
    unit = "ms" if question.profile is not None else ""
    if options.picture is not None:
        from ..planner.pictures import draw_plan

        draw_plan(answer, options.picture, unit=unit)
    if options.map is not None:
        from .plan_map import draw

        print(
            f"{options.map}: {draw(question.estimates, question.profile, options.map)}",
            file=sys.stderr,
        )
    exported = None if options.to is None else _exported(answer, question, options.to)
    runs = None
    if options.simulate is not None:
        from .plan_simulate import simulations

        runs = simulations(
            answer,
            options.simulate,
            options.acceptances,
            options.costs,
            question.profile,
            options.temperature or 0.0,
        )
    if options.as_json:
        out = described(answer, question)
        out = out if runs is None else runs.described(out)
        print(json.dumps(out if exported is None else {**out, "export": exported}))
        return 0
    from .plan_render import show

    show(answer, unit=f" {unit}" if unit else "", runs=runs)
    if exported is not None:
        print(f"\nThe best that {exported['engine']} can express:\n")
        print(exported.get("command") or exported["python"])
        print(f"\n{exported['note']}")
    return 0


def check_picture(path: Path) -> None:
    """Refuse a picture that cannot be written before anything is computed."""
    from ..planner.figures import checked, plotting

    checked(path)
    plotting()


def check_engine(name: str, question: Question) -> None:
    """Refuse an engine that is none, and a problem file, which names no models."""
    from ..planner.engines import ENGINES

    if name not in ENGINES:
        raise ValueError(f"no engine called {name!r}; there are: {', '.join(ENGINES)}")
    if question.profile is None:
        raise ValueError("--to is for profiles: a problem file does not say which models it means")


def _exported(answer: Plan, question: Question, engine: str) -> dict[str, Any]:
    from ..planner.export import export

    profile = question.profile
    levels = [model["level"] for model in profile.models[:-1]]
    return export(answer, engine, [*levels, profile.data["target"]])


def read(options: Options) -> Question:
    """The question that a problem or a profile asks, with the command line's changes.

    Raises:
        ValueError: the file is neither, or an option does not go with it.
    """
    data = load_json(options.file)
    if data.get("kind") == PROFILE_KIND:
        question = _from_profile(options)
    elif "kind" in data and "costs" not in data:
        raise ValueError(
            f"{options.file}: neither a problem (an object with costs and acceptance) nor a "
            f'profile ("kind": "{PROFILE_KIND}")'
        )
    else:
        if options.temperature is not None or options.force:
            raise ValueError("--temperature and --force are for profiles; this file is a problem")
        if options.max_speculative_tokens is not None:
            check_tokens(options.max_speculative_tokens, "--max-speculative-tokens")
            data = {**data, "max_speculative_tokens": options.max_speculative_tokens}
        if options.latency_model is not None:
            data = {**data, "latency_model": options.latency_model}
        problem = parse_problem(data)
        question = Question(problem.estimates, problem.latency_model, PLAIN, problem.warnings)
    return question


def _from_profile(options: Options) -> Question:
    from ..profiling.profile import load_profile

    temperature = options.temperature or 0.0
    check_temperature(temperature, "--temperature")
    profile = load_profile(options.file, force=options.force)
    if options.max_speculative_tokens is not None:
        check_tokens(options.max_speculative_tokens, "--max-speculative-tokens")
    estimates = profile.estimates(temperature, max_budget=options.max_speculative_tokens)
    warnings: tuple[str, ...] = ()
    known = profile.max_measured
    if (options.max_speculative_tokens or 0) > known:
        warnings = (f"budgets above {known} were not measured: curves are carried on from there",)
    if (measured := profile.nearest(temperature)) != temperature:
        warnings += (f"planned with what was measured at temperature {measured:g}, the nearest",)
    model = cast(LatencyModel, options.latency_model or "exact")
    shapes = EVERY if model == "exact" else PLAIN
    return Question(estimates, model, shapes, warnings, profile)


def described(answer: Plan, question: Question) -> dict[str, Any]:
    """The object that ``--json`` prints."""
    out = answer.to_dict() | {"warnings": list(question.warnings)}
    if question.profile is not None:
        out["hierarchy"] = question.profile.hierarchy(answer.best.chain)
    return out


_UNITS = {"": 1} | {
    prefix + suffix: base ** (power + 1)
    for base, suffix in ((1000, "b"), (1024, "ib"))
    for power, prefix in enumerate("kmgt")
}


def size(text: str) -> int:
    """Bytes of ``2GiB``, ``500MB``, ``1.5 gib`` or a plain number."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", text.lower())
    unit = None if found is None else _UNITS.get("" if found[2] == "b" else found[2])
    if found is None or unit is None or float(found[1]) <= 0:
        raise ValueError(f"--memory-budget takes a size such as 2GiB or 500MB, not {text!r}")
    if not float(found[1]) < 1e15:
        raise ValueError(f"--memory-budget of {text[:20]}… is no size of any machine")
    return int(float(found[1]) * unit)
