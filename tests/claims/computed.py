"""Pages on the mathematics and the papers: what enumeration and formulas give."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from functools import cache
from typing import Any

from hierspec.exact.cases import load_case
from hierspec.exact.certificate import certify
from hierspec.planner.estimates import Chain
from hierspec.planner.latency import latency
from hierspec.planner.search import plan
from hierspec_lab.papers.p1 import tables as p1
from hierspec_lab.papers.p2.formula import interleaved_speedup
from hierspec_lab.papers.p3 import table1 as p3
from hierspec_lab.papers.p5 import redundancy as p5

from .base import ROOT, Claim, data, short

MATH, P1, P2, P3, P4, P5 = "docs/math.md", *(f"docs/papers/p{i}.md" for i in range(1, 6))
EVIDENCE = "docs/papers/evidence.md"
DRAFTS, BLOCK = "docs/several-drafts.md", "docs/branch-is-block.md"


# --- distances of mistakes


def distances(*mistakes: str) -> list[str]:
    """Median and largest distance of each, as in ``.05 / .24``."""
    found = (data("planted-errors")["tv"][name] for name in mistakes)
    return [f"{short(statistics.median(tv))} / {short(max(tv))}" for tv in found]


def largest(*mistakes: str) -> list[str]:
    return [short(max(data("planted-errors")["tv"][name])) for name in mistakes]


def tables() -> list[object]:
    return [data("planted-errors")["settings"]["tables"]]


def naive(length: int) -> list[str]:
    """Tokens a call over tokenwise's: mean, least, most."""
    found = data("planted-errors")["naive_over_tokenwise"][str(length)]
    return [short(value) for value in (statistics.fmean(found), min(found), max(found))]


def several(*keys: str) -> list[int]:
    return [data("planted-errors")["several_drafts"][key] for key in keys]


def above_the_exact_model() -> list[str]:
    """By how many per cent P1's formula lies above the exact model: mean and worst."""
    found = [100 * (ratio - 1) for ratio in data("planted-errors")["formula_over_exact"]]
    return [f"{statistics.fmean(found):.0f}", f"{max(found):.0f}"]


def optimum_over_traversal() -> list[str]:
    """By how many per cent the optimum of several drafts lies above Traversal's tokens: range."""
    cells = [cell["mean_tokens"] for cell in data("several-drafts")["cells"]]
    gaps = [100 * (cell["optimum"] / cell["traversal"] - 1) for cell in cells]
    return [f"{min(gaps):.0f}", f"{max(gaps):.0f}"]


def search_seconds(candidates: int, model: str) -> float:
    (row,) = (
        row
        for row in data("search")["searches"]
        if (row["candidates"], row["latency_model"]) == (candidates, model)
    )
    return row["seconds"]["median"]


def verification(key: str) -> str:
    """Milliseconds of a draft of ten tokens, float32, alone."""
    (row,) = (
        row
        for row in data("verification")["rows"]
        if (row["dtype"], row["batch"], row["length"]) == ("float32", 1, 10)
    )
    return f"{row['verification'].get(key, row['laws']):.2f}"


