"""Parts of the page besides the claims: computed verdicts, and tables of costs and of rules."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np

from hierspec_lab.papers.p1 import tables as p1_tables
from hierspec_lab.papers.p2.formula import interleaved_tokens
from hierspec_lab.papers.p5.redundancy import TABLE_4 as PRINTED_P5_TABLE_4
from hierspec_lab.papers.prompts import MATHEMATICS

from . import effects
from .files import ExperimentFile, ExperimentRun
from .formula import FILES, STACKED, SWEEPS, choose_with_tail, read_formula
from .items import TABLES_SOURCE, FixedVerdict
from .methods import MULTI_DRAFT_RULES, SHORT_TAIL, TAIL, WINDOW_SIZES
from .sequential import LOOKS, Estimate, estimate, judge_interval

ACCURACY_DIFFERENCE = 0.0028  # the smallest that matters: half of P4's own on GSM8K
TABLE_A1_CASES = [
    (a, b, n, m) for a in (0.5, 0.8) for b in (0.3, 0.6) for n in (1, 2, 3) for m in (1, 4)
]


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def computed_verdicts(item: str) -> list[FixedVerdict]:
    """Return the verdicts on an item that are computed, without a measurement."""
    if item in ("P1 Table 1", "P1 Table 8"):
        return [_judge_growth(item.removeprefix("P1 "))]
    if item == "P1 Table 9":
        return [_judge_printed_table("Table 9")]
    if item == "P1 Theorem 2.2":
        return [_judge_latency()]
    if item in _THEOREMS_OF_P4:
        return [_judge_branches(item)]
    if item == "P4 Table A.2":
        return [_judge_accuracy()]
    if item == "P4 Table A.3":
        return [_judge_missing_cap()]
    return [_judge_table_a1()] if item in ("P2 Table A.1", "P2 Theorem 3.2") else []


def judge_sweep(files: Mapping[str, ExperimentFile]) -> list[FixedVerdict]:
    """Say how near what P1's formula chooses of vertical cascades is to the best of them."""
    readings = [read_formula(files[name]) for name in FILES if name in files]
    if not readings:
        return []
    worst = min(reading.choice_over_best for reading in readings)
    sizes = sorted(len(reading.measured) for reading in readings)
    reason = (
        f"of vertical choices alone, by weights, in {len(readings)} files with {sizes[0]} to "
        f"{sizes[-1]} choices of models and budgets each: the formula's choice at the acceptances "
        f"measured has at least {worst:.3f} of the best one's speed-up"
    )
    return [FixedVerdict("holds" if worst >= 0.98 else "does not hold", reason, "the table below")]


def _judge_growth(name: str) -> FixedVerdict:
    """Decide whether the speed-up grows with every further model, and count the printed digits."""
    table = _tables_of_p1()[name]
    speedups = [row.cells[0].computed for row in table.rows]
    grows = all(low < high for low, high in pairwise(speedups))
    cells = list(table.cells())
    reason = (
        f"recomputed from the printed inputs: {speedups[1]:.3f}× with two models, "
        f"{speedups[-1]:.3f}× with six, {'more' if grows else 'not more'} with each; "
        f"the printed digits are others ({table.matching} of {len(cells)} cells follow)"
    )
    return FixedVerdict("holds" if grows else "does not hold", reason, TABLES_SOURCE)


def _judge_latency() -> FixedVerdict:
    """Decide whether P1's formula is the expected latency of Algorithm 1, overshoot handed up."""
    rows = _tables_of_p1()["Table 1"].rows[1:]
    excess = [row.cells[1].computed / row.extra[-1] - 1 for row in rows]
    reason = (
        f"the expected latency with one drafter, and an upper bound with more: "
        f"{100 * min(excess[1:]):.1f} to {100 * max(excess):.1f} % too high at the plans of Table "
        f"1, since Algorithm 1 hands up what overshoots a budget as well; with γ computed exactly"
    )
    is_exact = max(map(abs, excess)) < 1e-9
    return FixedVerdict("holds" if is_exact else "does not hold", reason, TABLES_SOURCE)


_THEOREMS_OF_P4 = ("P4 Theorem 1", "P4 Theorem 2", "P4 Theorem 4")
_BRANCH_CASES = 200


