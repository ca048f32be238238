"""P5 Figure 8: tokens offered to the target, round by round, and how many of them it keeps."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from hierspec_lab.papers.lab import Lab
from hierspec_lab.papers.measured import model_notes, uncompared_table
from hierspec_lab.papers.tables import Curve, Figure, Reproduction

from .redundancy import SYSTEMS
from .rounds import Round, run_traced
from .systems import NOT_AS_PRINTED, drafts, levels_by_system, method, paper_temperature, roles


def measure(lab: Lab) -> Reproduction:
    """Trace the rounds of all prompts; figures show the first prompt's, a table all of them.

    At temperature 1, as in P5, if that is among the lab's.
    """
    small, large = drafts(lab, "p5-windows-over-time")
    temperature = paper_temperature(lab.temperatures)
    every = levels_by_system(small, large)
    rows, figures = [], []
    total = len(SYSTEMS) * len(lab.prompts)
    for i, name in enumerate(SYSTEMS):
        system, rounds_by_text = method(lab, name, every[name]), []
        for number in range(len(lab.prompts)):
            rounds_by_text.append(run_traced(lab, system, temperature, number)[1])
            share = (i * len(lab.prompts) + number + 1) / total
            lab.report(f"p5-windows-over-time, {name}", share)
        figures.append(_figure(lab, name, temperature, rounds_by_text[0]))
        rows.append((name, _numbers(lab, rounds_by_text)))
    table = uncompared_table(
        f"Figure 8 in numbers, temperature {temperature:g}",
        "tokens offered to the target a round, over all prompts",
        "system",
        rows,
        ("rounds", "mean", "deviation", "least", "most", "single", "kept", "till rejected"),
        roles(lab),
        notes=(
            "Rounds that the end of the text cut short are left out. Kept: kept tokens over "
            "offered ones. Single: the share of windows of one token. Till rejected: the mean "
            "number of rounds up to a text's first rejection by the target; until then "
            "M2's threshold is 0.",
            *NOT_AS_PRINTED,
            *model_notes(lab),
        ),
    )
    return Reproduction("p5-windows-over-time", (table,), tuple(figures), lab.to_dict())


def uncut(rounds: Sequence[Round], end: int) -> list[Round]:
    """Return the rounds that the end of the text cannot have cut: one more token was allowed.

    Args:
        end: length of the finished text, prompt included.
    """
    return [r for r in rounds if r.at + r.offered + 1 < end]


def _numbers(lab: Lab, rounds_by_text: Sequence[Sequence[Round]]) -> tuple[object, ...]:
    ends = [len(prompt) + lab.max_new_tokens for prompt in lab.prompts]
    pairs = zip(rounds_by_text, ends, strict=True)
    complete = [r for rounds, end in pairs for r in uncut(rounds, end)]
    offered = [r.offered for r in complete]
    if not offered:
        return (0, *["none"] * 7)
    first_rejections = [
        next((i for i, r in enumerate(rounds, 1) if r.rejected), len(rounds))
        for rounds in rounds_by_text
        if rounds
    ]
    return (
        len(offered),
        statistics.fmean(offered),
        statistics.pstdev(offered),
        min(offered),
        max(offered),
        offered.count(1) / len(offered),
        sum(r.kept for r in complete) / sum(offered),
        statistics.fmean(first_rejections),
    )


def _figure(lab: Lab, name: str, temperature: float, rounds: Sequence[Round]) -> Figure:
    steps = tuple(float(i) for i in range(1, len(rounds) + 1))
    return Figure(
        f"Figure 8: {name}, temperature {temperature:g}",
        "window size at each round of one generation, and the part of it that was kept",
        "round of the target",
        "tokens",
        (
            Curve("offered", steps, tuple(float(r.offered) for r in rounds), "bars"),
            Curve("kept", steps, tuple(float(r.kept) for r in rounds), "bars"),
        ),
        notes=(
            "The first prompt. Its last rounds may be cut by the end of the text. For the calls "
            "of all levels in time: hierspec generate --trace, then hierspec timeline.",
            *model_notes(lab),
        ),
    )
