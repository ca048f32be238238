"""Parts of the page besides the claims: computed verdicts, and tables of where a cost goes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from statistics import fmean
from typing import Any

from hierspec_papers.p1 import tables as p1_tables
from hierspec_papers.p2.formula import interleaved_tokens
from hierspec_papers.prompts import MATHEMATICS

from . import effects
from .items import TABLES, Fixed
from .methods import SEVERAL
from .sequential import LOOKS, estimate

Data = Mapping[str, Any]
CASES = [(a, b, n, m) for a in (0.5, 0.8) for b in (0.3, 0.6) for n in (1, 2, 3) for m in (1, 4)]


def facts(item: str) -> list[Fixed]:
    """Return the verdicts on an item that are computed, without a measurement."""
    if item in ("P1 Table 1", "P1 Table 8", "P1 Table 9"):
        return [_printed(item.removeprefix("P1 "))]
    return [_table_a1()] if item == "P2 Table A.1" else []


@cache
def _tables_of_p1() -> dict[str, Any]:
    return {table.name: table for table in p1_tables.compute().tables}


def _printed(name: str) -> Fixed:
    """Decide whether a printed table follows from its inputs, within a unit of the last digit."""
    table = _tables_of_p1()[name]
    cells = list(table.cells())
    near = sum(abs(cell.units) <= 1 for cell in cells)
    why = f"{table.matching} of {len(cells)} printed cells follow from the printed inputs"
    if near == len(cells):
        return Fixed("holds", f"{why}, the others within a unit of the last digit", TABLES)
    return Fixed("does not hold", f"{why}, and {near} within a unit of the last digit", TABLES)


def law_of_tokens(alpha: float, beta: float, n: int, m: int) -> list[float]:
    """Return P2 Table A.1 as printed: the probability of 1, 2, … m(n + 1) + 1 tokens of a round."""
    out = []
    for block in range(m):
        before = beta ** (n * block) * alpha**block
        out += [before * beta**k * (1 - beta) for k in range(n)]
        out.append(before * beta**n * (1 - alpha))
    return [*out, beta ** (m * n) * alpha**m]


def _table_a1() -> Fixed:
    """Decide whether the printed law sums to 1 and has the theorem's mean."""
    worst = 0.0
    for case in CASES:
        law = law_of_tokens(*case)
        mean = sum(k * p for k, p in enumerate(law, 1))
        worst = max(worst, abs(sum(law) - 1), abs(mean - float(interleaved_tokens(*case))))
    if worst < 1e-9:
        why = f"in {len(CASES)} cases it sums to 1 and its mean is Theorem 3.2's"
        return Fixed("holds", why, "computed")
    return Fixed(
        "does not hold", f"off by {worst:.2g} from a law with Theorem 3.2's mean", "computed"
    )


def sections(files: Mapping[str, Data]) -> list[str]:
    """Return the page's further sections in Markdown, for the files there are."""
    parts = []
    for title, names, lead in _COST_SECTIONS:
        tables = [_cost_table(name, files[name]) for name in names if name in files]
        if tables:
            parts += [f"## {title}", lead, *tables]
    if "p4-trunk" in files:
        parts += ["## P4 Table 1 beside the printed", _TABLE_1, _rule_table(files["p4-trunk"])]
    if "p4-eagle3-several" in files:
        parts += ["## P4 Table 4(b) with sampled drafts", _TABLE_4, _eagle_table(files)]
    by_position = [_position_table(name, files[name]) for name in _LONG if name in files]
    if by_position:
        parts += ["## P4 Figure A.1 by position", _FIGURE_A1, *by_position]
    by_domain = [_domain_table(name, files[name]) for name in _DOMAINS if name in files]
    if by_domain:
        parts += ["## P5 Table 3: mathematics apart", _TABLE_3, *by_domain]
    return parts


_COST_SECTIONS = (
    (
        "HiSpec against LayerSkip: why",
        ("clock-p3-smollm2", "p3-smollm2", "clock-p3-large", "p3-trunk"),
        """Calls a token of each level times what a call costs (by layers, in calls of the whole
model), beside what the clock said where it ran. A single exit pays for its drafts once; HiSpec
pays for two tokens of the lower exit and for a check of each pair, so that a drafted token costs
less, and more calls are made.""",
    ),
    (
        "P5's full system against its parts: why",
        ("clock-p5-large-1", "clock-p5-large-0", "p5-smollm2-1", "p5-trunk-1", "p5-trunk-0"),
        """The same for P5's systems, by weights. What a quantized copy's call costs depends on the
machine, so such families have calls only.""",
    ),
)
_TABLE_3 = """Gain of the full system over vanilla M2, problems of mathematics (GSM8K and
Spec-Bench's) and the rest. P5 prints 2.95 / 2.40 = 1.23 on all, 2.08 / 2.29 = .91 on mathematics,
3.04 / 2.41 = 1.26 on the rest, and blames a drafter that knows no mathematics."""
_DOMAINS = ("clock-p5-large-1", "p5-smollm2-1", "p5-trunk-domains")