def _judge_branches(item: str) -> FixedVerdict:
    """Decide a theorem on divergences within a branch, on random laws of two tokens of four."""
    random = np.random.default_rng(0)
    largest_error = 0.0
    for _ in range(_BRANCH_CASES):
        # [x, y]: laws of a first and a second token, p and q.
        (p, p_next), (q, q_next) = (
            (random.dirichlet(np.ones(4)), random.dirichlet(np.ones(4), 4)) for _ in range(2)
        )
        joint_p, joint_q = p[:, None] * p_next, q[:, None] * q_next
        deficit, excess = (
            np.maximum(d, 0.0).sum(1) for d in (joint_p - joint_q, joint_q - joint_p)
        )
        if item == "P4 Theorem 1":
            # Acceptance leaves min(p, q) of each text, and resampling moves the rejected excess.
            recovered = np.minimum(joint_p, joint_q).sum(1) + np.minimum(deficit, excess)
            missing = joint_p.sum(1) - recovered
            error = float(np.abs(missing - np.maximum(deficit - excess, 0.0)).max())
        elif item == "P4 Theorem 2":
            asymmetry = (deficit - excess) / q  # given the drafted prefix
            error = float(np.abs(asymmetry - (p / q - 1)).max())
        else:
            children = np.maximum(deficit - excess, 0.0).sum()
            error = float(abs(children - np.maximum(p - q, 0.0).sum()))
        largest_error = max(largest_error, error)
    reason = f"on {_BRANCH_CASES} random pairs of laws, off by less than 10⁻¹²"
    if largest_error < 1e-12:
        return FixedVerdict("holds", reason, "computed")
    return FixedVerdict("does not hold", f"off by up to {largest_error:.2g}", "computed")


_ACCURACY = Path(__file__).parents[1] / "results" / "p4-accuracy.json"


@cache
def _accuracies() -> dict[str, Any]:
    """Return what ``benchmarks/accuracy.py`` has computed."""
    return json.loads(_ACCURACY.read_text())


def _right_chances(temperature: str) -> dict[str, list[float]]:
    """Return by rule the chance of a right answer to each question; ``target``: of it alone."""
    rows = [question["right"][temperature] for question in _accuracies()["questions"]]
    return {rule: [row[rule] for row in rows] for rule in rows[0]}


def _judge_accuracy() -> FixedVerdict:
    """Decide whether block is as often right as tokenwise."""
    found, n = _accuracies(), len(_accuracies()["questions"])
    by_temperature = {t: _right_chances(t) for t in found["summary"]}
    error = max(
        abs(chance - own)
        for chances in by_temperature.values()
        for rule in ("tokenwise", "block")
        for chance, own in zip(chances[rule], chances["target"], strict=True)
    )
    means = " and ".join(
        f"{fmean(chances['target']):.3f} at temperature {t}"
        for t, chances in by_temperature.items()
    )
    reason = (
        f"on {n} questions with short answers, SmolLM2 with drafts of "
        f"{found['settings']['length']} tokens by its sibling: the chance of a right answer, "
        f"{means} in the mean, is the target's own by both rules on each, off by less than "
        f"10⁻⁹; so the printed gain of up to .03 is not the rule's; GSM8K itself is beyond the "
        f"models here"
    )
    if error < 1e-9:
        return FixedVerdict("holds", reason, f"`{_ACCURACY.name}`, `quality.json`")
    return FixedVerdict("does not hold", f"off by up to {error:.2g}", f"`{_ACCURACY.name}`")


def _judge_missing_cap() -> FixedVerdict:
    """Decide whether a rule that forgets the cap is less often right, at temperature 1."""
    effects_text, effect = [], None
    for temperature, row in _accuracies()["summary"].items():
        chances = _right_chances(temperature)
        losses = [a - b for a, b in zip(chances["block"], chances["uncapped"], strict=True)]
        value, low, high = row["block_less_uncapped"]
        found = Estimate(value, low, high, stdev(losses), len(losses))
        effect = effect or found
        effects_text.append(
            f"{_interval_text(found)} at temperature {temperature}, above 0 on "
            f"{sum(x > 1e-9 for x in losses)} and below on {sum(x < -1e-9 for x in losses)}"
        )
    assert effect is not None
    reason = (
        f"on the {effect.n} questions of A.2, the chance of a right answer with the cap less "
        f"without: {'; '.join(effects_text)} (95 % bootstrap); P4's own is +0.0056 on GSM8K and "
        f"+0.019 on HumanEval; the least that matters is half of the former (0.01 was said first, "
        f"which is above what P4 found)"
    )
    verdict = judge_interval(effect, ACCURACY_DIFFERENCE)
    return FixedVerdict(verdict, reason, f"`{_ACCURACY.name}`")