MISTAKES = [
    Claim(MATH, "stand as median / largest over {} random tables", tables),
    Claim(MATH, "is **not lossless** (TV {}).", lambda: distances("uncapped end")),
    Claim(
        MATH,
        "(with data-dependent lengths it is lossy: {})",
        lambda: distances("naive with lengths that depend on the text"),
    ),
    Claim(
        MATH,
        "(× {}, {} to {} at n = 2; × {}, {} to {} at n = 3 on random models)",
        lambda: naive(2) + naive(3),
    ),
    Claim(
        MATH,
        "instead of scanning for the largest pass (TV {})",
        lambda: distances("first failure"),
    ),
    Claim(
        MATH,
        "instead of w_τ p − q ({}, and identically 0",
        lambda: distances("residual without weight"),
    ),
    Claim(MATH, "instead of the draft's real end ({})", lambda: distances("padded end")),
    Claim(
        MATH,
        "for accepted tokens is lossy ({}), so is handing up the residual ({}), so is handing up "
        "accepted tokens only ({}), so is a middle level that emits from full p on rejection ({}).",
        lambda: distances(
            "drafter's law handed up",
            "residual handed up",
            "accepted tokens alone handed up",
            "full p in between",
        ),
    ),
    Claim(
        MATH,
        "because of its own value ({}), or cutting later after looking at later tokens ({})",
        lambda: distances("a token dropped for its value", "cut after looking ahead"),
    ),
    Claim(MATH, "have an off-by-one in p (TV {})", lambda: distances("P5 as printed")),
    Claim(MATH, "from full p after a rejection: TV {})", lambda: distances("P2 as printed")),
    Claim(
        MATH,
        "is lossy, TV {} at K = 3.",
        lambda: distances("repeats counted at the first place"),
    ),
    Claim(
        MATH,
        "≥ token-RRS in {} of {} random pairs",
        lambda: _never_less("block-rrs", "rrs"),
    ),
    Claim(
        MATH,
        "It keeps at least what block-RRS keeps ({} of {} random pairs); the linear-programming "
        "optimum of one round lies {} to {} % higher",
        lambda: _never_less("traversal", "block-rrs") + optimum_over_traversal(),
    ),
    Claim(
        MATH,
        "it is an upper bound: {} % too high on average and {} % at worst at its own plans",
        above_the_exact_model,
    ),
    Claim(
        MATH,
        "80 candidates × T ≤ 15 take {:.0f} ms in NumPy",
        lambda: [1e3 * search_seconds(80, "corollary")],
    ),
    Claim(MATH, "{:.1f} s at 32 candidates", lambda: [search_seconds(32, "exact")]),
    Claim(
        MATH,
        "V = 151,936, n = 10 on a CPU core: tokenwise {} ms, block scanned lazily from the end {} "
        "ms (h_n needs no vocabulary sum; w_k = 1 ends the scan; w_k = 0 skips the row), softmax "
        "of the rows {} ms.",
        lambda: map(verification, ("tokenwise", "block", "laws")),
    ),
    Claim(
        P1,
        "(TV up to {}), the residual for recovered ones ({}), accepted tokens alone ({}), or "
        "recovering from the full distribution instead of the residual ({}).",
        lambda: largest(
            "drafter's law handed up",
            "residual handed up",
            "accepted tokens alone handed up",
            "full p in between",
        ),
    ),
    Claim(
        P2,
        "then not the target's (TV {} in the median of {} random tables, {} at most)",
        lambda: _median_of("P2 as printed"),
    ),
    Claim(
        P4,
        "with lengths that depend on the text it is lossy (TV up to {}).",
        lambda: largest("naive with lengths that depend on the text"),
    ),
    Claim(
        P4,
        "on random small models {} of tokenwise's at n = 2 and {} at n = 3.",
        lambda: [naive(2)[0], naive(3)[0]],
    ),
    *(
        Claim(
            page,
            said,
            lambda: largest("P4 Algorithm 3, ratio carried on", "P4 Algorithm 3, uncapped"),
        )
        for page, said in (
            (P4, "each is lossy (TV up to {} and {} on random tables)."),
            (DRAFTS, "Each is lossy (TV up to {} and {} on random tables)."),
            (EVIDENCE, "as printed TV up to {} and {};"),
        )
    ),
    Claim(
        DRAFTS,
        "is lossy (TV up to {} with three drafts)",
        lambda: largest("repeats counted at the first place"),
    ),
    Claim(
        DRAFTS,
        "On {} random pairs of small models (1 to 3 tokens, 2 or 3 drafts) `block-rrs` never kept "
        "fewer than `rrs`, and more in {}. Distinct first tokens kept more than `rrs` in {} and "
        "fewer in {}:",
        lambda: several(
            "pairs",
            "block-rrs keeps more than rrs",
            "rrs-without-replacement keeps more than rrs",
            "rrs-without-replacement keeps less than rrs",
        ),
    ),
    Claim(P5, "lossy, TV up to {} | the row before", lambda: largest("P5 as printed")),
    Claim(
        P5,
        "handing up accepted tokens only is lossy, TV up to {} |",
        lambda: largest("accepted tokens alone handed up"),
    ),
    Claim(
        P5,
        "that M2 accepted: lossy, TV up to {}; if it is the residual: {} |",
        lambda: largest("drafter's law handed up", "residual handed up"),
    ),
    Claim(EVIDENCE, "as printed TV up to {}; corrected", lambda: largest("P2 as printed")),
    Claim(EVIDENCE, "read one place late, TV up to {};", lambda: largest("P5 as printed")),
    Claim(
        EVIDENCE,
        "recovered tokens are lost (TV up to {});",
        lambda: largest("accepted tokens alone handed up"),
    ),
    Claim(
        "docs/planning.md",
        "an upper bound ({} % too high on average)",
        lambda: above_the_exact_model()[:1],
    ),
]