_TABLE_1 = """Tokens a call of the target, all prompts of a data set together; printed: Qwen2.5 0.5B
for 72 B, n = 10. Branch resampling is block, so block's numbers stand beside both. z: kept less
expected tokens under the exact law of each draft that was verified, in standard deviations of the
dice, over all prompts."""
_PRINTED_TABLE_1 = {  # rule here → printed rows: GSM8K, HumanEval, CNN/DM
    "tokenwise 10": "6.44, 5.23, 2.35",
    "block 10": "6.53, 5.34, 2.39 (blockwise); 6.65, 5.40, 2.45 (branch resampling)",
}
_TABLE_4 = """EAGLE-3's drafter for SmolLM2, one draft of four tokens or four such drafts, sampled;
`one` is block on the first draft alone. P4 prints 3.40 tokens a call for EAGLE-3 and 3.55 with its
verification, with drafts that are not sampled and a first token that is always accepted, which
changes the law. It has no number for blockwise, and none for several drafts of EAGLE-3."""
_FIGURE_A1 = """The chance that the first m tokens of a draft of ten are kept whole, if they are the
draft: mean over all drafts of that length. P4 gives these chances as formulas, and the figure for
GSM8K as a picture only; HSD's, with the cap at the end, is block's."""
_LONG = ("p4-trunk-long", "p4-smollm2-long")
_DATA_SETS = ("gsm8k", "humaneval", "summarization")


def _rule_table(data: Data) -> str:
    """Return a table of the rules by data set beside P4 Table 1, and z of kept against expected."""
    domains = [prompt["domain"] for prompt in data["prompts"]]
    rows = []
    for method in data["methods"]:
        runs = list(effects.runs_of(data, method).values())
        cells = []
        for domain in (*_DATA_SETS, None):
            some = [run for run in runs if domain in (None, domains[run["prompt"]])]
            written = sum(run["tokens"] - 1 for run in some)
            cells.append(f"{written / sum(run['target_calls'] for run in some):.2f}")
        sums = {
            key: sum(run["exact"][key] for run in runs) for key in ("kept", "expected", "variance")
        }
        z = (sums["kept"] - sums["expected"]) / math.sqrt(sums["variance"])
        rows.append((method, *cells, _PRINTED_TABLE_1.get(method, ""), f"{z:+.2f}"))
    head = ("rule, n", "GSM8K", "HumanEval", "summaries", "all", "printed", "z")
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    counts = ", ".join(f"{domains.count(domain)} of {domain}" for domain in _DATA_SETS)
    shown = "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])
    return f"`p4-trunk.json`: {len(domains)} prompts, of them {counts}\n\n{shown}"


def _eagle_table(files: Mapping[str, Data]) -> str:
    """Return a table of tokens a call of every rule on drafts that EAGLE-3 samples."""
    rows = []
    for data in (files[name] for name in ("p4-eagle3", "p4-eagle3-several") if name in files):
        for method in data["methods"]:
            runs = list(effects.runs_of(data, method).values())
            written = sum(run["tokens"] - 1 for run in runs)
            drafts = sum(run["exact"]["drafts"] for run in runs)
            law = [
                f"{rule} {1 + sum(run['exact'][rule] for run in runs) / drafts:.3f}"
                for rule in ("tokenwise", "block", "one", *SEVERAL)
                if rule in runs[0]["exact"]
            ]
            measured = f"{written / sum(run['target_calls'] for run in runs):.2f}"
            rows.append(f"| {method} | {measured} | {', '.join(law)} |")
    head = "| rule | tokens a call | by the exact law on its drafts |\n|---|---|---|"
    return head + "\n" + "\n".join(rows)