def _interval_text(effect: Estimate) -> str:
    return f"{effect.value:+.3f} [{effect.low:+.3f}, {effect.high:+.3f}]"


@cache
def _tables_of_p1() -> dict[str, Any]:
    return {table.name: table for table in p1_tables.compute().tables}


def _judge_printed_table(name: str) -> FixedVerdict:
    """Decide whether a printed table follows from its inputs, within a unit of the last digit."""
    table = _tables_of_p1()[name]
    cells = list(table.cells())
    num_near = sum(abs(cell.units) <= 1 for cell in cells)
    counts = f"{table.matching} of {len(cells)} printed cells follow from the printed inputs"
    if num_near == len(cells):
        reason = f"{counts}, the others within a unit of the last digit"
        return FixedVerdict("holds", reason, TABLES_SOURCE)
    reason = f"{counts}, and {num_near} within a unit of the last digit"
    return FixedVerdict("does not hold", reason, TABLES_SOURCE)


def token_count_probs(alpha: float, beta: float, n: int, m: int) -> list[float]:
    """Return P2 Table A.1 as printed: the probability of 1, 2, … m(n + 1) + 1 tokens of a round."""
    probs = []
    for block in range(m):
        reached = beta ** (n * block) * alpha**block
        probs += [reached * beta**k * (1 - beta) for k in range(n)]
        probs.append(reached * beta**n * (1 - alpha))
    return [*probs, beta ** (m * n) * alpha**m]


def _judge_table_a1() -> FixedVerdict:
    """Decide whether the printed probabilities sum to 1 and have the theorem's mean."""
    largest_error = 0.0
    for case in TABLE_A1_CASES:
        probs = token_count_probs(*case)
        mean = sum(k * p for k, p in enumerate(probs, 1))
        errors = abs(sum(probs) - 1), abs(mean - float(interleaved_tokens(*case)))
        largest_error = max(largest_error, *errors)
    if largest_error < 1e-9:
        reason = f"in {len(TABLE_A1_CASES)} cases it sums to 1 and its mean is Theorem 3.2's"
        return FixedVerdict("holds", reason, "computed")
    reason = f"off by {largest_error:.2g} from a distribution with Theorem 3.2's mean"
    return FixedVerdict("does not hold", reason, "computed")


def sections(files: Mapping[str, ExperimentFile]) -> list[str]:
    """Return the page's further sections in Markdown, for the files that exist."""
    parts = []
    for title, names, introduction in _COST_SECTIONS:
        tables = [_cost_table(name, files[name]) for name in names if name in files]
        if tables:
            parts += [f"## {title}", introduction, *tables]
    formula_rows = [_formula_row(name, files[name]) for name in FILES if name in files]
    if formula_rows:
        parts += ["## P1 Table 4: what the formula says, and what was measured", _P1_TABLE_4]
        parts.append(markdown_table(_FORMULA_HEADER, formula_rows))
    sweeps = [_sweep_table(name, files[name]) for name in SWEEPS if name in files]
    if sweeps:
        parts += ["## P1 §5: the sweep", _P1_SWEEP, *sweeps]
    if "p4-trunk" in files:
        parts += ["## P4 Table 1 beside the printed", _P4_TABLE_1, _rule_table(files["p4-trunk"])]
    if "p4-eagle3-several" in files:
        parts += ["## P4 Table 4(b) with sampled drafts", _P4_TABLE_4, _eagle_table(files)]
    by_position = [_position_table(name, files[name]) for name in _LONG_FILES if name in files]
    if by_position:
        parts += ["## P4 Figure A.1 by position", _P4_FIGURE_A1, *by_position]
    readings = [_readings_table(name, files[name]) for name in _LONG_TEXTS if name in files]
    if readings:
        parts += ['## P5 Table 4, and what "the current output" is', _P5_TABLE_4, *readings]
    if "p5-trunk-windows" in files:
        parts += ["## P5 Figure 7: speed by K", _P5_FIGURE_7]
        parts.append(_windows_table(files["p5-trunk-windows"]))
    by_domain = [_domain_table(name, files[name]) for name in _DOMAIN_FILES if name in files]
    if by_domain:
        parts += ["## P5 Table 3: mathematics apart", _P5_TABLE_3, *by_domain]
    return parts


