"""P4 Tables 1 and 3 on the models at hand: verification rules by draft length and temperature.

Tokenwise, block and naive branch resampling take turns on every prompt. P4's capped branch
resampling *is* block (``docs/branch-is-block.md``), so one measurement is compared with both of the
printed rows. The tokens accepted of every draft are also compared with those expected
(:mod:`.watching`). On drafts that are picked rather than drawn, as EAGLE-3's are [P4 Table 4(b)],
all rules are equal (:func:`one_hot_table`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hierspec_lab.bench.methods.base import Run
from hierspec_lab.papers.lab import Lab, draft_level
from hierspec_lab.papers.measured import tokens_per_call, tokens_per_second, uncompared_table
from hierspec_lab.papers.tables import Cell, Curve, Figure, Reproduction, Table, TableRow

from .lab import DRAFT_LENGTH, decoding_speedup, measure_methods, sampling_setup
from .tabular import certificate, greedy_model, random_pair
from .watching import (
    DraftCollector,
    VerifiedDraft,
    gain,
    mean_expected,
    mean_kept,
    predicted_tokens_per_call,
    z_score,
)

PAIRS = 20  # of tabular models
RULES = ("tokenwise", "block", "naive")
LENGTHS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 15)
COMPARED_LENGTHS = (5, DRAFT_LENGTH, 15)  # for P4's columns, whose headings the text has lost

# P4 Table 3, Qwen2.5 0.5B → 72B on GSM8K: block efficiency, then decoding speed, in tokens/s.
TABLE_3A = {
    "Tokenwise": ("6.81", "6.70", "6.44", "32.86", "32.18", "31.49"),
    "Blockwise": ("6.83", "6.74", "6.53", "33.07", "32.33", "31.79"),
    "Hierarchical": ("6.86", "6.79", "6.65", "33.21", "32.90", "32.52"),
}
TABLE_3B = {
    "Tokenwise": ("4.48", "6.44", "7.61", "12.01", "31.49", "51.03"),
    "Blockwise": ("4.52", "6.53", "7.74", "12.14", "31.79", "51.75"),
    "Hierarchical": ("4.59", "6.65", "7.88", "12.35", "32.52", "52.95"),
}
_OURS = {"Tokenwise": "tokenwise", "Blockwise": "block", "Hierarchical": "block"}


@dataclass(frozen=True, slots=True)
class Measurement:
    """Runs and verified drafts of one rule at one draft length."""

    runs: list[Run]
    drafts: list[VerifiedDraft]


Measurements = dict[tuple[str, int], Measurement]


def measure(lab: Lab, lengths: Sequence[int] = LENGTHS, pairs: int = PAIRS) -> Reproduction:
    """Measure every rule at every length and every temperature above 0.

    Args:
        pairs: of tabular models, for one-hot drafts.

    Raises:
        HierspecError: there is nothing to draft with, no prompt, or only greedy decoding.
    """
    chosen, model, record = sampling_setup(lab, "p4-rules")
    by_temperature = {
        temperature: _measure(lab, model, lengths, temperature) for temperature in chosen
    }
    tables: list[Table] = []
    if 1.0 in by_temperature:
        tables += _printed_tables(by_temperature[1.0])
    for temperature, cells in by_temperature.items():
        tables += [
            _speed_table(cells, lengths, temperature),
            _exact_law_table(cells, lengths, temperature),
        ]
    return Reproduction(
        "p4-rules",
        (*tables, one_hot_table(pairs)),
        tuple(
            _figure(cells, lengths, temperature) for temperature, cells in by_temperature.items()
        ),
        record,
    )


def _measure(lab: Lab, model: str, lengths: Sequence[int], temperature: float) -> Measurements:
    keys = [(rule, n) for n in lengths for rule in RULES]
    methods = [
        DraftCollector(f"{rule} {n}", lab.models, [draft_level(model, n)], verify=rule)
        for rule, n in keys
    ]
    every = measure_methods(lab, methods, temperature, "p4-rules")
    return {
        key: Measurement(runs, method.drafts(runs))
        for key, method, runs in zip(keys, methods, every, strict=True)
    }


# --- what was printed


def _printed_tables(measurements: Measurements) -> list[Table]:
    lengths = [n for n in COMPARED_LENGTHS if ("block", n) in measurements]
    tables = []
    if lengths:
        columns = [COMPARED_LENGTHS.index(n) for n in lengths]
        tables.append(
            Table(
                "Table 3(b)",
                "draft lengths: block efficiency (tokens a target call), decoding speed (tokens/s)",
                "method",
                tuple(f"{unit}, n = {n}" for unit in ("BE", "DS") for n in lengths),
                tuple(
                    TableRow(method, _cells(measurements, _OURS[method], printed, lengths, columns))
                    for method, printed in TABLE_3B.items()
                ),
                inputs={"lengths": lengths, "temperature": 1.0},
                compared=False,
                notes=(
                    "Which lengths the three columns belong to is lost in the text at hand; the "
                    f"middle one is P4's default. {', '.join(map(str, lengths))} are the lengths "
                    "measured here, at temperature 1.",
                    "Blockwise and Hierarchical are one rule, so one measurement is compared with "
                    "both; a lossless rule cannot accept more than block without further calls of "
                    "the target.",
                ),
            )
        )
    if ("block", DRAFT_LENGTH) in measurements:
        tables.append(_temperature_table(measurements))
    return tables


def _cells(
    measurements: Measurements,
    rule: str,
    printed: tuple[str, ...],
    lengths: Sequence[int],
    columns: list[int],
) -> tuple[Cell, ...]:
    runs = [measurements[rule, n].runs for n in lengths]
    efficiency = [Cell(printed[i], tokens_per_call(r)) for i, r in zip(columns, runs, strict=True)]
    speed = [Cell(printed[3 + i], tokens_per_second(r)) for i, r in zip(columns, runs, strict=True)]
    return (*efficiency, *speed)


def _temperature_table(measurements: Measurements) -> Table:
    rows = []
    for method, printed in TABLE_3A.items():
        runs = measurements[_OURS[method], DRAFT_LENGTH].runs
        cells = (Cell(printed[2], tokens_per_call(runs)), Cell(printed[5], tokens_per_second(runs)))
        rows.append(TableRow(method, cells, (*printed[:2], *printed[3:5])))
    return Table(
        "Table 3(a)",
        f"temperature 1, the third column as printed; n = {DRAFT_LENGTH} here",
        "method",
        ("BE", "DS"),
        tuple(rows),
        ("BE, 1st printed", "BE, 2nd printed", "DS, 1st printed", "DS, 2nd printed"),
        {"length": DRAFT_LENGTH, "temperature": 1.0},
        compared=False,
        notes=(
            "The temperatures of the first two columns are lost in the text at hand, so nothing "
            "measured is compared with them.",
        ),
    )


# --- what was measured


def _speed_table(measurements: Measurements, lengths: Sequence[int], temperature: float) -> Table:
    rows = []
    for n in lengths:
        runs = {rule: measurements[rule, n].runs for rule in RULES}
        block = decoding_speedup(runs["block"], runs["tokenwise"])
        figures = (
            *(tokens_per_call(runs[rule]) for rule in RULES),
            *(tokens_per_second(runs[rule]) for rule in RULES),
            block.median,
            *block.bounds,
            decoding_speedup(runs["naive"], runs["tokenwise"]).median,
        )
        rows.append((str(n), figures))
    columns = [f"{rule} {per}" for per in ("/call", "/s") for rule in RULES]
    return uncompared_table(
        f"Rules at temperature {temperature:g}",
        "by draft length: tokens a target call, tokens a second",
        "n",
        rows,
        (*columns, "block over tokenwise", "low95", "high95", "naive over tokenwise"),
        {"temperature": temperature},
        notes=(
            "Ratios are of decoding speed, paired per prompt: the median, block's with its 95 % "
            "bootstrap interval.",
            "The follow-up calls of naive branch resampling count as target calls: it keeps the "
            "most drafted tokens and yields the fewest tokens a call [MATH §1].",
        ),
    )


def _exact_law_table(
    measurements: Measurements, lengths: Sequence[int], temperature: float
) -> Table:
    rows, scores = [], []
    for n in lengths:
        drafts = {rule: measurements[rule, n].drafts for rule in RULES}
        z = [z_score(drafts[rule]) for rule in RULES]
        scores += z
        tokenwise, block = mean_expected(drafts["tokenwise"]), mean_expected(drafts["block"])
        observed = mean_kept(drafts["block"]) - mean_kept(drafts["tokenwise"])
        predicted = block.value - tokenwise.value
        error = math.hypot(tokenwise.error, block.error)
        same_drafts = gain(drafts["tokenwise"] + drafts["block"])
        numbers = (*z, observed, predicted, error, same_drafts.value, same_drafts.error)
        rows.append((str(n), numbers))
    return uncompared_table(
        f"Exact law at temperature {temperature:g}",
        "kept tokens a draft against what the exact law gives to the very drafts verified",
        "n",
        rows,
        (
            *(f"z {rule}" for rule in RULES),
            "gain measured",
            "gain expected",
            "error",
            "gain, same drafts",
            "its error",
        ),
        {"temperature": temperature, "sum_of_squared_z": sum(z * z for z in scores)},
        notes=(
            "z: kept less expected tokens, in standard deviations of the random draws; "
            f"Σ z² = {sum(z * z for z in scores):.1f} over {len(scores)} cells, which share seeds "
            "and so are not independent; at n = 1 the rules are one.",
            "gain: kept tokens a draft, block less tokenwise. Measured and expected are of two "
            "sets of rounds, on different texts; their difference has the error given.",
            "gain, same drafts: what block keeps more in expectation, given the same drafts; never "
            "negative, draft by draft, since w_m ≥ Π min(1, r_i).",
        ),
    )


def _figure(measurements: Measurements, lengths: Sequence[int], temperature: float) -> Figure:
    longest = max(lengths)
    drafts = measurements["block", longest].drafts
    curves = []
    all_lengths = tuple(range(1, max((draft.length for draft in drafts), default=0) + 1))
    for rule in RULES:
        line = tuple(predicted_tokens_per_call(drafts, rule, n) for n in all_lengths)
        points = tuple(tokens_per_call(measurements[rule, n].runs) for n in lengths)
        curves.append(Curve(f"{rule}, exact law", tuple(map(float, all_lengths)), line))
        curves.append(Curve(f"{rule}, measured", tuple(map(float, lengths)), points, "points"))
    return Figure(
        f"Tokens a target call at temperature {temperature:g}",
        "by draft length, measured and as the exact law has it",
        "draft length n",
        "tokens a target call",
        tuple(curves),
        notes=(
            f"Lines: the same drafts of {longest} tokens for all rules and lengths, from the "
            "rounds of block at that length. Rounds of other lengths and rules begin at other "
            "places, and the last round of a text is cut short, so points need not lie on lines.",
        ),
    )


# --- by enumeration


def one_hot_table(pairs: int = PAIRS, lengths: Sequence[int] = (1, 2, 3, 4)) -> Table:
    """Compare sampled drafts with deterministic ones, whose distributions are one-hot [MATH §3]."""
    rows, largest_difference = [], 0.0
    for n in lengths:
        sums = [0.0] * 4
        for seed in range(pairs):
            draft, target = random_pair("random", seed)
            for column, model in ((0, draft), (2, greedy_model(draft))):
                tokenwise, block = (
                    certificate(rule, model, target, n).expected_accepted
                    for rule in ("tokenwise", "block")
                )
                sums[column] += tokenwise / pairs
                sums[column + 1] += block / pairs
                if column:
                    largest_difference = max(largest_difference, abs(tokenwise - block))
        rows.append((str(n), tuple(sums)))
    return uncompared_table(
        "One-hot drafts",
        f"draft tokens kept in a round, exact, mean over {pairs} random pairs of models",
        "n",
        rows,
        ("tokenwise, sampled", "block, sampled", "tokenwise, one-hot", "block, one-hot"),
        {"vocab": 3, "order": 1, "pairs": pairs, "largest_difference_one_hot": largest_difference},
        notes=(
            "A drafter that picks its tokens deterministically has a one-hot q, so every ratio is "
            "p(x) ≤ 1, the cap never acts and block is tokenwise: the two differ by at most "
            f"{largest_difference:.0e} in any pair.",
            "EAGLE-3 drafts that way, so the 3.40 → 3.55 tokens a call printed in Table 4(b) "
            "cannot come from a lossless rule for one such draft.",
        ),
    )
