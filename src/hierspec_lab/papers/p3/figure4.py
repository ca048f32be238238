"""P3's Figure 4: the share of the quarter-depth exit's tokens that the last layer accepts.

Every exit predicts every token of texts that the target writes itself. Greedily, a token counts if
both choose the same; with sampling, by 1 − TV of the two distributions, its chance to be accepted.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from statistics import fmean

from hierspec.profiling import rates
from hierspec.profiling.agreement import agreements, mean_agreement
from hierspec.profiling.candidates import CandidatePool, load, parse
from hierspec.profiling.rounds import DraftingSettings
from hierspec_lab.bench.summary import standard_error
from hierspec_lab.papers.lab import Lab
from hierspec_lab.papers.measured import model_notes
from hierspec_lab.papers.tables import Cell, Curve, Figure, Reproduction, Table, TableRow

from .systems import default_exits, exits_to_try

PRINTED = "69"  # per cent, "up to": the largest bar of Figure 4 (P3 §1, §3.2)


def measure(lab: Lab) -> Reproduction:
    """Measure the share of every exit tried, the quarter-depth one's beside the printed 69 %.

    Raises:
        HierspecError: the target is too shallow for two exits, or there is no prompt.
    """
    lab.require("p3-figure4")
    default = default_exits(lab.models)
    exits = exits_to_try(lab.models.num_layers, *default)
    pool = load(lab.models.target, [parse(f"exit:{layer}") for layer in exits], lab.models.loaded)
    shares = {
        t: lab.once(f"accepted, temperature {t:g}", partial(measure_acceptance, lab, pool, t))
        for t in lab.temperatures
    }
    return Reproduction(
        "p3-figure4",
        (_table(lab, exits, default[1], shares),),
        (_figure(lab, exits, default[1], shares),),
        lab.to_dict(),
    )


def measure_acceptance(lab: Lab, pool: CandidatePool, temperature: float) -> list[list[float]]:
    """Return [exits, prompts]: the share of positions after each prompt that the target accepts."""
    drafting = DraftingSettings(
        places=1, rounds=1, max_budget=1, temperature=temperature, seed=lab.seed
    )
    stage = f"figure 4, temperature {temperature:g}"
    lab.report(f"{stage}: the target writes", 0.0)
    texts = rates.continuations(pool, lab.prompts, lab.max_new_tokens, drafting)
    target = len(pool.members) - 1
    shares: list[list[float]] = [[] for _ in range(target)]
    for number, (text, prompt) in enumerate(zip(texts, lab.prompts, strict=True)):
        lab.report(f"{stage}: exits read", number / len(texts))
        *_, scores = agreements(pool, [text], [len(prompt)], [len(text)], drafting)
        for i in range(target):
            shares[i].append(mean_agreement(scores, (i, target), greedy=not temperature))
    return shares


def _table(
    lab: Lab, exits: Sequence[int], quarter: int, shares: dict[float, list[list[float]]]
) -> Table:
    depth = lab.models.num_layers
    rows = []
    exit_name = f"L{quarter} → L{depth}"
    for temperature, by_exit in shares.items():
        by_prompt = by_exit[exits.index(quarter)]
        cell = Cell(PRINTED, 100 * fmean(by_prompt), exit_name)
        error = 100 * (standard_error(by_prompt) or 0.0)
        rows.append(TableRow(f"{temperature:g}", (cell,), (exit_name, error)))
    return Table(
        "Figure 4",
        "tokens of the quarter-depth exit that the last layer accepts, per cent",
        "temperature",
        ("accepted",),
        tuple(rows),
        ("exit", "standard error"),
        {"quarter": quarter, "num_layers": depth},
        compared=False,
        notes=(
            "Printed is the largest of P3's bars (other models, other data); the others "
            "stand in a picture only. Errors are over prompts.",
            "Counted along the target's own text at every position, so this is the acceptance "
            "rate α; drafts of several tokens begin where the target has just corrected, and are "
            "kept a little less often there.",
            *model_notes(lab),
        ),
    )


def _figure(
    lab: Lab, exits: Sequence[int], quarter: int, shares: dict[float, list[list[float]]]
) -> Figure:
    curves = tuple(
        Curve(
            f"temperature {temperature:g}",
            tuple(float(layer) for layer in exits),
            tuple(100 * fmean(by_prompt) for by_prompt in by_exit),
            spread=tuple(196 * (standard_error(by_prompt) or 0.0) for by_prompt in by_exit),
        )
        for temperature, by_exit in shares.items()
    )
    return Figure(
        "Figure 4",
        f"tokens of an exit that the last layer accepts, {lab.target}",
        "exit (layer)",
        "accepted (per cent)",
        curves,
        notes=(
            f"P3 shows the quarter-depth exit alone (here layer {quarter}), for five data sets: up "
            f"to {PRINTED} %. Spread: 1.96 standard errors over prompts.",
            *model_notes(lab),
        ),
    )