_COST_SECTIONS = (
    (
        "HiSpec against LayerSkip: why",
        ("clock-p3-smollm2", "p3-smollm2", "clock-p3-large", "p3-trunk"),
        """Calls a token of each level times what a call costs (by layers, in calls of the whole
model), beside the measured time of a token where there is one. A single exit pays for its drafts
once; HiSpec pays for two tokens of the lower exit and for a check of each pair, so that a drafted
token costs less, and more calls are made.""",
    ),
    (
        "P5's full system against its parts: why",
        ("clock-p5-large-1", "clock-p5-large-0", "p5-smollm2-1", "p5-trunk-1", "p5-trunk-0"),
        """The same for P5's systems, by weights. What a quantized copy's call costs depends on the
machine, so such families have calls only.""",
    ),
)
_P1_TABLE_4 = """\
Acceptance rates α as measured, put into P1's formula at the prices of the same methods: the best
stack of three over the best single draft, what it chooses of all, and what was measured (means
over prompts; the claims above compare by prompt and cross-fit the choice). The small drafter never
drafts for the target by itself at the synthetic cost."""
_FORMULA_HEADER = (
    "file",
    "α small by large",
    "small by target",
    "large by target",
    "three over one, formula",
    "measured",
    "its choice",
    "choice over best measured",
)
_P1_SWEEP = f"""\
Speed-up over plain decoding by weights, all prompts together, of the shipped n-gram table (free, as
P1's statistical drafter is), `zoo:small`, `zoo:mid` and the trunk. Plans are vertical cascades,
each level's tokens with the smallest model first, beside what P1's formula says of them at the
acceptances measured. Behind a plan's levels come h tokens of the table, or, behind those of
`zoo:mid`, one or three of `zoo:small` and then {TAIL} of the table: horizontal cascades. P1 takes
h = {TAIL} without a sweep (Appendix D). *Best* is that of all on the same prompts; the claim
compares with the one that is best on others, which lies below the best there is, so that a ratio
near 1 flatters the choice. P1's sweep is over all lengths; this one has five or six of each."""
_P5_TABLE_4 = """\
σ: the share of what the target was offered that it did not keep; η: calls of the target a token;
speed-up: over plain decoding, if a call costs what Table 4's single drafters imply (.02 of the
target's for M1, .19 for M2), and over vanilla M2; printed: MT-Bench, Llama 70B, 7B and 68M,
temperature 1. P5 hands up where M2 is not "confident in the current output", H(q_2^i) > τ_2, and
does not say at which i of its round: at any token, at the last one, or at those that M2 accepted.
The printed full system has nearly vanilla M2's η, and σ a little greater. *Nearest*: the reading
whose differences from vanilla M2 are nearest to those, with P5's running threshold, and of all.
Claims on 256 tokens that name no reading are about the last token, with the running threshold."""
_LONG_TEXTS = ("p5-trunk-long", "p5-large-long")
_P5_FIGURE_7 = """\
Speed-up over plain decoding at P5's costs, temperature 1; variation: (greatest − least) / greatest.
P5 shows the curves as a picture, for MT-Bench. In the full system, M1 drafts at most K tokens at a
time, and M2 holds at most 15. In time, over 40 tokens at the synthetic cost, its speed varied less
as well, but vanilla M2 was faster at its best K
([Figure 7](results.md#p5-figure-7-speed-over-the-window-size-k))."""
_P5_TABLE_3 = """Gain of the full system over vanilla M2, problems of mathematics (GSM8K and
Spec-Bench's) and the rest. P5 prints 2.95 / 2.40 = 1.23 on all, 2.08 / 2.29 = .91 on mathematics,
3.04 / 2.41 = 1.26 on the rest, and blames a drafter that knows no mathematics. The drafters here
learned from the same texts as their targets, or are parts of them, so that none lacks what its
target knows. On short texts any token's entropy hands up, on those of 256 the last one's."""
_DOMAIN_FILES = ("clock-p5-large-1", "p5-smollm2-1", "p5-trunk-domains")


