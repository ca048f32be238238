"""P1 on the models at hand: hierarchies of K models, predicted and measured [P1 §4, §5].

Two pools, as in the paper: early exits of the target (§4) and separate models (§5; for the shipped
family its n-gram table joins them, as P1's statistical drafter does). Of a shallow target every
layer is a candidate, as in the paper; where exits have trained heads, only those exits are. Each
pool is profiled on every other prompt; the best plan for each number of models is then measured on
the remaining prompts, with the horizontal heuristic (tokens of the smallest model after everything
that a level hands up) and with drafters at temperatures of their own. The memory that each needs
beyond the target is computed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from hierspec.errors import HierspecError
from hierspec.methods.early_exit import trained_exits
from hierspec_lab.papers.lab import Lab
from hierspec_lab.papers.measured import SPEEDUP_COLUMNS, notes, side_by_side, uncompared_table
from hierspec_lab.papers.p3.systems import cache_bytes
from hierspec_lab.papers.tables import Reproduction, Table
from hierspec_lab.planning.corollary import corollary

from .trials import (
    ProfiledPool,
    Trial,
    add_tail,
    best_planned,
    candidate_names,
    plan_trials,
    profile_pool,
    set_draft_temperature,
)

TAILS = (1, 2, 3, 5, 10)  # tokens of the smallest model after every level; P1 Table 4: 10
TEMPERATURE_RATIOS = (0.0, 0.5, 0.75, 1.25)  # drafters' temperatures over the request's

# P1 Table 3: model → (speed-up of HSD, of a single draft); early exits, CNN-DM unless named
TABLE_3 = {
    "LayerSkip2-7B": (1.76, 1.62),
    "LayerSkip2-13B": (1.41, 1.20),
    "LayerSkip2-70B": (1.77, 1.58),
    "Gemma2-9B": (1.06, 1.03),
    "Gemma2-9B (XSUM)": (1.15, 1.08),
}
# P1 Table 4: temperature → method → standardized walltime improvement on GSM8K, on MMLU
TABLE_4 = {
    1.0: {"single draft": (3.44, 3.61), "HSD": (3.68, 4.06), "HSD + HH": (3.70, 4.16)},
    0.6: {"single draft": (3.44, 3.67), "HSD": (3.67, 4.10), "HSD + HH": (3.69, 4.17)},
    0.0: {"single draft": (3.38, 3.68), "HSD": (3.76, 4.10), "HSD + HH": (3.79, 4.13)},
}


def split_prompts(lab: Lab) -> tuple[list[Sequence[int]], Lab]:
    """Return every other prompt, to profile on, and the lab with the rest, to measure on.

    A single prompt serves for both.
    """
    profile_prompts = list(lab.prompts[1::2]) or list(lab.prompts)
    return profile_prompts, dataclasses.replace(lab, prompts=lab.prompts[::2])


def measure(lab: Lab) -> Reproduction:
    """Measure hierarchies planned from profiles, at each of the lab's temperatures.

    Raises:
        HierspecError: no prompt, no tokenizer, or nothing that could draft.
    """
    lab.require("p1-models")
    profile_prompts, lab = split_prompts(lab)
    heads, _ = trained_exits(lab.target)
    pools = [
        ProfiledPool(title, profile_pool(lab, profile_prompts, title, names), heads)
        for title, names in candidate_names(lab).items()
        if names
    ]
    if not pools:
        raise HierspecError(
            "p1-models needs something that drafts: give --draft, or a target of two layers or more"
        )
    tables: list[Table] = []
    for temperature in lab.temperatures:
        tables += _tables_at(lab, pools, temperature)
    return Reproduction("p1-models", tuple(tables), (), lab.to_dict())


def _tables_at(lab: Lab, pools: Sequence[ProfiledPool], temperature: float) -> list[Table]:
    """Measure all trials of all pools alternately, at one temperature, and return their tables."""
    groups = []
    for pool in pools:
        trials = plan_trials(lab, pool, temperature)
        best = best_planned(trials, 3)
        tails = [add_tail(lab, best, tail) for tail in TAILS] if best else []
        bases = [t for t in (best_planned(trials, 2, 2), best) if t] if temperature else []
        tempered = [
            set_draft_temperature(lab, base, ratio * temperature)
            for base in bases
            for ratio in TEMPERATURE_RATIOS
        ]
        groups.append((pool, trials, tails, tempered))
    all_trials = [t for _, trials, tails, tempered in groups for t in (*trials, *tails, *tempered)]
    drafting = [t for t in all_trials if not t.choice.chain.plain]
    plain, *measurements = side_by_side(lab, [t.method for t in drafting], temperature, "p1-models")
    for trial in all_trials:
        trial.measured = plain
    for trial, measured in zip(drafting, measurements, strict=True):
        trial.measured = measured
    tables = []
    for pool, trials, tails, tempered in groups:
        tables += [
            _rate_table(pool, temperature),
            _size_table(lab, pool, trials, temperature),
            _memory_table(pool, trials, temperature),
        ]
        if tails:
            tables.append(_heuristic_table(pool, best_planned(trials, 3), tails, temperature))
        tables.append(_improvement_table(pool, trials, tails, temperature))
        if tempered:
            tables.append(_draft_temperature_table(pool, trials, tempered, temperature))
    return tables


def _rate_table(pool: ProfiledPool, temperature: float) -> Table:
    """Return rates and costs in the shape of P1's Tables 6 and 7."""
    names = [model.name for model in pool.profile.models]
    labels = [pool.label(name) for name in names]
    greedy = temperature == 0
    by_pair = {
        (pair.drafter, pair.verifier): pair.equal_argmax if greedy else pair.acceptance
        for pair in pool.profile.measured(temperature).pairs
    }
    rows = []
    for i, model in enumerate(pool.profile.models[:-1]):
        rates = (by_pair.get((i, k)) for k in range(1, len(names)))
        cells = ("" if rate is None else rate for rate in rates)
        rows.append((labels[i], (model.call_ms, *cells)))
    rows.append(("target", (pool.profile.models[-1].call_ms, *[""] * (len(names) - 1))))
    return uncompared_table(
        f"Acceptance rates, {pool.title}, temperature {temperature:g}",
        "of each model's tokens by each larger one, and milliseconds of a call (P1 Tables 6, 7)",
        "model",
        rows,
        ("ms a call", *labels[1:-1], "target"),
        notes=(
            "Along the target's own texts; greedy: the share of equal choices, else 1 − TV. Empty: "
            "not measured, since the model's call is no cheaper, or a look-up has no distribution.",
        ),
    )