def _never_less(rule: str, other: str) -> list[int]:
    """Pairs in which a rule keeps no less than another, and all pairs: none may be missing."""
    (pairs,), (less,) = several("pairs"), several(f"{rule} keeps less than {other}")
    assert less == 0
    return [pairs - less, pairs]


def _median_of(mistake: str) -> list[object]:
    tv = data("planted-errors")["tv"][mistake]
    return [short(statistics.median(tv)), len(tv), short(max(tv))]


# --- small models, enumerated here


@cache
def certificate(rule: str, tokens: int, drafts: int = 1, example: str = "four-levels") -> Any:
    """Of the smallest and the largest model of an example under one rule."""
    case = load_case(ROOT / "examples" / "certify" / f"{example}.json")
    below: dict[str, Any] = {"num_speculative_tokens": tokens}
    if drafts > 1:
        below["num_drafts"] = drafts
    models = [case["models"][0], case["models"][-1]]
    horizon = tokens + 2
    levels = [below, {"verify": rule}]
    return certify({**case, "models": models, "levels": levels, "horizon": horizon})


def kept(rule: str, tokens: int) -> list[str]:
    """Draft tokens kept · tokens a call, and the distance where there is one."""
    found = certificate(rule, tokens)
    said = f"{found.expected_accepted:.4f} · {found.expected_tokens_per_target_call:.3f}"
    return [said if found.passed(allow_inconclusive=True) else f"{said}, TV {short(found.tv, 3)}"]


def worked(rule: str) -> list[str]:
    """Of the worked example: ninths of a token kept, tokens a call."""
    found = certificate(rule, 2, example=f"worked-example-{rule}")
    return [
        f"{9 * found.expected_accepted:.0f}/9",
        f"{found.expected_tokens_per_target_call:.3f}",
        *([f"{found.tv:.3f}"] if found.tv > 1e-9 else []),
    ]


def _worked_tv() -> str:
    return worked("uncapped")[2].lstrip("0")


def of_drafts(rules: Iterable[str], tokens: int) -> list[str]:
    """Draft tokens kept with one, two and three drafts: the same by all of these rules."""
    (row,) = {
        tuple(short(certificate(rule, tokens, k).expected_accepted, 4) for k in (1, 2, 3))
        for rule in rules
    }
    return [*row]


ENUMERATED = [
    *(
        Claim(BLOCK, f"| {row} | {{}} | {{}} | {last} |", lambda rule=rule: worked(rule))
        for row, rule, last in (
            ("`tokenwise`", "tokenwise", "0"),
            ("`block`, `branch`", "block", "0"),
            ("`uncapped` (P4's code)", "uncapped", "**{}**"),
            ("`naive` (P4 §5.1)", "naive", "0"),
        )
    ),
    *(
        Claim(
            BLOCK,
            f"| {n} | {{}} | {{}} | {{}} | {{}} |",
            lambda n=n: [
                one for rule in ("tokenwise", "block", "uncapped", "naive") for one in kept(rule, n)
            ],
        )
        for n in (2, 3, 4)
    ),
    *(
        Claim(
            DRAFTS,
            f"| {n} | {', '.join(f'`{rule}`' for rule in rules)} | {{}} | {{}} | {{}} |",
            lambda n=n, rules=rules: of_drafts(rules, n),
        )
        for n, rules in (
            (1, ("rrs", "block-rrs", "traversal")),
            (1, ("induced-block",)),
            (1, ("rrs-without-replacement",)),
            (2, ("rrs",)),
            (2, ("rrs-without-replacement",)),
            (2, ("block-rrs", "traversal")),
            (2, ("induced-block",)),
        )
    ),
    Claim(P4, "at a distance (TV) of {} from the target's law", lambda: [_worked_tv()]),
    Claim(EVIDENCE, "TV {} in the worked example", lambda: [_worked_tv()]),
]


# --- formulas


def growing(which: int) -> list[str]:
    """P1's formula at its best plans with two to six models of an example."""
    inputs = ((p1.FIRST_COSTS, p1.TABLE_6), (p1.SECOND_COSTS, p1.TABLE_7))[which]
    return [f"{p1.best_plan(p1.example(*inputs, models))[0]:.4f}" for models in range(2, 7)]


