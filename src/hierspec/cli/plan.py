"""``hierspec plan --map``: the heat map that suits the models at hand.

``hierspec plan --simulate``: the chains of an answer run by the simulated interpreter.

How a plan looks on a terminal: the levels, a picture of them, and what came near.

``hierspec plan``: which models to stack with which budgets, and whether to speculate at all.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from rich.console import Console
from rich.table import Table
from rich.text import Text

from hierspec.errors import HierspecError
from hierspec.planner.estimates import Estimates
from hierspec.planner.maps import cost_acceptance_map, exits_map
from hierspec.planner.plan import Choice, LatencyModel, Plan
from hierspec.planner.problem import check_tokens, load_json, parse_problem
from hierspec.planner.search import EVERY, PLAIN, Shapes, plan
from hierspec.planner.simulated import ACCEPTANCES, COSTS, Records, check_name, simulated
from hierspec.simulation import Simulation
from hierspec.utils.checks import temperature as check_temperature

if TYPE_CHECKING:
    from hierspec.simulation import Simulation


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
        raise HierspecError("--map needs a model that can draft for the target")
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


@dataclass(frozen=True, slots=True)
class Simulations:
    """Of the best chain and its runners-up, in that order."""

    each: tuple[Simulation, ...]
    acceptances: str
    costs: str
    rounds: int
    note: str = ""

    def described(self, out: dict[str, Any]) -> dict[str, Any]:
        """A plan's JSON object with ``simulated`` beside every chain."""
        best, *others = (
            {
                "ms_per_token": found.ms_per_token,
                "standard_error": found.standard_error,
                "acceptances": self.acceptances,
                "costs": self.costs,
                "rounds": self.rounds,
            }
            for found in self.each
        )
        runners = zip(out["runners_up"], others, strict=True)
        return {
            **out,
            "simulated": best,
            "runners_up": [{**runner, "simulated": found} for runner, found in runners],
        }

    def caption(self) -> str:
        """What the figures are, in a line."""
        acceptances = {
            "iid": "independent acceptances",
            "curves": "acceptances by the measured curves",
            "recorded": "recorded drafts in order",
        }[self.acceptances]
        costs = {"real": "costs by pair and length", "artificial": "a constant cost per call"}
        return (
            f"simulated ± standard error: {self.rounds} rounds each, {acceptances}, "
            f"{costs[self.costs]}{self.note}"
        )


def check(acceptances: str | None, costs: str | None, rounds: int | None, profile: Any) -> None:
    """Refuse options that are none, or that the file has nothing for."""
    if rounds is None:
        if acceptances is not None or costs is not None:
            raise HierspecError("--acceptances and --costs are for --simulate ROUNDS: add it")
        return
    if acceptances is not None:
        check_name(acceptances, ACCEPTANCES, "--acceptances")
    if costs is not None:
        check_name(costs, COSTS, "--costs")
    if profile is None and acceptances == "recorded":
        raise HierspecError("--acceptances recorded is for profiles; this file is a problem")


def simulations(
    answer: Plan,
    rounds: int,
    acceptances: str | None = None,
    costs: str | None = None,
    profile: Any = None,
    temperature: float = 0.0,
) -> Simulations:
    """Run every chain of ``answer``.

    Args:
        acceptances: default: a profile's curves; a problem's rates, which are independent.
    """
    kind = acceptances or ("iid" if profile is None else "curves")
    source: str | Records = kind
    note = ""
    if kind == "recorded":
        assert profile is not None
        measured = profile.nearest(temperature)
        source = Records.of(profile.measured(measured)["pairs"])
        if answer.estimates.classes:
            note = "; every draft counts alike, where plans weigh kinds of text by their tokens"
        if measured > 0:
            note += "; drafts are kept as by tokenwise verification, plans are for block"
    chains = [choice.chain for choice in (answer.best, *answer.runners_up)]
    priced = costs or "real"
    run = (simulated(answer.estimates, chain, source, priced, rounds) for chain in chains)
    return Simulations(tuple(run), kind, priced, rounds, note)


_BAR = 24  # characters of the longest bar


def show(
    plan: Plan, unit: str = "", console: Console | None = None, runs: Simulations | None = None
) -> None:
    """Print a plan for people.

    Args:
        unit: of the latencies, with a leading space; none where costs have no unit.
        runs: what simulations of the plan and its runners-up say.
    """
    console = console or Console(highlight=False, soft_wrap=True)
    console.print(headline(plan, unit))
    if not plan.best.chain.plain:
        console.print()
        console.print(levels(plan, unit))
        console.print()
        for line in picture(plan):
            console.print(line)
    if plan.runners_up or runs:
        console.print()
        console.print(ranking(plan, unit, runs))
    if runs:
        console.print(Text(runs.caption(), "dim"))
    console.print()
    console.print(Text(bound(plan, unit)))