_P4_TABLE_1 = """\
Tokens a call of the target, all prompts of a data set together; printed: Qwen2.5 0.5B
for 72 B, n = 10. Branch resampling is block verification, so block's numbers are compared with the
printed ones of both. z: tokens kept less those expected of each draft that was verified, over all
prompts, in standard deviations of the random acceptances."""
_PRINTED_P4_TABLE_1 = {  # rule here → printed rows: GSM8K, HumanEval, CNN/DM
    "tokenwise 10": "6.44, 5.23, 2.35",
    "block 10": "6.53, 5.34, 2.39 (blockwise); 6.65, 5.40, 2.45 (branch resampling)",
}
_P4_TABLE_4 = """\
EAGLE-3's drafter for SmolLM2, one draft of four tokens or four such drafts, sampled;
`one` is block on the first draft alone. P4 prints 3.40 tokens a call for EAGLE-3 and 3.55 with its
verification, with drafts that are not sampled and a first token that is always accepted, which
changes the output law. It has no number for blockwise, and none for several drafts of EAGLE-3."""
_P4_FIGURE_A1 = """\
The chance that all of m drafted tokens are kept, if the draft is the first m tokens of
a draft of ten: mean over all drafts of that length. P4 gives these chances as formulas, and the
figure for GSM8K as a picture only; HSD's, with the cap at the end, is block's."""
_LONG_FILES = ("p4-trunk-long", "p4-smollm2-long")
_DATA_SETS = ("gsm8k", "humaneval", "summarization")


def _formula_row(name: str, file: ExperimentFile) -> tuple[str, ...]:
    """Return a file's row of the table on P1's formula."""
    reading = read_formula(file)
    stack = next(prices for method, prices in file.prices.items() if method.startswith(STACKED))
    assert stack is not None
    small, large, target = stack
    pairs = (small, large), (small, target), (large, target)
    return (
        f"`{name}.json`",
        *(f"{reading.rates[pair]:.3f}" if pair in reading.rates else "" for pair in pairs),
        f"{reading.stacked_over_single(reading.predicted):.2f}",
        f"{reading.stacked_over_single(reading.measured):.2f}",
        reading.choice,
        f"{reading.choice_over_best:.3f}",
    )


def _sweep_table(name: str, file: ExperimentFile) -> str:
    """Return a table of vertical cascades by the formula, and of what follows their levels."""
    reading = read_formula(file)
    measured = {name: _speedup_by_cost(file.runs_of(name), file) or 0.0 for name in file.methods}
    best = max(measured, key=lambda method: measured[method])
    chosen = choose_with_tail(file)
    tails = ("", f" + {SHORT_TAIL}", f" + {TAIL}", *(f" + small {h} + {TAIL}" for h in (1, 3)))
    rows = [
        (
            plan,
            f"{predicted:.2f}",
            *(f"{measured[plan + t]:.2f}" if plan + t in measured else "" for t in tails),
        )
        for plan, predicted in sorted(reading.predicted.items(), key=lambda item: -item[1])
    ]
    header = ("plan", "formula", "h = 0", f"h = {SHORT_TAIL}", f"h = {TAIL}", "1 of small", "3")
    title = (
        f"`{name}.json`: {len(file.prompts)} prompts; the choice with its tail, {chosen}, "
        f"{measured[chosen]:.3f}; best, {best}, {measured[best]:.3f}; ratio "
        f"{measured[chosen] / measured[best]:.3f}"
    )
    return f"{title}\n\n{markdown_table(header, rows)}"


def _readings_table(name: str, file: ExperimentFile) -> str:
    """Return a table of P5's systems beside its Table 4, the full one by reading and threshold."""
    vanilla = _redundancy(file, "vanilla M2, K = 10")
    printed = {system: tuple(map(float, row)) for system, row in PRINTED_P5_TABLE_4.items()}
    printed_gap = [a - b for a, b in zip(printed["full"], printed["vanilla M2"], strict=True)]
    found = {
        system: _redundancy(file, system)
        for system in ("vanilla M2, K = 10", "vanilla M1", "pre-verify + self-verify, running")
    }
    full = {system: _redundancy(file, system) for system in file.methods if "full" in system}

    def distance(system: str) -> float:
        gaps = (ours - theirs for ours, theirs in zip(full[system][:2], vanilla[:2], strict=True))
        return math.dist(tuple(gaps), printed_gap[:2])

    running = [system for system in full if system.endswith("running")]
    marks = {min(full, key=distance): "nearest of all"}
    marks[min(running, key=distance)] = "nearest, running"
    rows = [
        (
            system + suffix,
            f"{sigma:.1f}",
            f"{eta:.1f}",
            f"{sigma - base[0]:+.1f}",
            f"{eta - base[1]:+.1f}",
            f"{speedup:.2f}",
            f"{speedup / base[2]:.2f}",
            marks.get(system, ""),
        )
        for base, systems, suffix in (
            (printed["vanilla M2"], printed, ", printed"),
            (vanilla, found | full, ""),
        )
        for system, (sigma, eta, speedup) in systems.items()
    ]
    header = ("system", "σ %", "η %", "σ − M2's", "η − M2's", "speed-up", "over M2 alone")
    settings = file.settings
    title = f"`{name}.json`: {len(file.prompts)} prompts × {settings.max_new_tokens} tokens"
    return f"{title}\n\n{markdown_table((*header, ''), rows)}"


