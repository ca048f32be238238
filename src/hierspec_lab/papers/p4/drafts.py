"""P4 Table 2 on the models at hand: several drafts a round, all scored in one call of the target.

Recursive rejection sampling with and without replacement, and block verification of one draft
after another, the sound form of P4's Algorithm 3 (``docs/several-drafts.md``).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from hierspec.utils import schema
from hierspec_lab.bench.methods.base import Run, RunRequest
from hierspec_lab.bench.methods.ours import HierarchyMethod
from hierspec_lab.papers.lab import Lab, draft_level
from hierspec_lab.papers.measured import tokens_per_call, tokens_per_second, uncompared_table
from hierspec_lab.papers.tables import Cell, Curve, Figure, Reproduction, Table, TableRow

from .lab import decoding_speedup, measure_methods, sampling_setup

RULES = ("rrs", "rrs-without-replacement", "block-rrs")
COUNTS = (1, 2, 4, 8, 11)  # P4 takes 11
LENGTH = 5  # every draft is a row of its own in the target's call, so they are short

# P4 Table 2, Qwen2.5 0.5B → 72B: block efficiency and decoding speed, tokens/s.
TABLE_2 = {
    "GSM8K": (("6.44", "31.49"), ("6.65", "32.52"), ("8.65", "37.66"), ("8.89", "38.41")),
    "HumanEval": (("5.23", "26.31"), ("5.40", "27.48"), ("7.96", "35.72"), ("8.26", "36.83")),
}
_ROWS = (("Tokenwise", "rrs", 1), ("HSD", "block-rrs", 1))
_MULTI = (("Tokenwise Multi-draft", "rrs"), ("HSD Multi-draft", "block-rrs"))

RunsByRule = dict[tuple[str, int], list[Run]]
_BATCH_SIZE = 8


def measure(lab: Lab, counts: Sequence[int] = COUNTS, length: int = LENGTH) -> Reproduction:
    """Measure every rule with one and several drafts, at every temperature above 0.

    Args:
        counts: numbers of drafts a round.
        length: tokens of each draft.

    Raises:
        HierspecError: there is nothing to draft with, no prompt, or only greedy decoding.
    """
    chosen, model, record = sampling_setup(lab, "p4-drafts")
    keys = [(rule, k) for k in counts for rule in RULES]
    tables: list[Table] = []
    figures = []
    for temperature in chosen:
        methods = [
            HierarchyMethod(
                f"{rule} × {k}", lab.models, [draft_level(model, length, num_drafts=k)], verify=rule
            )
            for rule, k in keys
        ]
        runs = measure_methods(lab, methods, temperature, "p4-drafts")
        runs_by_rule = dict(zip(keys, runs, strict=True))
        name = f"p4-drafts, temperature {temperature:g}: prompts together"
        batch_runs = lab.once(name, partial(_run_batches, lab, methods, temperature))
        batches = {
            key: schema.validate(list[Run], batch, f"the record's {name}")
            for key, batch in zip(keys, batch_runs, strict=True)
        }
        if temperature == 1.0 and 1 in counts:
            tables.append(
                _printed_table(runs_by_rule, counts, length, lab.dataset(tuple(TABLE_2), "GSM8K"))
            )
        tables.append(_rules_table(runs_by_rule, counts, length, temperature))
        tables.append(_batch_table(batches, counts, length, temperature))
        figures.append(_figure(runs_by_rule, counts, length, temperature))
    return Reproduction("p4-drafts", tuple(tables), tuple(figures), record)


def _printed_table(runs: RunsByRule, counts: Sequence[int], length: int, name: str) -> Table:
    largest = max(counts)
    printed = (*_ROWS, *((label, rule, largest) for label, rule in _MULTI))
    rows = []
    for (label, rule, k), (efficiency, speed) in zip(printed, TABLE_2[name], strict=True):
        own = runs[rule, k]
        cells = (Cell(efficiency, tokens_per_call(own)), Cell(speed, tokens_per_second(own)))
        rows.append(TableRow(label, cells, (k,)))
    return Table(
        "Table 2",
        f"several drafts; printed: {name}, 11 drafts; measured: {length} tokens a draft",
        "method",
        ("BE", "DS"),
        tuple(rows),
        ("drafts",),
        {"length": length, "dataset": name, "temperature": 1.0},
        compared=False,
        notes=(
            "With one draft rrs is tokenwise and block-rrs is block.",
            "P4's own multi-draft code is lossy (it carries R_τ on and leaves the end uncapped); "
            "block-rrs here is its lossless form.",
        ),
    )


def _rules_table(runs: RunsByRule, counts: Sequence[int], length: int, temperature: float) -> Table:
    rows = []
    for k in counts:
        by_rule = [runs[rule, k] for rule in RULES]
        speed = decoding_speedup(runs["block-rrs", k], runs["rrs", k])
        ratios = (speed.median, *speed.bounds)
        figures = (*map(tokens_per_call, by_rule), *map(tokens_per_second, by_rule), *ratios)
        rows.append((str(k), figures))
    columns = [f"{rule} {per}" for per in ("/call", "/s") for rule in RULES]
    return uncompared_table(
        f"Several drafts at temperature {temperature:g}",
        f"of {length} tokens: tokens a target call, tokens a second",
        "drafts",
        rows,
        (*columns, "block-rrs over rrs", "low95", "high95"),
        {"length": length, "temperature": temperature},
        notes=(
            "All drafts of a place are scored in one call of the target. A forward over "
            f"k·{length + 1} rows costs little more than one over {length + 1} on an accelerator, "
            "and much more on a CPU.",
            "The ratio is of decoding speed, paired per prompt, with its 95 % bootstrap interval.",
        ),
    )


def _run_batches(
    lab: Lab, methods: Sequence[HierarchyMethod], temperature: float
) -> list[list[Any]]:
    """Run each method on the first prompts as one batch, twice, and return the second runs."""
    request = RunRequest(lab.max_new_tokens, temperature, lab.seed)
    by_method: list[list[Any]] = [[] for _ in methods]
    for turn in range(2):
        for i, method in enumerate(methods):
            runs = method.run_batch(lab.prompts[:_BATCH_SIZE], request)
            by_method[i] = [run.to_dict() for run in runs]
            count = turn * len(methods) + i + 1
            lab.report("p4-drafts, prompts together", count / (2 * len(methods)))
    return by_method


def _batch_table(runs: RunsByRule, counts: Sequence[int], length: int, temperature: float) -> Table:
    prompts = len(next(iter(runs.values())))
    rows = [(str(k), tuple(tokens_per_second(runs[rule, k]) for rule in RULES)) for k in counts]
    return uncompared_table(
        f"Several drafts of several prompts at temperature {temperature:g}",
        f"tokens a second of {prompts} prompts in one batch, drafts of {length} tokens",
        "drafts",
        rows,
        tuple(f"{rule} /s" for rule in RULES),
        {"length": length, "temperature": temperature, "batch_size": prompts},
        notes=("One run each after a first to warm up, so only large differences mean anything.",),
    )


def _figure(runs: RunsByRule, counts: Sequence[int], length: int, temperature: float) -> Figure:
    x = tuple(map(float, counts))
    curves = (
        Curve(rule, x, tuple(tokens_per_call(runs[rule, k]) for k in counts)) for rule in RULES
    )
    return Figure(
        f"Several drafts at temperature {temperature:g}",
        f"tokens a target call, drafts of {length} tokens",
        "drafts a round",
        "tokens a target call",
        tuple(curves),
    )