def headline(plan: Plan, unit: str) -> Text:
    """The answer in a sentence."""
    best, plain = plan.best, plan.estimates.plain_ms
    if best.chain.plain:
        text = Text(f"plain decoding is the fastest: {_figure(plain)}{unit} a token", "bold")
        others = [choice for choice in plan.runners_up if not choice.chain.plain]
        if others:
            slower = 100 * (others[0].ms / plain - 1)
            text.append(f"\nThe best hierarchy, {named(plan, others[0])}, ", "not bold")
            more = f"is {slower:.1f} % slower" if slower > 0.05 else "is no faster"
            text.append(f"{more}: its drafts are not worth their cost.", "not bold")
        else:
            text.append("\nNo model here can draft for the target.", "not bold")
        return text
    text = Text(f"{named(plan, best)}: {_figure(best.ms)}{unit} a token", "bold")
    text.append(
        f"\n{plan.speedup:.2f}× plain decoding ({_figure(plain)}{unit}), "
        f"{best.latency.tokens_per_call:.2f} tokens a call of the target",
        "not bold",
    )
    return text


def levels(plan: Plan, unit: str) -> Table:
    """One row a level, smallest first: what it is asked for, and where the time goes."""
    chain, latency = plan.best.chain, plan.best.latency
    sized = bool(plan.estimates.owners)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("level")
    table.add_column("model")
    table.add_column("num_speculative_tokens", justify="right")
    table.add_column(f"time a token{f' /{unit}' if unit else ''}", justify="right")
    table.add_column("share", justify="right")
    if sized:
        table.add_column("weights", justify="right")
    seen: set[str] = set()
    for at, (model, spent) in enumerate(zip(chain.levels, latency.spent, strict=True)):
        budget = "" if at == len(chain.budgets) else str(chain.budgets[at])
        cells = [
            "target" if at == len(chain.budgets) else str(at),
            Text(plan.estimates.names[model]),
            budget,
            _figure(spent),
            f"{100 * spent / latency.ms_per_token:.1f} %",
        ]
        if sized:  # shared weights count once
            owner = plan.estimates.owners[model]
            cells.append("shared" if owner in seen else _bytes(plan.estimates.bytes([model])))
            seen.add(owner)
        table.add_row(*cells)
    if sized:
        total = _bytes(plan.estimates.bytes(chain.levels))
        table.add_row("", "all", "", _figure(latency.ms_per_token), "100 %", total)
    return table


def picture(plan: Plan) -> Iterator[Text]:
    """The stack, target on top, with what each level does."""
    chain, names = plan.best.chain, plan.estimates.names
    width = max(len(names[i]) for i in chain.levels)

    def row(model: int, doing: str) -> Text:
        return Text(f"  {names[model]:<{width}}  ", "bold").append(doing, "not bold")

    emitted = plan.best.latency.tokens_per_call
    yield row(chain.levels[-1], f"verifies, and writes {emitted:.2f} tokens a call")
    arrow = Text(f"  {'▲':^{width}}".rstrip(), "dim")
    if chain.order != "chain":
        (n, m), (small, mid, _) = chain.budgets, chain.levels
        runs = {
            "interleaved": f"{m} times: {n} of {names[small]}, then 1 of {names[mid]}",
            "horizontal": f"{m} of {names[mid]}, then {n} of {names[small]}",
        }
        yield arrow
        yield Text(f"  {runs[chain.order]}, in one draft")
        return
    for at in reversed(range(len(chain.budgets))):
        model, budget = chain.levels[at], chain.budgets[at]
        yield arrow
        if at == 0:
            yield row(model, f"drafts {budget}, one by one")
            break
        doing = f"verifies until it holds {budget} or more, hands them up"
        if chain.tail:
            doing += f" with {chain.tail} more of {names[chain.levels[0]]}"
        if model in chain.dropped_bonus:
            doing += "; keeps no bonus token"
        yield row(model, doing)


def ranking(plan: Plan, unit: str, runs: Simulations | None = None) -> Table:
    """The plan and its runners-up, their cost as a bar; beside it what simulations say."""
    choices = [plan.best, *plan.runners_up]
    longest = max(choice.ms for choice in choices)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(f"time a token{f' /{unit}' if unit else ''}", justify="right")
    if runs:
        table.add_column("simulated", justify="right")
    table.add_column("")
    table.add_column("speed-up", justify="right")
    table.add_column("hierarchy")
    bar = _BAR // 2 if runs else _BAR  # room for one more column
    simulated = [[_simulated(run)] for run in runs.each] if runs else [[] for _ in choices]
    for choice, run in zip(choices, simulated, strict=True):
        table.add_row(
            _figure(choice.ms),
            *run,
            "█" * max(1, round(bar * choice.ms / longest)),
            f"{plan.estimates.plain_ms / choice.ms:.2f}×",
            Text(named(plan, choice)),
        )
    return table


