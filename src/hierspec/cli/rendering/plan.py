"""A plan on a terminal: the answer, its levels, a picture of them, and what came near."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from hierspec.utils import terminal
from hierspec.utils.terminal import borderless

if TYPE_CHECKING:
    from rich.console import Console

    from hierspec.planner.plan import Choice, Plan
    from hierspec.simulation.interpreter import Simulation


@dataclass(frozen=True, slots=True)
class Simulations:
    """Simulated runs of the best chain and its runners-up, in that order."""

    each: tuple[Simulation, ...]
    acceptances: str
    costs: str
    rounds: int
    note: str = ""

    def described(self, out: dict[str, Any]) -> dict[str, Any]:
        """Return a plan's JSON object with ``simulated`` beside every chain."""
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
        """Return what the figures are, in a line."""
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


_BAR = 24  # characters of the longest bar


def show(
    plan: Plan,
    unit: str = "",
    console: Console | None = None,
    runs: Simulations | None = None,
    *,
    top: int = 2,
    limits: Sequence[str] = (),
) -> None:
    """Print a plan for people.

    Args:
        unit: of the latencies, with a leading space; none where costs have no unit.
        runs: what simulations of the plan and its runners-up say.
        top: how many hierarchies were asked for.
        limits: the options that may have left plain decoding alone.
    """
    console = console or terminal.console()
    console.print(headline(plan, unit, top, limits))
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
    if plan.on_three_levels:
        console.print(Text(plan.on_three_levels))
    console.print(Text(bound(plan, unit)))


def headline(plan: Plan, unit: str, top: int = 2, limits: Sequence[str] = ()) -> Text:
    """Return the answer in a sentence; the last arguments are those of :func:`show`."""
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
            text.append(f"\n{_alone(plan, top, limits)}", "not bold")
        return text
    text = Text(f"{named(plan, best)}: {_figure(best.ms)}{unit} a token", "bold")
    text.append(
        f"\n{plan.speedup:.2f}× plain decoding ({_figure(plain)}{unit}), "
        f"{best.latency.tokens_per_call:.2f} tokens a call of the target",
        "not bold",
    )
    return text


def _alone(plan: Plan, top: int, limits: Sequence[str]) -> str:
    """Return why plain decoding is all there is to show."""
    estimates = plan.estimates
    if not any(estimates.can_draft(i, estimates.target) for i in range(estimates.target)):
        return "No model here can draft for the target."
    if limits:
        return f"No hierarchy was compared with it: {' and '.join(limits)} left none."
    if top == 1:
        return "No hierarchy is expected to be faster; --top 2 shows the best of them."
    return "No hierarchy is expected to be faster."


def levels(plan: Plan, unit: str) -> Table:
    """Return a row a level, smallest first: what it is asked for, and where the time goes."""
    chain, latency, estimates = plan.best.chain, plan.best.latency, plan.estimates
    sized = bool(estimates.owners)
    time = f"time a token{f' /{unit}' if unit else ''}"
    weights = ("weights",) if sized else ()
    table = borderless(("level", "model"), ("num_speculative_tokens", time, "share", *weights))
    seen: set[str] = set()
    budgets = (*map(str, chain.budgets), "")
    for at, (model, spent) in enumerate(zip(chain.levels, latency.spent, strict=True)):
        cells = [
            "target" if at == len(chain.budgets) else str(at),
            Text(estimates.names[model]),
            budgets[at],
            _figure(spent),
            f"{100 * spent / latency.ms_per_token:.1f} %",
        ]
        if sized:  # shared weights count once
            owner = estimates.owners[model]
            cells.append("shared" if owner in seen else _bytes(estimates.bytes([model])))
            seen.add(owner)
        table.add_row(*cells)
    if sized:
        total = _bytes(estimates.bytes(chain.levels))
        table.add_row("", "all", "", _figure(latency.ms_per_token), "100 %", total)
    return table


def picture(plan: Plan) -> Iterator[Text]:
    """Yield the stack, target on top, with what each level does."""
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
            yield row(model, f"drafts {budget} token{'' if budget == 1 else 's'} a round")
            break
        doing = f"verifies until it holds {budget} or more, hands them up"
        if chain.tail:
            doing += f" with {chain.tail} more of {names[chain.levels[0]]}"
        if model in chain.dropped_bonus:
            doing += "; keeps no bonus token"
        yield row(model, doing)


def ranking(plan: Plan, unit: str, runs: Simulations | None = None) -> Table:
    """Return the plan and its runners-up, their cost as a bar; beside it what simulations say."""
    choices = [plan.best, *plan.runners_up]
    longest = max(choice.ms for choice in choices)
    time = f"time a token{f' /{unit}' if unit else ''}"
    table = borderless((), (time, "simulated") if runs else (time,))
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
    """Return what nothing can beat, and how near the plan is."""
    gap = 100 * (plan.best.ms / plan.lower_bound - 1)
    near = "the plan attains it" if gap < 0.005 else f"the plan is {gap:.1f} % above"
    if gap > 1000:
        near = "which says little here"
    model = " by P1's formula" if plan.latency_model == "corollary" else ""
    return (
        f"lower bound {_figure(plan.lower_bound)}{unit}: no hierarchy of these models can be "
        f"faster, {near}{model}; search took {plan.search_seconds:.3f} s"
    )


def named(plan: Plan, choice: Choice) -> str:
    """Return a hierarchy as ``small (4) → mid (8) → target``."""
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
