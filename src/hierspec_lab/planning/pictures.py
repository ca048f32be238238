"""A plan as a picture: the hierarchy, and beside it what the other plans would cost."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

from hierspec.planner.estimates import Chain
from hierspec.planner.plan import PricedChain
from hierspec_lab.plotting.figures import (
    BLUE,
    GREY,
    ORANGE,
    PALE,
    SKY,
    VERMILION,
    chained,
    distinct,
    legend_below,
    matplotlib,
    picture_path,
    save,
    sheet,
    shortened,
    style,
)

from .plans import BoundedPlan

MAX_BARS = 9  # the plan, runners-up, plain decoding
BOX_STEP = 1.62  # from box to box; a box is 1 high


def draw_plan(plan: BoundedPlan, path: str | Path, unit: str = "ms") -> None:
    """Draw ``plan``.

    Left, the levels from the smallest (below) to the target, with budgets and shares of the time;
    right, a bar for the plan, for its runners-up and for plain decoding, with the lower bound.

    Args:
        path: ends in ``.svg`` or ``.png``.
        unit: of the costs.

    Raises:
        HierspecError: another ending, or matplotlib is not installed.
    """
    path = picture_path(path)
    bars = _bars(plan)
    levels_height = (BOX_STEP * (len(plan.best.chain.models) - 1) + 1.2) * 0.77  # inches
    bars_height = 0.56 * (len(bars) + 0.15) + 0.5
    with style():
        height = max(levels_height, bars_height)
        figure = sheet(11.0, height + 0.4, _title(plan), _subtitle(plan, unit))
        # Both sides start below the heading, and each keeps its own height.
        rows = sorted({levels_height, bars_height, height})
        heights = [rows[0], *(b - a for a, b in pairwise(rows))]
        grid = figure.add_gridspec(len(heights), 2, width_ratios=(45, 55), height_ratios=heights)
        _draw_levels(figure.add_subplot(grid[: rows.index(levels_height) + 1, 0]), plan.best, plan)
        axes = figure.add_subplot(grid[: rows.index(bars_height) + 1, 1])
        lines = _draw_bars(axes, bars, plan, unit)
        legend_below(figure, lines)
        save(figure, path)


def _title(plan: BoundedPlan) -> str:
    if plan.best.chain.plain:
        return "Plan: decode plainly, speculation does not pay here"
    return f"Plan: {plan.speedup:.2f}× plain decoding"


def _subtitle(plan: BoundedPlan, unit: str) -> str:
    best, plain, bound = (
        f"{value:.4g} {unit}".rstrip()
        for value in (plan.best.ms, plan.estimates.plain_ms, plan.lower_bound)
    )
    costs = "" if unit else ", in units of the problem's costs"
    return (
        f"{best} a token{costs}; plain decoding {plain}; no chain of these models goes below "
        f"{bound}"
    )


def _draw_levels(axes: Any, choice: PricedChain, plan: BoundedPlan) -> None:
    """Draw levels as boxes of height 1 at 0, 1.62, … and, between them, drafts and verdicts."""
    chain, latency, step = choice.chain, choice.latency, BOX_STEP
    top = step * (len(chain.models) - 1) + 1
    axes.set_xlim(0, 10)
    axes.set_ylim(-0.1, top + 0.1)
    axes.axis("off")
    patch = matplotlib("patches").FancyBboxPatch
    for number, model in enumerate(chain.models):
        y = step * number
        is_target = number == len(chain.models) - 1
        edge = BLUE if is_target else SKY
        axes.add_patch(
            patch(
                (0.1, y), 9.8, 1, boxstyle="round,pad=0,rounding_size=0.12",
                facecolor="white", edgecolor=edge, linewidth=2.2 if is_target else 1.4,
            )
        )  # fmt: skip
        name = shortened(plan.estimates.names[model], 36)
        axes.text(0.4, y + 0.7, name, fontsize=11.5, weight="bold", va="center")
        axes.text(9.65, y + 0.28, _role(choice, number), fontsize=9, va="center", ha="right")
        share = latency.spent[number] / latency.ms_per_token
        axes.barh(y + 0.28, 2.6, height=0.2, left=0.4, color=PALE)
        axes.barh(y + 0.28, 2.6 * share, height=0.2, left=0.4, color=edge)
        percent = "< 1" if share < 0.005 else f"{100 * share:.0f}"
        text = f"{percent} % of a token's time"
        axes.text(3.2, y + 0.28, text, fontsize=9, color=GREY, va="center")
        if not is_target:
            _draw_exchange(axes, chain, number, y + 1, y + step)


def _draw_exchange(axes: Any, chain: Chain, number: int, low: float, high: float) -> None:
    middle = (low + high) / 2
    if chain.order != "chain" and number < len(chain.models) - 2:
        axes.text(5, middle, _order_text(chain), fontsize=9, va="center", ha="center")
        return
    arrow = {"arrowstyle": "-|>", "mutation_scale": 13, "linewidth": 1.6, "shrinkA": 2,
              "shrinkB": 2}  # fmt: skip
    axes.annotate("", (1.0, high), (1.0, low), arrowprops={**arrow, "color": ORANGE})
    axes.annotate("", (6.6, low), (6.6, high), arrowprops={**arrow, "color": BLUE})
    axes.text(1.35, middle, _hand_up_text(chain, number), fontsize=9, va="center")
    axes.text(6.95, middle, "verifies, recovers", fontsize=9, va="center")


def _role(choice: PricedChain, number: int) -> str:
    chain = choice.chain
    if number == len(chain.models) - 1:
        if chain.plain:
            return "one token a call"
        return f"{choice.latency.tokens_per_call:.2f} tokens a call"
    if number == 0 or chain.order != "chain":
        return "token by token"
    if chain.models[number] in chain.dropped_bonus:
        return "drops its bonus token"
    return f"rounds until it holds {chain.budgets[number]}"


def _hand_up_text(chain: Chain, number: int) -> str:
    budget = chain.budgets[number]
    if chain.order == "interleaved":
        small, times = chain.budgets
        return f"drafts {(small + 1) * times} tokens together"
    if chain.order == "horizontal":
        return f"drafts {sum(chain.budgets)} tokens together"
    if number == 0:
        return f"drafts {budget} token{'s' if budget > 1 else ''}"
    tail = f" + tail of {chain.tail}" if chain.tail else ""
    return f"hands up at least {budget}{tail}"


def _order_text(chain: Chain) -> str:
    if chain.order == "interleaved":
        small, times = chain.budgets
        return f"in turn: {small} from below, 1 from above; {times} times"
    small, mid = chain.budgets
    return f"one after the other: {mid} from above, then {small} from below"


def _bars(plan: BoundedPlan) -> list[tuple[str, float, str]]:
    """Return label, latency and colour of each bar, best first, plain decoding included."""
    runners = [choice for choice in plan.runners_up if not choice.chain.plain][: MAX_BARS - 2]
    bars = [(_label(plan, choice), choice.ms, SKY) for choice in runners]
    if plan.best.chain.plain:
        bars.append(("plain decoding", plan.best.ms, BLUE))
    else:
        bars.append((_label(plan, plan.best), plan.best.ms, BLUE))
        bars.append(("plain decoding", plan.estimates.plain_ms, GREY))
    return sorted(bars, key=lambda bar: bar[1])


def _label(plan: BoundedPlan, choice: PricedChain) -> str:
    chain = choice.chain
    extras = [chain.order] if chain.order != "chain" else []
    extras += [f"tail {chain.tail}"] if chain.tail else []
    extras += ["bonus dropped"] if chain.dropped_bonus else []
    note = f" ({', '.join(extras)})" if extras else ""
    names = distinct(plan.estimates.names)
    return chained([names[i] for i in chain.models], chain.budgets, 60 - len(note)) + note


def _draw_bars(
    axes: Any, bars: list[tuple[str, float, str]], plan: BoundedPlan, unit: str
) -> list[Any]:
    """Draw the bars and return the lines across them, for the legend."""
    plain = plan.estimates.plain_ms
    for row, (label, ms, color) in enumerate(bars):
        axes.barh(row, ms, height=0.36, color=color, zorder=2)
        white = {"facecolor": "white", "edgecolor": "none", "pad": 1.2}
        axes.annotate(
            f"{plain / ms:.2f}×   {label}", (0, row - 0.2), (2, 3), textcoords="offset points",
            fontsize=9, va="bottom", zorder=4, bbox=white,
        )  # fmt: skip
    lines = [
        axes.axvline(plain, color=VERMILION, linestyle="--", linewidth=1.3, label="plain decoding"),
        axes.axvline(
            plan.lower_bound, color="black", linestyle=":", linewidth=1.5, zorder=3,
            label="lower bound of all chains",
        ),
    ]  # fmt: skip
    axes.set_ylim(len(bars) - 0.65, -0.8)
    axes.set_xlim(0, 1.04 * max(ms for _, ms, _ in bars))
    axes.set_yticks([])
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="x", labelsize=8.5, length=3)
    axes.set_xlabel(
        f"{unit or 'cost'} a token; above each bar: times as fast as plain decoding, then levels "
        "with their tokens",
        fontsize=9, labelpad=3, loc="left", wrap=True,
    )  # fmt: skip
    return lines
