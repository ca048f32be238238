"""A plan on a terminal: the fastest hierarchy, its levels, a picture of them, the runners-up."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.table import Table
from rich.text import Text

from hierspec.utils import terminal
from hierspec_lab.plotting.tables import borderless

if TYPE_CHECKING:
    from rich.console import Console

    from hierspec.planner.plan import Plan, PricedChain
    from hierspec_lab.planning.plans import BoundedPlan


class PlanColumn(NamedTuple):
    """What a package shows of a plan's hierarchies, best first.

    Attributes:
        title: of the column; also the key of its values in the JSON object.
    """

    title: str
    cells: Sequence[str]
    values: Sequence[Any]
    caption: str


_BAR = 24  # characters of the longest bar


def show(
    plan: BoundedPlan,
    unit: str = "",
    console: Console | None = None,
    columns: Sequence[PlanColumn] = (),
    *,
    top: int = 2,
    limits: Sequence[str] = (),
) -> None:
    """Print a plan for people.

    Args:
        unit: of the latencies, with a leading space; empty if costs have no unit.
        columns: beside the times of the plan and its runners-up.
        limits: options that may have excluded every hierarchy but plain decoding.
    """
    console = console or terminal.console()
    console.print(_headline(plan, unit, top, limits))
    if not plan.best.chain.plain:
        console.print()
        console.print(_levels_table(plan, unit))
        console.print()
        for line in _picture(plan):
            console.print(line)
    if plan.runners_up or columns:
        console.print()
        console.print(_ranking_table(plan, unit, columns))
    for column in columns:
        console.print(Text(column.caption, "dim"))
    console.print()
    if plan.three_levels_note:
        console.print(Text(plan.three_levels_note))
    console.print(Text(_describe_bound(plan, unit)))


def _headline(plan: Plan, unit: str, top: int, limits: Sequence[str]) -> Text:
    best, plain = plan.best, plan.estimates.plain_ms
    if best.chain.plain:
        text = Text(f"plain decoding is the fastest: {figure(plain)}{unit} a token", "bold")
        hierarchies = [choice for choice in plan.runners_up if not choice.chain.plain]
        if hierarchies:
            slower = 100 * (hierarchies[0].ms / plain - 1)
            text.append(f"\nThe best hierarchy, {_describe(plan, hierarchies[0])}, ", "not bold")
            difference = f"is {slower:.1f} % slower" if slower > 0.05 else "is no faster"
            text.append(f"{difference}: its drafts are not worth their cost.", "not bold")
        else:
            text.append(f"\n{_why_no_hierarchy(plan, top, limits)}", "not bold")
        return text
    text = Text(f"{_describe(plan, best)}: {figure(best.ms)}{unit} a token", "bold")
    text.append(
        f"\n{plan.speedup:.2f}× plain decoding ({figure(plain)}{unit}), "
        f"{best.latency.tokens_per_call:.2f} tokens a call of the target",
        "not bold",
    )
    return text


def _why_no_hierarchy(plan: Plan, top: int, limits: Sequence[str]) -> str:
    estimates = plan.estimates
    if not any(estimates.can_draft(i, estimates.target) for i in range(estimates.target)):
        return "No model here can draft for the target."
    if limits:
        return f"No hierarchy was compared with it: {' and '.join(limits)} left none."
    if top == 1:
        return "No hierarchy is expected to be faster; --top 2 shows the best of them."
    return "No hierarchy is expected to be faster."


def _levels_table(plan: Plan, unit: str) -> Table:
    chain, latency, estimates = plan.best.chain, plan.best.latency, plan.estimates
    has_sizes = bool(estimates.owners)
    time = f"time a token{f' /{unit}' if unit else ''}"
    weights = ("weights",) if has_sizes else ()
    table = borderless(("level", "model"), ("num_speculative_tokens", time, "share", *weights))
    counted_owners: set[str] = set()
    budgets = (*map(str, chain.budgets), "")
    for i, (model, ms) in enumerate(zip(chain.models, latency.spent, strict=True)):
        cells = [
            "target" if i == len(chain.budgets) else str(i),
            Text(estimates.names[model]),
            budgets[i],
            figure(ms),
            f"{100 * ms / latency.ms_per_token:.1f} %",
        ]
        if has_sizes:  # shared weights count once
            owner = estimates.owners[model]
            cells.append("shared" if owner in counted_owners else _bytes(estimates.bytes([model])))
            counted_owners.add(owner)
        table.add_row(*cells)
    if has_sizes:
        total = _bytes(estimates.bytes(chain.models))
        table.add_row("", "all", "", figure(latency.ms_per_token), "100 %", total)
    return table


def _picture(plan: Plan) -> Iterator[Text]:
    chain, names = plan.best.chain, plan.estimates.names
    width = max(len(names[i]) for i in chain.models)

    def row(model: int, action: str) -> Text:
        return Text(f"  {names[model]:<{width}}  ", "bold").append(action, "not bold")

    emitted = plan.best.latency.tokens_per_call
    yield row(chain.models[-1], f"verifies, and writes {emitted:.2f} tokens a call")
    arrow = Text(f"  {'▲':^{width}}".rstrip(), "dim")
    if chain.order != "chain":
        (n, m), (small, mid, _) = chain.budgets, chain.models
        actions = {
            "interleaved": f"{m} times: {n} of {names[small]}, then 1 of {names[mid]}",
            "horizontal": f"{m} of {names[mid]}, then {n} of {names[small]}",
        }
        yield arrow
        yield Text(f"  {actions[chain.order]}, in one draft")
        return
    for i in reversed(range(len(chain.budgets))):
        model, budget = chain.models[i], chain.budgets[i]
        yield arrow
        if i == 0:
            yield row(model, f"drafts {budget} token{'' if budget == 1 else 's'} a round")
            break
        action = f"verifies until it holds {budget} or more, hands them up"
        if chain.tail:
            action += f" with {chain.tail} more of {names[chain.models[0]]}"
        if model in chain.dropped_bonus:
            action += "; keeps no bonus token"
        yield row(model, action)


def _ranking_table(plan: Plan, unit: str, columns: Sequence[PlanColumn]) -> Table:
    choices = [plan.best, *plan.runners_up]
    longest = max(choice.ms for choice in choices)
    time = f"time a token{f' /{unit}' if unit else ''}"
    table = borderless((), (time, *(column.title for column in columns)))
    table.add_column("")
    table.add_column("speed-up", justify="right")
    table.add_column("hierarchy")
    bar = _BAR // 2 if columns else _BAR  # room for one more column
    for i, choice in enumerate(choices):
        table.add_row(
            figure(choice.ms),
            *(column.cells[i] for column in columns),
            "█" * max(1, round(bar * choice.ms / longest)),
            f"{plan.estimates.plain_ms / choice.ms:.2f}×",
            Text(_describe(plan, choice)),
        )
    return table


def _describe_bound(plan: BoundedPlan, unit: str) -> str:
    gap = 100 * (plan.best.ms / plan.lower_bound - 1)
    distance = "the plan attains it" if gap < 0.005 else f"the plan is {gap:.1f} % above"
    if gap > 1000:
        distance = "which says little here"
    model = " by P1's formula" if plan.latency_model == "corollary" else ""
    return (
        f"lower bound {figure(plan.lower_bound)}{unit}: no hierarchy of these models can be "
        f"faster, {distance}{model}; search took {plan.search_seconds:.3f} s"
    )


def _describe(plan: Plan, choice: PricedChain) -> str:
    """Return a hierarchy as ``small (4) → mid (8) → target``."""
    chain, names = choice.chain, plan.estimates.names
    if chain.plain:
        return "plain decoding"
    *drafters, target = chain.models
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


def figure(value: float) -> str:
    return f"{value:.4g}" if value < 1000 else f"{value:,.0f}"


def _bytes(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.4g} TiB"