def _position_table(name: str, data: Data) -> str:
    """Return a table of the chance that the first m tokens of a draft are kept, by rule."""
    exact = [run["exact"]["positions"] for run in data["runs"] if run["exact"]["positions"]]
    longest = max(len(sums["block"]) for sums in exact)
    complete = [sums for sums in exact if len(sums["block"]) == longest]
    drafts = sum(sums["drafts"] for sums in complete)
    lines = [
        "| m | " + " | ".join(map(str, range(1, longest + 1))) + " |",
        "|" + "---|" * (longest + 1),
    ]
    for rule, title in (("tokenwise", "tokenwise"), ("block", "block"), ("ideal", "min(1, R)")):
        means = (sum(sums[rule][m] for sums in complete) / drafts for m in range(longest))
        lines.append(f"| {title} | " + " | ".join(f"{mean:.3f}" for mean in means) + " |")
    return f"`{name}.json`: {len(data['prompts'])} prompts, {drafts} drafts\n\n" + "\n".join(lines)


def _cost_table(name: str, data: Data) -> str:
    """Return a table of the cost of a token, level by level."""
    rows = []
    clock = data["settings"]["together"] == 1
    for method in data["methods"]:
        runs = list(effects.runs_of(data, method).values())
        written = sum(run["tokens"] - 1 for run in runs)
        price = data["prices"].get(method)
        levels = [_level(runs, at, price, written) for at in range(len(runs[0]["levels"]))]
        cost = _speedup_by_cost(runs, data)
        ms = 1e3 * sum(run["decode_seconds"] for run in runs) / written
        kept = [value for run in runs if (value := effects.acceptance(run, data)) is not None]
        calls = sum(run["target_calls"] for run in runs)
        rows.append(
            (
                method,
                "; ".join(levels),
                "" if cost is None else f"{cost:.2f}",
                f"{written / calls:.2f}",
                f"{fmean(kept):.2f}" if kept else "",
                *((f"{ms:.1f}",) if clock else ()),
            )
        )
    head = ("method", "calls a token × cost of a call", "speed-up by cost", "tokens a call", "kept")
    head = (*head, "ms a token") if clock else head
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    shown = "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])
    settings = data["settings"]
    title = f"`{name}.json`: {settings['target']}, temperature {settings['temperature']:g}, "
    return f"{title}{len(data['prompts'])} prompts\n\n{shown}"


def _level(runs: Sequence[Data], at: int, price: Mapping[str, float] | None, written: int) -> str:
    calls = sum(run["levels"][at]["calls"] for run in runs) / written
    name = runs[0]["levels"][at]["name"].removeprefix("zoo:")
    if price is None:
        return f"{name} {calls:.2f}"
    return f"{name} {calls:.2f} × {price[runs[0]['levels'][at]['name']]:.2f}"


def _speedup_by_cost(runs: Sequence[Data], data: Data) -> float | None:
    """Return the speed-up by cost of all prompts together; ``None`` where a price is unknown."""
    pairs = [(run["tokens"] - 1, effects.tokens_per_cost(run, data)) for run in runs]
    if any(speedup is None for _, speedup in pairs):
        return None
    return sum(n for n, _ in pairs) / sum(n / speedup for n, speedup in pairs if speedup)


def _domain_table(name: str, data: Data) -> str:
    """Return a table of the full system over vanilla M2 on mathematics and other prompts."""
    clock = data["settings"]["together"] == 1
    metric = effects.tokens_per_second if clock else effects.tokens_per_cost
    priced = clock or data["prices"]["full"] is not None
    metric = metric if priced else effects.tokens_per_call
    what = "in time" if clock else "by weights" if priced else "tokens a call"
    full, vanilla = (effects.values(data, system, metric) for system in ("full", "vanilla M2"))
    ratios = effects.log_ratio(full, vanilla)
    kinds = [prompt["domain"] for prompt in data["prompts"]]
    groups = {
        "all": set(ratios),
        "mathematics": {number for number in ratios if kinds[number] in MATHEMATICS},
        "rest": {number for number in ratios if kinds[number] not in MATHEMATICS},
    }
    if len(kinds) >= LOOKS[0] * len(set(kinds)):  # enough of each
        groups |= {kind: {n for n in ratios if kinds[n] == kind} for kind in dict.fromkeys(kinds)}
    rows = []
    for label, numbers in groups.items():
        if len(numbers) > 1:
            gain = estimate([ratios[number] for number in sorted(numbers)], 1)
            value, low, high = map(math.exp, (gain.value, gain.low, gain.high))
            rows.append(f"| {label} | {gain.n} | {value:.2f} [{low:.2f}, {high:.2f}] |")
    head = f"| prompts | how many | full over vanilla M2, {what} |\n|---|---|---|"
    return f"`{name}.json` (95 % intervals, one look)\n\n{head}\n" + "\n".join(rows)