def _size_table(lab: Lab, pool: ProfiledPool, trials: Sequence[Trial], temperature: float) -> Table:
    """Return predicted and measured speeds in the shape of P1's Tables 1 and 3."""
    best = best_planned(trials, 1)
    rows = []
    for trial in trials:
        chain = trial.choice.chain
        ms = trial.choice.ms
        formula = corollary(trial.estimates, chain).ms_per_token
        predicted = (ms, formula, trial.estimates.plain_ms / ms)
        star = " (planned)" if trial is best else ""
        measured = _measured_cells(trial, temperature)
        rows.append((f"{len(chain.models)}{star}", (trial.names, *predicted, *measured)))
    return uncompared_table(
        f"Number of models, {pool.title}, temperature {temperature:g}",
        "the best plan of each number of models, predicted and measured (P1 Tables 1 and 3)",
        "models",
        rows,
        ("hierarchy", "predicted ms", "by formula", "predicted speed-up", *_MEASURED),
        notes=(
            "predicted: the general model with measured curves and costs; by formula: P1's "
            "Corollary 3.1; measured: milliseconds a token after the first, mean over prompts. "
            "Calls were timed minutes before the runs; where the machine has other work, compare "
            "the speed-ups.",
            *_comparison_with_single_draft(trials),
            *(
                (f"Exits score with heads trained for them ({pool.heads}).",)
                if pool.heads and pool.title == "early exits"
                else ()
            ),
            *([_printed_table_3()] if pool.title == "early exits" else ()),
            "Profiled on every other prompt, measured on those between.",
            *notes(lab),
        ),
    )


def _memory_table(pool: ProfiledPool, trials: Sequence[Trial], temperature: float) -> Table:
    """Return the bytes that each hierarchy needs beyond plain decoding's."""
    plain, *_ = trials
    weights = plain.estimates.bytes(plain.choice.chain.models)
    caches = cache_bytes(plain.method)
    rows = [
        (str(len(trial.choice.chain.models)), (trial.names, *(trial.memory or ("", ""))))
        for trial in trials
    ]
    return uncompared_table(
        f"Memory, {pool.title}, temperature {temperature:g}",
        "bytes that each hierarchy needs beyond the target's, computed from the models",
        "models",
        rows,
        ("hierarchy", "weights", "caches per token"),
        {"target weights": weights, "target caches per token": caches},
        notes=(
            "weights: of other models, of tables as their files, and of trained exit heads; exits "
            "share the target's. caches: keys and values of other models, and hidden states at "
            "each exit.",
            f"The target's own: {weights:,} bytes of weights, {caches:,} of caches per token.",
        ),
    )


def _printed_table_3() -> str:
    cells = (
        f"{name} {hsd} against {single} ({hsd / single:.2f})"
        for name, (hsd, single) in TABLE_3.items()
    )
    return f"P1 Table 3 prints, three models against a single draft: {'; '.join(cells)}."


