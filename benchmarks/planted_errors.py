"""What mistakes cost, by enumeration: the distances and counts that pages on the mathematics quote.

Mistakes seen in papers and in code, as the tests plant them (``tests/wrong_rules.py``), over random
tables of three tokens: the total variation distance of the text from the target's. Beside them what
rules keep on random tables, and by how much P1's formula lies above the exact model at its own
plans. Nothing is timed.

    python benchmarks/planted_errors.py
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from typing import Any

import common

sys.path.append(str(common.ROOT / "tests"))

import wrong_rules as wrong
from rich.progress import track
from search import problem
from tabular_cases import V, chain, models, pair, several

from hierspec.core.nodes import Verify
from hierspec.core.windows import EntropyWindow
from hierspec.exact.certificate import certify_tree
from hierspec.planner.latency import latency
from hierspec.verifiers.registry import get
from hierspec_lab.planning.search import plan

Make = Callable[[int], Verify]
LARGEST = 1000  # lists of drafts that are enumerated in a moment
_EQUAL = 1e-9


def variants() -> Iterator[tuple[str, Make]]:
    """Yield names of mistakes, and the hierarchy of each over the tables of a seed."""
    last = {
        "uncapped end": get("uncapped"),
        "first failure": wrong.StopsAtTheFirstFailure(),
        "one uniform for all": wrong.OneUniformForAll(),
        "residual without weight": wrong.ResidualWithoutWeight(),
        "residual of the uncapped ratio": wrong.ResidualOfTheUncappedRatio(),
        "padded end": wrong.EndsAtThePadding(),
        "full p after a rejection": wrong.EmitsFromFullP(),
    }
    for name, rule in last.items():
        yield name, lambda seed, rule=rule: chain(models("random", 2, seed=seed), [rule], [3])
    between = {
        "drafter's law handed up": wrong.HandsUpTheDraftersLaw(),
        "accepted tokens alone handed up": wrong.HandsUpAcceptedOnly(),
        "residual handed up": wrong.HandsUpTheResidual(),
        "full p in between": wrong.EmitsFromFullP(),
        "a token dropped for its value": wrong.DropsATokenForItsValue(),
        "cut after looking ahead": wrong.CutsAfterLookingAhead(),
    }
    for name, rule in between.items():
        yield (
            name,
            lambda seed, rule=rule: chain(
                models("random", 3, seed=seed), [rule, "tokenwise"], [2, 2]
            ),
        )
    yield "P2 as printed", wrong.interleaved_as_printed
    yield (
        "P5 as printed",
        lambda seed: chain(
            models("random", 2, seed=seed), [wrong.ReadsOneLate()], [2], [EntropyWindow()]
        ),
    )
    yield (
        "naive with lengths that depend on the text",
        lambda seed: chain(
            models("random", 2, seed=seed), ["naive"], [3], [EntropyWindow(threshold=0.8)]
        ),
    )
    published = {"ratio carried on": (True, False), "uncapped": (False, True), "both": (True, True)}
    for name, slips in published.items():
        yield (
            f"P4 Algorithm 3, {name}",
            lambda seed, slips=slips: several(*pair(3, 1, seed), wrong.Published(*slips), 2, 2),
        )
    yield (
        "repeats counted at the first place",
        lambda seed: several(*pair(3, 0, seed), wrong.CountsRepeats(), 3, 1),
    )


def distances(make: Make, tables: int) -> list[float]:
    return [certify_tree(make(seed), V).tv for seed in range(tables)]


def naive_over_tokenwise(length: int, tables: int) -> list[float]:
    """Compare tokens a target call of ``naive``, its further calls counted, with tokenwise's."""

    def tokens(rule: str, seed: int) -> float:
        tree = chain(models("random", 2, seed=seed), [rule], [length])
        return certify_tree(tree, V).expected_tokens_per_target_call

    return [tokens("naive", seed) / tokens("tokenwise", seed) for seed in range(tables)]


def several_drafts(seeds: int) -> dict[str, int]:
    """Count how often which rule keeps more, over pairs of 1 to 3 tokens and 2 or 3 drafts."""
    shapes = [
        (vocab, length, drafts)
        for vocab in (2, 3)
        for length in (1, 2, 3)
        for drafts in (2, 3)
        if vocab ** (length * drafts) <= LARGEST
    ]
    compared = {
        "block-rrs": "rrs",
        "rrs-without-replacement": "rrs",
        "traversal": "block-rrs",
    }
    counts = {"pairs": 0} | {
        f"{name} keeps {word} than {baseline}": 0
        for name, baseline in compared.items()
        for word in ("more", "less")
    }
    for vocab, length, drafts in track(shapes, "several drafts"):
        for seed in range(seeds):
            q, p = pair(vocab, 1, seed)
            kept = {
                rule: certify_tree(
                    several(q, p, rule, drafts, length), vocab, length + 2
                ).expected_accepted
                for rule in {*compared, *compared.values()}
            }
            counts["pairs"] += 1
            for name, baseline in compared.items():
                gap = kept[name] - kept[baseline]
                counts[f"{name} keeps more than {baseline}"] += gap > _EQUAL
                counts[f"{name} keeps less than {baseline}"] += gap < -_EQUAL
    return counts


def formula_over_exact(problems: int, candidates: int) -> list[float]:
    """Compare P1's formula with the exact model, at the formula's plans of random problems."""
    out = []
    for seed in range(problems):
        estimates = problem(seed, candidates)
        best = plan(estimates, latency_model="corollary").best
        if not best.chain.plain:
            out.append(best.ms / latency(estimates, best.chain).ms_per_token)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", type=int, default=24)
    parser.add_argument("--seeds", type=int, default=12, help="of each shape of several drafts")
    parser.add_argument("--problems", type=int, default=120)
    args = parser.parse_args()
    report: dict[str, Any] = {
        "environment": common.environment(),
        "settings": {"tables": args.tables, "vocab": V, "candidates": 6},
        "tv": {
            name: distances(make, args.tables) for name, make in track([*variants()], "mistakes")
        },
        "naive_over_tokenwise": {
            str(length): naive_over_tokenwise(length, args.tables) for length in (2, 3)
        },
        "several_drafts": several_drafts(args.seeds),
        "formula_over_exact": formula_over_exact(args.problems, 6),
    }
    common.write("planted-errors", report)


if __name__ == "__main__":
    main()