def _windows_table(file: ExperimentFile) -> str:
    """Return a table of the speed-up at P5's costs of each system by K."""
    rows = []
    for system in ("vanilla M2", "pre-verify + self-verify", "full"):
        names = [f"{system}, K = {k}" for k in WINDOW_SIZES]
        found = [_redundancy(file, name)[2] for name in names]
        variation = (max(found) - min(found)) / max(found)
        rows.append((system, *(f"{speedup:.2f}" for speedup in found), f"{variation:.2f}"))
    header = ("system", *(f"K = {k}" for k in WINDOW_SIZES), "variation")
    title = f"`p5-trunk-windows.json`: {len(file.prompts)} prompts"
    return f"{title}\n\n{markdown_table(header, rows)}"


def _redundancy(file: ExperimentFile, system: str) -> tuple[float, float, float]:
    """Return a system's σ and η in per cent, and its speed-up at the costs that P5 implies."""
    runs = file.runs_of(system)
    offered, kept = map(sum, zip(*map(effects.offered_and_kept, runs), strict=True))
    speedup = _speedup_by_cost(runs, file, effects.tokens_per_printed_cost)
    assert speedup is not None
    return 100 * (1 - kept / offered), 100 / _tokens_per_call(runs), speedup


def _rule_table(file: ExperimentFile) -> str:
    """Return a table of the rules by data set beside P4 Table 1, and z of kept against expected."""
    domains = file.domains
    rows = []
    for method in file.methods:
        runs = file.runs_of(method)
        groups = [[run for run in runs if domains[run.prompt] == name] for name in _DATA_SETS]
        cells = [f"{_tokens_per_call(group):.2f}" for group in (*groups, runs)]
        sums = [run.kept_sums for run in runs if run.kept_sums]
        excess = sum(each.kept - (each.expected or 0.0) for each in sums)
        z = excess / math.sqrt(sum(each.variance or 0.0 for each in sums))
        rows.append((method, *cells, _PRINTED_P4_TABLE_1.get(method, ""), f"{z:+.2f}"))
    header = ("rule, n", "GSM8K", "HumanEval", "summaries", "all", "printed", "z")
    counts = ", ".join(f"{domains.count(domain)} of {domain}" for domain in _DATA_SETS)
    title = f"`p4-trunk.json`: {len(domains)} prompts, of them {counts}"
    return f"{title}\n\n{markdown_table(header, rows)}"


def _eagle_table(files: Mapping[str, ExperimentFile]) -> str:
    """Return a table of every rule's tokens a call on drafts that EAGLE-3 samples."""
    rows = []
    for file in (files[name] for name in ("p4-eagle3", "p4-eagle3-several") if name in files):
        for method in file.methods:
            runs = file.runs_of(method)
            sums = [run.kept_sums for run in runs if run.kept_sums]
            num_drafts = sum(each.drafts for each in sums)
            expected = [
                f"{rule} {1 + sum(each.by_rule[rule] for each in sums) / num_drafts:.3f}"
                for rule in ("tokenwise", "block", "one", *MULTI_DRAFT_RULES)
                if rule in sums[0].by_rule
            ]
            rows.append((method, f"{_tokens_per_call(runs):.2f}", ", ".join(expected)))
    return markdown_table(("rule", "tokens a call", "expected on its drafts"), rows)