def _comparison_with_single_draft(trials: Sequence[Trial]) -> tuple[str, ...]:
    best = (best_planned(trials, 2, 2), best_planned(trials, 3))
    single, deep = (trial.measured if trial else None for trial in best)
    if not (single and deep and single.runs and deep.runs):
        return ()
    speedup = deep.speedup_over(single.runs)
    return (
        f"Best of three models or more over the best single draft: "
        f"{speedup.format(unit='')}, per prompt; P1 reports up to 1.2.",
    )


def _heuristic_table(
    pool: ProfiledPool, base: Trial | None, tails: Sequence[Trial], temperature: float
) -> Table:
    """Return the horizontal heuristic (Chen et al., 2023b): h more tokens of the smallest model."""
    assert base is not None
    rows = []
    for trial in (base, *tails):
        measured = (*_measured_cells(trial, temperature), _improvement_cell(trial))
        rows.append((str(trial.choice.chain.tail), (trial.choice.ms, *measured)))
    return uncompared_table(
        f"Horizontal heuristic, {pool.title}, temperature {temperature:g}",
        f"{base.names}, with h tokens of the smallest model after all that a level hands up",
        "h",
        rows,
        ("predicted ms", *_MEASURED, "walltime improvement"),
        notes=(
            "P1 Table 4 finds half a per cent to 2.5 per cent in it, with h = 10 and a bigram "
            "table as the smallest model (Appendix D); budgets are not planned again for it here, "
            "so that only h differs.",
        ),
    )


def _improvement_table(
    pool: ProfiledPool, trials: Sequence[Trial], tails: Sequence[Trial], temperature: float
) -> Table:
    """Return walltime improvements in the shape of P1's Table 4."""
    trials_by_method = {
        "single draft": best_planned(trials, 2, 2),
        "HSD": best_planned(trials, 3),
        "HSD + HH": min(tails, key=lambda t: t.choice.ms, default=None),
    }
    printed = TABLE_4.get(temperature, {})
    rows = [
        (
            name,
            (
                _improvement_cell(trial),
                trial.measured.speedup.median if trial.measured and trial.measured.runs else "",
                *(printed.get(name) or ("", "")),
            ),
        )
        for name, trial in trials_by_method.items()
        if trial is not None
    ]
    return uncompared_table(
        f"Table 4, {pool.title}, temperature {temperature:g}",
        "standardized walltime improvement: every call charged by the weights it runs through",
        "method",
        rows,
        ("improvement", "measured speed-up", "printed GSM8K", "printed MMLU"),
        notes=(
            "P1 refers to Chen et al. (2023b) for it: tokens · c_target over the sum of calls · c, "
            "tables free. Printed: T5-XXL (11 B) with smaller T5 models and a table. It leaves out "
            "that small calls cost more than their share, so it is above measured speed-ups.",
            "The hierarchies are those the planner expects most of; h of HH as well.",
        ),
    )


def _draft_temperature_table(
    pool: ProfiledPool, trials: Sequence[Trial], tempered: Sequence[Trial], temperature: float
) -> Table:
    """Return single draft and hierarchy with drafters at temperatures of their own [P1 §5]."""
    rows = []
    for base in (best_planned(trials, 2, 2), best_planned(trials, 3)):
        variants = [t for t in tempered if base and t.choice.chain == base.choice.chain]
        if not variants or base is None:
            continue
        by_ratio = {1.0: base, **dict(zip(TEMPERATURE_RATIOS, variants, strict=True))}
        for ratio, trial in sorted(by_ratio.items(), key=lambda item: item[0]):
            measured = trial.measured
            acceptance = measured.acceptance() if measured and measured.runs else ""
            cells = (base.names, acceptance, *_measured_cells(trial, temperature)[1:-1])
            rows.append((f"{ratio * temperature:g}", cells))
    return uncompared_table(
        f"Drafters' temperature, {pool.title}, request at {temperature:g}",
        "all levels below the target at this temperature; the output's law stays the request's",
        "temperature",
        rows,
        ("hierarchy", "kept by target", *SPEEDUP_COLUMNS, "tokens a call"),
        notes=("P1 finds .5 best for drafters of a request at .6, and 1 for one at 1 (Table 10).",),
    )


_MEASURED = ("measured ms", *SPEEDUP_COLUMNS, "tokens a call", "same as plain")


def _measured_cells(trial: Trial, temperature: float) -> tuple:
    """Return the cells of :data:`_MEASURED`; the last is the reason where it could not run."""
    measured = trial.measured
    if measured is None or not measured.runs:
        return (*[""] * 5, measured.reason if measured else "")
    return (measured.decode_ms, *measured.cells(temperature))


def _improvement_cell(trial: Trial) -> float | str:
    return "" if trial.improvement is None else trial.improvement
