"""Pages of the papers that quote what was measured."""

from __future__ import annotations

import statistics

from .base import Claim, data


def _judged(file: str, method: str) -> tuple[list[float], list[float]]:
    """Entropies of a drafter's tokens that the target kept, and of those that it rejected."""
    runs = data(f"evidence/{file}")["runs"]
    every = [pair for run in runs if run["method"] == method for pair in run["entropies"]]
    return [v for v, good in every if good], [v for v, good in every if not good]


def _separation(file: str, method: str) -> list[str]:
    """A row of P5's page: what was rejected, mean entropies, AUC, shares above the mean."""
    kept, lost = _judged(file, method)
    wins = sum((a > b) + (a == b) / 2 for a in lost for b in kept)
    threshold = statistics.fmean(lost)
    return [
        f"{len(lost)} of {len(kept) + len(lost)}",
        f"{statistics.fmean(kept):.2f} / {threshold:.2f}",
        f"{wins / len(lost) / len(kept):.2f}".lstrip("0"),
        *(f"{100 * statistics.fmean(v > threshold for v in some):.0f}" for some in (kept, lost)),
    ]


def _fifths(file: str, method: str) -> list[str]:
    """The share of rejected tokens in fifths of rising entropy."""
    kept, lost = _judged(file, method)
    every = sorted([(v, 0) for v in kept] + [(v, 1) for v in lost])
    n = len(every)
    parts = (every[i * n // 5 : (i + 1) * n // 5] for i in range(5))
    return [f"{statistics.fmean(bad for _, bad in part):.2f}".lstrip("0") for part in parts]


def _offered(file: str, method: str) -> list[str]:
    """Tokens offered to the target a round, and the per cent of them that it keeps."""
    runs = [run for run in data(f"evidence/{file}")["runs"] if run["method"] == method]
    rounds = [pair for run in runs for pair in run["rounds"]]
    offered = sum(number for number, _ in rounds)
    return [
        f"{offered / len(rounds):.1f}",
        f"{100 * sum(kept for _, kept in rounds) / offered:.0f}",
    ]


def _first_rejection(file: str) -> str:
    """The round in which the full system's target rejects for the first time, mean over texts."""
    runs = [run for run in data(f"evidence/{file}")["runs"] if run["method"] == "full"]
    first = [
        next((i for i, (offered, kept) in enumerate(run["rounds"], 1) if kept < offered), None)
        for run in runs
    ]
    return f"{statistics.fmean(one for one in first if one is not None):.1f}"


def _lengths() -> list[str]:
    """Median tokens of prompts and of answers, each of summarization and GSM8K."""
    out = []
    for table in data("reproduce-p3-figure9")["tables"]:
        medians = {row["domain"]: row["median"] for row in table["rows"]}
        out += [f"{medians[domain]:.0f}" for domain in ("summarization", "gsm8k")]
    return out


def _coin_flips() -> list[str]:
    """Simulated over real latency, and the exact model over real, greedily and at temperature 1."""
    tables = data("reproduce-p1-coin-flips")["tables"]
    cells = [
        row["ratio"]
        for table in tables
        for row in table["rows"]
        if row.get("acceptances, costs") == "iid, artificial"
    ]
    exact = [
        row["over real, real"]
        for table in tables
        for row in table["rows"]
        if row.get("what") == "exact latency model"
    ]
    return [f"{value:.3f}" for value in cells + exact]


_P5 = "docs/papers/p5.md"
PAPERS = [
    Claim(
        "docs/papers/evidence.md",
        "median prompt of summarization {} tokens, of GSM8K {}; median answer of SmolLM2 {} and {}",
        _lengths,
    ),
    Claim(
        "docs/papers/evidence.md",
        "over the real thing: {} greedily, {} at temperature 1 (large, 24 prompts), the exact "
        "model {} and {};",
        _coin_flips,
    ),
    *(
        Claim(
            _P5,
            f"| {models} | {temperature} | {method[-2:]} | {{}} | {{}} | {{}} | {{}} % | {{}} % |",
            lambda file=file, method=method: _separation(file, method),
        )
        for file, models, temperature in (
            ("p5-trunk-0", "trunk", 0),
            ("p5-trunk-1", "trunk", 1),
            ("p5-smollm2-1", "SmolLM2", 1),
        )
        for method in ("vanilla M2", "vanilla M1")
    ),
    Claim(
        _P5,
        "fifths of rising entropy is {}, {}, {}, {}, {} there",
        lambda: _fifths("p5-trunk-1", "vanilla M2"),
    ),
    Claim(
        _P5,
        "it offers the target {} tokens a round, of which {} % are kept, where vanilla M2 offers "
        "{} ({} %)",
        lambda: _offered("p5-trunk-1", "full") + _offered("p5-trunk-1", "vanilla M2"),
    ),
    Claim(
        _P5,
        "On SmolLM2 it offers {} ({} %), vanilla M2 {} ({} %)",
        lambda: _offered("p5-smollm2-1", "full") + _offered("p5-smollm2-1", "vanilla M2"),
    ),
    Claim(
        _P5,
        "first time in round {} on the trunk at temperature 1 and in round {} on SmolLM2",
        lambda: (_first_rejection("p5-trunk-1"), _first_rejection("p5-smollm2-1")),
    ),
]
