"""More of :mod:`figures`: what pages on papers and rules quote, by enumeration and formula."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from functools import cache
from typing import Any

import common
from figures import data, short

from hierspec.exact.cases import load_case
from hierspec.exact.certificate import certify
from hierspec.planner.estimates import Chain
from hierspec.planner.latency import latency
from hierspec_lab.papers.p1 import tables as p1
from hierspec_lab.papers.p2.formula import interleaved_speedup
from hierspec_lab.papers.p3 import table1 as p3
from hierspec_lab.papers.p5 import redundancy as p5
from hierspec_lab.planning.search import plan


@cache
def certificate(rule: str, tokens: int, drafts: int = 1, example: str = "four-levels") -> Any:
    """Of the smallest and the largest model of an example under one rule."""
    case = load_case(common.ROOT / "examples" / "certify" / f"{example}.json")
    below = {"num_speculative_tokens": tokens, **({"num_drafts": drafts} if drafts > 1 else {})}
    models = [case["models"][0], case["models"][-1]]
    levels = [below, {"verify": rule}]
    return certify({**case, "models": models, "levels": levels, "horizon": tokens + 2})


def worked(rule: str) -> Any:
    return certificate(rule, 2, example=f"worked-example-{rule}")


def worked_row(rule: str) -> str:
    """Ninths of a token kept, and tokens a call."""
    found = worked(rule)
    return f"{9 * found.expected_accepted:.0f}/9 | {found.expected_tokens_per_target_call:.3f}"


def kept(tokens: int) -> str:
    """Draft tokens kept · tokens a call by rule, and the distance where there is one."""
    out = []
    for rule in ("tokenwise", "block", "uncapped", "naive"):
        found = certificate(rule, tokens)
        said = f"{found.expected_accepted:.4f} · {found.expected_tokens_per_target_call:.3f}"
        lossless = found.passed(allow_inconclusive=True)
        out.append(said if lossless else f"{said}, TV {short(found.tv, 3)}")
    return " | ".join(out)


# --- formulas

_EXAMPLES = {
    1: (p1.FIRST_COSTS, p1.TABLE_6, p1.TABLE_1),
    2: (p1.SECOND_COSTS, p1.TABLE_7, p1.TABLE_8),
}


def growing(example: int) -> str:
    """P1's formula at its best plans with two to six models of a printed example."""
    costs, rates, _ = _EXAMPLES[example]
    return ", ".join(f"{p1.best_plan(p1.example(costs, rates, n))[0]:.4f}" for n in range(2, 7))


def printed(example: int) -> str:
    return ", ".join(ms for _, ms in _EXAMPLES[example][2][1:6])


def bound() -> float:
    """What no hierarchy of the second example's three largest models goes below."""
    return plan(p1.example(p1.SECOND_COSTS, p1.TABLE_7, 3)).lower_bound


def with_overshoot() -> float:
    """The exact model, first example, three models, budgets 4 and 8."""
    estimates = p1.example(p1.FIRST_COSTS, p1.TABLE_6, 3)
    return latency(estimates, Chain((0, 1, 2), (4, 8))).ms_per_token


def table_9() -> list[bool]:
    """Which cells follow from the printed inputs."""
    (table,) = (table for table in p1.compute().tables if table.name == "Table 9")
    return [cell.matches for row in table.rows for cell in row.cells]


def interleaved(lengths: Iterable[int]) -> str:
    return ", ".join(f"{interleaved_speedup(0.8, 0.5, 0.1, 0.1, n, 4).item():.4f}" for n in lengths)


def hispec(over: str) -> list[float]:
    """The printed gains of HiSpec over another method."""
    return [
        ours / theirs
        for rows in p3.TABLE_1.values()
        if over in rows
        for ours, theirs in zip(rows["HiSpec"], rows[over], strict=True)
    ]


def offered_printed(system: str, decimals: int = 2) -> str:
    """Tokens a call that a system's printed σ and η imply."""
    sigma, eta = map(float, p5.TABLE_4[system][:2])
    found = f"{p5.implied_offered_per_call(sigma / 100, eta / 100):.2f}"
    return found[: len(found) - 2 + decimals]


# --- P5's windows, P1's coins, P3's lengths


def _judged(file: str, method: str) -> list[tuple[float, bool]]:
    """Entropies of a drafter's tokens, and whether the target kept them."""
    runs = data(f"evidence/{file}").runs
    return [tuple(pair) for run in runs if run.method == method for pair in run.entropies]


def separation(file: str, method: str) -> str:
    """What was rejected, mean entropies, AUC, and shares above the mean of the rejected."""
    every = _judged(file, method)
    kept, lost = (
        [value for value, good in every if bool(good) is which] for which in (True, False)
    )
    wins = sum((a > b) + (a == b) / 2 for a in lost for b in kept)
    threshold = statistics.fmean(lost)
    above = (100 * statistics.fmean(v > threshold for v in some) for some in (kept, lost))
    return " | ".join(
        [
            f"{len(lost)} of {len(every)}",
            f"{statistics.fmean(kept):.2f} / {threshold:.2f}",
            short(wins / len(lost) / len(kept)),
            *(f"{share:.0f} %" for share in above),
        ]
    )


def fifths(file: str, method: str) -> str:
    """The share of rejected tokens in fifths of rising entropy."""
    every = sorted((value, not good) for value, good in _judged(file, method))
    n = len(every)
    parts = (every[i * n // 5 : (i + 1) * n // 5] for i in range(5))
    return ", ".join(short(statistics.fmean(bad for _, bad in part)) for part in parts)


def _rounds(file: str, method: str) -> list[list[list[int]]]:
    return [run.rounds for run in data(f"evidence/{file}").runs if run.method == method]


def offered(file: str, method: str) -> Any:
    """Tokens offered to the target a round, and the per cent of them that it keeps."""
    rounds = [pair for run in _rounds(file, method) for pair in run]
    number = sum(pair[0] for pair in rounds)
    return number / len(rounds), 100 * sum(pair[1] for pair in rounds) / number


def first_rejection(file: str) -> float:
    """The round in which the full system's target rejects for the first time, mean over texts."""
    first = [
        next((i for i, (offered, kept) in enumerate(run, 1) if kept < offered), None)
        for run in _rounds(file, "full")
    ]
    return statistics.fmean(one for one in first if one is not None)
