"""Parts of the page besides the claims: computed verdicts, and tables of costs and of rules."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from statistics import fmean
from typing import Any

from hierspec_lab.papers.p1 import tables as p1_tables
from hierspec_lab.papers.p2.formula import interleaved_tokens
from hierspec_lab.papers.prompts import MATHEMATICS

from . import effects
from .files import ExperimentFile, ExperimentRun
from .items import TABLES_SOURCE, FixedVerdict
from .methods import MULTI_DRAFT_RULES
from .sequential import LOOKS, estimate

TABLE_A1_CASES = [
    (a, b, n, m) for a in (0.5, 0.8) for b in (0.3, 0.6) for n in (1, 2, 3) for m in (1, 4)
]


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def computed_verdicts(item: str) -> list[FixedVerdict]:
    """Return the verdicts on an item that are computed, without a measurement."""
    if item in ("P1 Table 1", "P1 Table 8", "P1 Table 9"):
        return [_judge_printed_table(item.removeprefix("P1 "))]
    return [_judge_table_a1()] if item == "P2 Table A.1" else []


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
    if "p4-trunk" in files:
        parts += ["## P4 Table 1 beside the printed", _P4_TABLE_1, _rule_table(files["p4-trunk"])]
    if "p4-eagle3-several" in files:
        parts += ["## P4 Table 4(b) with sampled drafts", _P4_TABLE_4, _eagle_table(files)]
    by_position = [_position_table(name, files[name]) for name in _LONG_FILES if name in files]
    if by_position:
        parts += ["## P4 Figure A.1 by position", _P4_FIGURE_A1, *by_position]
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
_P5_TABLE_3 = """Gain of the full system over vanilla M2, problems of mathematics (GSM8K and
Spec-Bench's) and the rest. P5 prints 2.95 / 2.40 = 1.23 on all, 2.08 / 2.29 = .91 on mathematics,
3.04 / 2.41 = 1.26 on the rest, and blames a drafter that knows no mathematics."""
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


def _speedup_by_cost(runs: Sequence[ExperimentRun], file: ExperimentFile) -> float | None:
    """Return the speed-up by cost of all prompts together; ``None`` if a price is unknown."""
    pairs = [(run.tokens_after_first, effects.tokens_per_cost(run, file)) for run in runs]
    if any(speedup is None for _, speedup in pairs):
        return None
    return sum(n for n, _ in pairs) / sum(n / speedup for n, speedup in pairs if speedup)


def _domain_table(name: str, file: ExperimentFile) -> str:
    """Return a table of the full system over vanilla M2 on mathematics and other prompts."""
    if file.settings.is_timed:
        metric, unit = effects.tokens_per_second, "in time"
    elif file.prices["full"] is not None:
        metric, unit = effects.tokens_per_cost, "by weights"
    else:
        metric, unit = effects.tokens_per_call, "tokens a call"
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