def bound(plan: Plan, unit: str) -> str:
    """What nothing can beat, and how near the plan is."""
    gap = 100 * (plan.best.ms / plan.lower_bound - 1)
    near = "the plan attains it" if gap < 0.005 else f"the plan is {gap:.1f} % above"
    model = " by P1's formula" if plan.latency_model == "corollary" else ""
    return (
        f"lower bound {_figure(plan.lower_bound)}{unit}: no hierarchy of these models can be "
        f"faster, {near}{model}; searched for {plan.search_seconds:.3f} s"
    )


def named(plan: Plan, choice: Choice) -> str:
    """``small (4) → mid (8) → target``."""
    chain, names = choice.chain, plan.estimates.names
    if chain.plain:
        return "plain decoding"
    *drafters, target = chain.levels
    parts = [f"{names[i]} ({n})" for i, n in zip(drafters, chain.budgets, strict=True)]
    if chain.order == "chain":
        text = " → ".join([*parts, names[target]])
    else:
        text = f"{chain.order} {' + '.join(parts)} → {names[target]}"
    extras = []
    if chain.tail:
        extras.append(f"tail of {chain.tail}")
    if chain.dropped_bonus:
        extras.append(f"no bonus at {', '.join(names[i] for i in chain.dropped_bonus)}")
    return f"{text}, {', '.join(extras)}" if extras else text


def _simulated(run: Simulation) -> str:
    error = run.standard_error
    if error < 1e-6 * run.ms_per_token:  # as of plain decoding: rounding is all there is
        return f"{_figure(run.ms_per_token)} ± 0"
    decimals = max(0, 1 - math.floor(math.log10(error)))  # two digits of the error
    return f"{run.ms_per_token:,.{decimals}f} ± {error:.{decimals}f}"


def _figure(value: float) -> str:
    return f"{value:.4g}" if value < 1000 else f"{value:,.0f}"


def _bytes(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.4g} TiB"


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
        from hierspec.planner.pictures import draw_plan

        draw_plan(answer, options.picture, unit=unit)
    if options.map is not None:
        print(
            f"{options.map}: {draw(question.estimates, question.profile, options.map)}",
            file=sys.stderr,
        )
    exported = None if options.to is None else _exported(answer, question, options.to)
    runs = None
    if options.simulate is not None:
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

    show(answer, unit=f" {unit}" if unit else "", runs=runs)
    if exported is not None:
        print(f"\nThe best that {exported['engine']} can express:\n")
        print(exported.get("command") or exported["python"])
        print(f"\n{exported['note']}")
    return 0


def check_picture(path: Path) -> None:
    """Refuse a picture that cannot be written before anything is computed."""
    from hierspec.plotting.figures import matplotlib, picture_path

    picture_path(path)
    matplotlib()


def check_engine(name: str, question: Question) -> None:
    """Refuse an engine that is none, and a problem file, which names no models."""
    from hierspec.planner.export import ENGINES

    if name not in ENGINES:
        raise HierspecError(f"no engine called {name!r}; there are: {', '.join(ENGINES)}")
    if question.profile is None:
        raise HierspecError(
            "--to is for profiles: a problem file does not say which models it means"
        )


def _exported(answer: Plan, question: Question, engine: str) -> dict[str, Any]:
    from hierspec.planner.export import export

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
        raise HierspecError(
            f"{options.file}: neither a problem (an object with costs and acceptance) nor a "
            f'profile ("kind": "{PROFILE_KIND}")'
        )
    else:
        if options.temperature is not None or options.force:
            raise HierspecError(
                "--temperature and --force are for profiles; this file is a problem"
            )
        if options.max_speculative_tokens is not None:
            check_tokens(options.max_speculative_tokens, "--max-speculative-tokens")
            data = {**data, "max_speculative_tokens": options.max_speculative_tokens}
        if options.latency_model is not None:
            data = {**data, "latency_model": options.latency_model}
        problem = parse_problem(data)
        question = Question(problem.estimates, problem.latency_model, PLAIN, problem.warnings)
    return question


def _from_profile(options: Options) -> Question:
    from hierspec.profiling.profile import load_profile

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
        raise HierspecError(f"--memory-budget takes a size such as 2GiB or 500MB, not {text!r}")
    if not float(found[1]) < 1e15:
        raise HierspecError(f"--memory-budget of {text[:20]}… is no size of any machine")
    return int(float(found[1]) * unit)