def printed_ms(which: int) -> list[str]:
    return [ms for _, ms in (p1.TABLE_1, p1.TABLE_8)[which][1:6]]


def bound() -> float:
    """What no hierarchy of the second example's three largest models goes below."""
    return plan(p1.example(p1.SECOND_COSTS, p1.TABLE_7, 3)).lower_bound


def with_overshoot() -> float:
    """The exact model, first example, three models, budgets 4 and 8."""
    estimates = p1.example(p1.FIRST_COSTS, p1.TABLE_6, 3)
    return latency(estimates, Chain((0, 1, 2), (4, 8))).ms_per_token


def cells_that_match() -> tuple[int, int]:
    """Cells of Table 9 that follow from the printed inputs, and all."""
    table = next(table for table in p1.compute().tables if table.name == "Table 9")
    cells = [cell for row in table.rows for cell in row.cells]
    return sum(cell.matches for cell in cells), len(cells)


def interleaved(*lengths: int) -> list[str]:
    return [f"{interleaved_speedup(0.8, 0.5, 0.1, 0.1, n, 4).item():.4f}" for n in lengths]


def hispec(over: str) -> list[float]:
    """The printed gains of HiSpec over another method, or over plain decoding."""
    return [
        ours / theirs
        for rows in p3.TABLE_1.values()
        if over in rows
        for ours, theirs in zip(rows["HiSpec"], rows[over], strict=True)
    ]


def _printed_gains() -> list[str]:
    skip, decode, plain = hispec("LayerSkip"), hispec("AdaDecode"), p3.printed("HiSpec")
    assert len(skip) == 30
    mean = statistics.fmean
    return [
        f"{mean(skip):.2f}",
        f"{max(skip):.2f}",
        f"{max(decode):.2f}",
        f"{mean(plain):.1f}",
        f"{max(plain):.2f}",
    ]


def offered(*systems: str) -> list[str]:
    """Tokens a call that a system's printed σ and η imply."""
    rows = (map(float, p5.TABLE_4[name][:2]) for name in systems)
    return [f"{p5.implied_offered_per_call(sigma / 100, eta / 100):.2f}" for sigma, eta in rows]


FORMULAS = [
    Claim(
        MATH,
        "speed-up {}, {}, {}, {}, {}, {}, {} for n = 0, 1, 2, 3, 4, 8, 16.",
        lambda: interleaved(0, 1, 2, 3, 4, 8, 16),
    ),
    Claim(
        P2,
        "gives speed-ups of {}, {}, {}, {}, {} for n = 0 … 4, and falls below 1 at n = 16",
        lambda: interleaved(0, 1, 2, 3, 4),
    ),
    Claim(
        MATH,
        "largest models = {}, {}, {}, {}, {} (paper prints {}, {}, {}, {}, {};",
        lambda: growing(0) + printed_ms(0),
    ),
    Claim(
        MATH,
        "Second example (Table 7): {}, {}, {}, {}, {} (paper prints {}, {}, {}, {}, {};",
        lambda: growing(1) + printed_ms(1),
    ),
    Claim(
        MATH,
        "{} lies below {:.2f}, which no hierarchy of these three can go below,",
        lambda: [printed_ms(1)[1], bound()],
    ),
    Claim(MATH, "{} of {} cells match, the other five", cells_that_match),
    Claim(MATH, "3 models and T = [4, 8]: {:.4f}.", lambda: [with_overshoot()]),
    Claim(P1, "{} of the {} cells of Table 9 match", cells_that_match),
    Claim(
        P1,
        "the printed {} lies below what any hierarchy of the printed inputs can reach ({:.2f})",
        lambda: [printed_ms(1)[1], bound()],
    ),
    Claim(
        P3,
        "HiSpec over LayerSkip is {} on average over its thirty cells and {} at most, where the "
        'text says 1.28 and 2.01 over "baseline single-layer speculation" ({} is HiSpec over '
        "AdaDecode in one cell); the averages of {} and at most {} over plain "
        "decoding do follow.",
        _printed_gains,
    ),
    Claim(
        P5,
        "Table 4's numbers give {} and {} for the two single drafts, that is K = 10, and {} and "
        "{} for the systems of three models.",
        lambda: offered("vanilla M2", "vanilla M1", "pre-verify + self-verify", "full"),
    ),
    Claim(P5, "P5's printed σ and η imply {} for it.", lambda: [offered("full")[0][:-1]]),
]
COMPUTED = MISTAKES + ENUMERATED + FORMULAS