def _position_table(name: str, file: ExperimentFile) -> str:
    """Return a table of the chance that the first m tokens of a draft are kept, by rule."""
    kept_sums = [run.kept_sums for run in file.runs if run.kept_sums]
    positions = [sums.positions for sums in kept_sums if sums.positions]
    longest = max(len(sums.by_rule["block"]) for sums in positions)
    complete = [sums for sums in positions if len(sums.by_rule["block"]) == longest]
    num_drafts = sum(sums.drafts for sums in complete)
    rows = []
    for rule, label in (("tokenwise", "tokenwise"), ("block", "block"), ("ideal", "min(1, R)")):
        means = (
            sum(sums.by_rule[rule][m] for sums in complete) / num_drafts for m in range(longest)
        )
        rows.append((label, *(f"{mean:.3f}" for mean in means)))
    title = f"`{name}.json`: {len(file.prompts)} prompts, {num_drafts} drafts"
    return f"{title}\n\n{markdown_table(('m', *map(str, range(1, longest + 1))), rows)}"


def _cost_table(name: str, file: ExperimentFile) -> str:
    """Return a table of the cost of a token, level by level."""
    rows = []
    settings = file.settings
    for method in file.methods:
        runs = file.runs_of(method)
        num_tokens = sum(run.tokens_after_first for run in runs)
        prices = file.prices.get(method)
        levels = []
        for index, level in enumerate(runs[0].levels):
            calls = sum(run.levels[index].calls for run in runs) / num_tokens
            price = f" × {prices[level.name]:.2f}" if prices is not None else ""
            levels.append(f"{level.name.removeprefix('zoo:')} {calls:.2f}{price}")
        speedup = _speedup_by_cost(runs, file)
        kept = [value for run in runs if (value := effects.acceptance(run, file)) is not None]
        ms_per_token = 1e3 * sum(run.decode_seconds for run in runs) / num_tokens
        rows.append(
            (
                method,
                "; ".join(levels),
                "" if speedup is None else f"{speedup:.2f}",
                f"{_tokens_per_call(runs):.2f}",
                f"{fmean(kept):.2f}" if kept else "",
                *((f"{ms_per_token:.1f}",) if settings.is_timed else ()),
            )
        )
    header = ["method", "calls a token × cost of a call", "speed-up by cost", "tokens a call"]
    header += ["kept", "ms a token"] if settings.is_timed else ["kept"]
    title = f"`{name}.json`: {settings.target}, temperature {settings.temperature:g}, "
    return f"{title}{len(file.prompts)} prompts\n\n{markdown_table(header, rows)}"


def _tokens_per_call(runs: Sequence[ExperimentRun]) -> float:
    """Return tokens after the first over calls of the target, of all runs together."""
    return sum(run.tokens_after_first for run in runs) / sum(run.target_calls for run in runs)


def _speedup_by_cost(
    runs: Sequence[ExperimentRun],
    file: ExperimentFile,
    metric: effects.Metric = effects.tokens_per_cost,
) -> float | None:
    """Return the speed-up by cost of all prompts together; ``None`` if a price is unknown."""
    pairs = [(run.tokens_after_first, metric(run, file)) for run in runs]
    if any(speedup is None for _, speedup in pairs):
        return None
    return sum(n for n, _ in pairs) / sum(n / speedup for n, speedup in pairs if speedup)


def _domain_table(name: str, file: ExperimentFile) -> str:
    """Return a table of the full system over vanilla M2 on mathematics and other prompts."""
    if file.settings.is_timed:
        metric, unit = effects.tokens_per_second, "in time"
    else:
        metric, unit = effects.tokens_per_printed_cost, "at P5's costs"
    full, vanilla = (
        effects.values_by_prompt(file, system, metric) for system in ("full", "vanilla M2")
    )
    ratios = effects.log_ratio(full, vanilla)
    domains = file.domains
    groups = {
        "all": set(ratios),
        "mathematics": {number for number in ratios if domains[number] in MATHEMATICS},
        "rest": {number for number in ratios if domains[number] not in MATHEMATICS},
    }
    if len(domains) >= LOOKS[0] * len(set(domains)):  # enough prompts of each
        for domain in dict.fromkeys(domains):
            groups[domain] = {number for number in ratios if domains[number] == domain}
    rows = []
    for label, numbers in groups.items():
        if len(numbers) > 1:
            gain = estimate([ratios[number] for number in sorted(numbers)], 1)
            value, low, high = map(math.exp, (gain.value, gain.low, gain.high))
            rows.append((label, str(gain.n), f"{value:.2f} [{low:.2f}, {high:.2f}]"))
    table = markdown_table(("prompts", "how many", f"full over vanilla M2, {unit}"), rows)
    return f"`{name}.json` (95 % intervals, one look)\n\n{table}"
