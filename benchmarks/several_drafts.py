"""Tokens a round by rules for several drafts, exact, beside the optimum of all lossless rules.

Random tables of V tokens, L tokens a draft, K drafts. Every list of drafts is enumerated. The
optimum is a linear programme over what is kept of every set of drafts and what follows, such that
the text written has the target's distribution. Nothing is timed.

With more drafts, P4's eleven among them, lists of drafts are sampled, and each rule's expectation
over its own tests is exact. The optimum is exact all the same: of several tokens the programme over
sets of texts, of one token a formula, on random tables and with ``--data`` on the rows of two
shipped models after real prompts.

    python benchmarks/several_drafts.py --data FOLDER
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Iterator, Sequence
from itertools import combinations, product
from pathlib import Path
from typing import Any

import common
import numpy as np
import torch
from rich.progress import track
from scipy.optimize import linprog
from scipy.sparse import coo_matrix

from hierspec import Hierarchy, HierarchyConfig, SamplingParams, TargetConfig
from hierspec.core.distributions import DenseDistributions
from hierspec.core.proposals import Proposal
from hierspec.lm.tabular import TabularModel
from hierspec.verifiers.multi_draft import outcomes
from hierspec.verifiers.registry import get
from hierspec_lab.papers import prompts

sys.path.append(str(common.ROOT / "tests"))
from joint_law import joint_law
from optimal_acceptance import optimal_acceptance

RULES = ("rrs", "block-rrs", "traversal", "induced-block")
ONE, OPTIMUM = "one draft, block", "optimum"
SHAPES = ((3, 1, 2), (3, 2, 2), (2, 3, 2), (5, 2, 2), (3, 1, 3), (3, 2, 3), (2, 3, 3))
_EQUAL, _ROUNDING = 1e-9, 1e-10
Text = tuple[int, ...]


class Round:
    """One round of a drafter and a target: all drafts, their probabilities, and the rows."""

    def __init__(self, q: TabularModel, p: TabularModel, length: int) -> None:
        self.q, self.p, self.length = q, p, length
        self.vocab = p.vocab_size
        texts = list(product(range(self.vocab), repeat=length))
        self.chance = {text: _chance(q, text) for text in texts}
        self.texts = [text for text in texts if self.chance[text] > 0.0]
        self._drafts = {text: self._draft(text) for text in self.texts}
        self._rows = {text: _rows(p, text, length + 1) for text in self.texts}

    def _draft(self, text: Text) -> Proposal:
        owners = (0,) * self.length
        signals = (math.nan,) * self.length
        return Proposal(text, _rows(self.q, text, self.length), owners, owners, signals)

    def tokens(self, rule: str, num_drafts: int) -> float:
        """Return the mean tokens a round: those kept, and the one that follows."""
        total = 1.0
        for texts in product(self.texts, repeat=num_drafts):
            drafts, rows = [self._drafts[t] for t in texts], [self._rows[t] for t in texts]
            kept = sum(
                share * stop.num_accepted for share, stop in outcomes(get(rule), drafts, rows)
            )
            total += kept * math.prod(self.chance[t] for t in texts)
        return total

    def optimum(self, num_drafts: int) -> float:
        """Return the most that a rule can keep whose text has the target's distribution."""
        # What may be kept depends on which texts were drafted, not on how often or in what order.
        variables: list[tuple[int, Text, int]] = []  # set of drafts, what is kept, what follows
        sets: list[float] = []
        for number, (texts, share) in enumerate(self._sets(num_drafts)):
            sets.append(share)
            nodes = sorted({text[:n] for text in texts for n in range(self.length + 1)})
            variables += [(number, node, y) for node in nodes for y in range(self.vocab)]
        target = {z: _chance(self.p, z) for z in product(range(self.vocab), repeat=self.length + 1)}
        numbers = {z: i for i, z in enumerate(target)}
        entries = [
            entry
            for column, variable in enumerate(variables)
            for entry in self._column(column, variable, numbers)
        ]
        rows, columns, values = zip(*entries, strict=True)
        text_probs = coo_matrix((values, (rows, columns)), shape=(len(numbers), len(variables)))
        set_sums = coo_matrix(
            (np.ones(len(variables)), ([v[0] for v in variables], range(len(variables))))
        )
        solution = linprog(
            [-float(len(node)) for _, node, _ in variables],
            # No text more often than the target writes it; all sum to one, so none less often.
            A_ub=text_probs,
            b_ub=[chance + _ROUNDING for chance in target.values()],
            A_eq=set_sums,
            b_eq=sets,
            method="highs",
        )
        if not solution.success:
            raise RuntimeError(f"the linear programme was not solved: {solution.message}")
        return 1.0 - float(solution.fun)

    def _sets(self, num_drafts: int) -> Iterator[tuple[tuple[Text, ...], float]]:
        """Yield each set of texts that the drafts can be, and the chance of just that set."""
        series = {
            text: np.array([0.0, *(c**j / math.factorial(j) for j in range(1, num_drafts + 1))])
            for text, c in self.chance.items()
        }
        for size in range(1, min(num_drafts, len(self.texts)) + 1):
            for texts in combinations(self.texts, size):
                ways = np.eye(1, num_drafts + 1)[0]  # exponential generating function, cut off
                for text in texts:
                    ways = np.convolve(ways, series[text])[: num_drafts + 1]
                yield texts, float(ways[-1]) * math.factorial(num_drafts)

    def sampled(
        self, rules: Sequence[str], num_drafts: int, lists: int, generator: torch.Generator
    ) -> dict[str, float]:
        """Estimate :meth:`tokens` of each rule over the same lists of drafts, which are drawn."""
        chances = torch.tensor([self.chance[text] for text in self.texts])
        mean_tokens = dict.fromkeys(rules, 1.0)
        for _ in range(lists):
            indices = torch.multinomial(chances, num_drafts, replacement=True, generator=generator)
            texts = [self.texts[i] for i in indices.tolist()]
            drafts, rows = [self._drafts[t] for t in texts], [self._rows[t] for t in texts]
            for rule in rules:
                ends = outcomes(get(rule), drafts, rows)
                mean_tokens[rule] += sum(share * stop.num_accepted for share, stop in ends) / lists
        return mean_tokens

    def _column(
        self, column: int, variable: tuple[int, Text, int], numbers: dict[Text, int]
    ) -> Iterator[tuple[int, int, float]]:
        """Yield what one unit of a variable adds to the distribution of L + 1 tokens."""
        _, node, y = variable
        prefix = (*node, y)
        for rest in product(range(self.vocab), repeat=self.length + 1 - len(prefix)):
            chance = _chance(self.p, (*prefix, *rest), start=len(prefix))
            if chance > 0.0:
                yield numbers[(*prefix, *rest)], column, chance


def _rows(model: TabularModel, text: Text, count: int) -> DenseDistributions:
    return DenseDistributions(torch.stack([model.distribution(text[:i]) for i in range(count)]))


def _chance(model: TabularModel, text: Text, start: int = 0) -> float:
    return math.prod(float(model.distribution(text[:i])[text[i]]) for i in range(start, len(text)))


def compared(shape: Sequence[int], seed: int) -> dict[str, float]:
    """Return the tokens a round of one pair of random tables."""
    vocab, length, num_drafts = shape
    generator = torch.Generator().manual_seed(seed)
    q, p = (TabularModel.random(vocab, length, generator) for _ in range(2))
    round_ = Round(q, p, length)
    tokens = {ONE: round_.tokens("block-rrs", 1)}
    tokens |= {rule: round_.tokens(rule, num_drafts) for rule in RULES}
    return tokens | {OPTIMUM: round_.optimum(num_drafts)}


LONGER = ((3, 2), (2, 3))  # V and n of several drafts of several tokens
MORE = (4, 8, 11)


def longer(tables: int, lists: int) -> list[dict[str, Any]]:
    """Return a cell for each shape and number of drafts, too many to enumerate their lists."""
    cells = []
    for (vocab, length), num_drafts in product(LONGER, MORE):
        runs = []
        title = f"V {vocab}, n {length}, {num_drafts} drafts"
        for seed in track(range(tables), title):
            generator = torch.Generator().manual_seed(seed)
            q, p = (TabularModel.random(vocab, length, generator) for _ in range(2))
            round_ = Round(q, p, length)
            tokens = round_.sampled(RULES[1:], num_drafts, lists, generator)
            runs.append(tokens | {OPTIMUM: round_.optimum(num_drafts)})
        mean = {name: statistics.fmean(run[name] for run in runs) for name in runs[0]}
        sizes = {"vocab": vocab, "length": length, "num_drafts": num_drafts}
        cells.append({**sizes, "mean_tokens": mean, "runs": runs})
        print(title + ": " + ", ".join(f"{name} {value:.3f}" for name, value in mean.items()))
    return cells


MANY = (1, 2, 4, 8, 11)  # drafts of a position; P4 takes 11
MANY_RULES = ("rrs", "rrs-without-replacement", "induced-block")
MODELS = ("zoo:small", "zoo:trunk")


def kept_of_many(
    q: torch.Tensor, p: torch.Tensor, num_drafts: int, lists: int, generator: torch.Generator
) -> dict[str, float]:
    """Return how likely each rule keeps one of so many tokens of one position, and the optimum.

    The optimum is of tokens drawn independently: distinct ones may be kept more often.
    """
    rows = DenseDistributions(torch.stack([p, p]))
    kept = dict.fromkeys(MANY_RULES, 0.0)
    for _ in range(lists):
        for rule in MANY_RULES:
            drafts = _one_position(q, num_drafts, generator, distinct=get(rule).distinct)
            ends = outcomes(get(rule), drafts, [rows] * len(drafts))
            kept[rule] += sum(share * end.num_accepted for share, end in ends) / lists
    return kept | {OPTIMUM: optimal_acceptance(p, q, num_drafts)}


def _one_position(
    q: torch.Tensor, num_drafts: int, generator: torch.Generator, *, distinct: bool
) -> list[Proposal]:
    """Draw drafts of one token, each from q or from what those before it leave of q."""
    drafts, rest = [], q.clone()
    for _ in range(num_drafts):
        if float(rest.sum()) <= 0.0:
            break
        probs = rest / rest.sum()
        token = int(torch.multinomial(probs, 1, generator=generator))
        drafts.append(Proposal((token,), DenseDistributions(probs[None]), (0,), (0,), (math.nan,)))
        if distinct:
            rest[token] = 0.0
    return drafts


def random_rows(count: int, vocab: int = 50) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return pairs (q, p) of random distributions, peaked as a language model's are."""
    generator = torch.Generator().manual_seed(0)
    shared = torch.randn(count, 1, vocab, generator=generator, dtype=torch.float64)
    own = torch.randn(count, 2, vocab, generator=generator, dtype=torch.float64)
    q, p = (1.5 * shared + 0.7 * own).softmax(-1).unbind(1)
    return list(zip(q, p, strict=True))


def model_rows(folder: Path, count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return pairs (q, p) of the shipped small model and trunk after real prompts."""
    texts, _ = prompts.read(folder, count)
    models = [
        Hierarchy.from_config(HierarchyConfig(target=TargetConfig(model=name, dtype="float32")))
        for name in MODELS
    ]
    ids = [
        models[0].tokenizer(prompt.text)["input_ids"][-prompts.MAX_PROMPT_TOKENS :]
        for prompt in texts
    ]
    rows = [[_next_token(model, text) for text in ids] for model in models]
    return list(zip(*rows, strict=True))


def _next_token(model: Hierarchy, text: Sequence[int]) -> torch.Tensor:
    """Return a model's distribution after a text, [V] float64."""
    joint = joint_law(model, text, SamplingParams(temperature=1.0), 1)
    out = torch.zeros(model.root.model.vocab_size, dtype=torch.float64)
    for (token,), chance in joint.items():
        out[token] = chance
    return out / out.sum()


def measure_many(
    pairs: Sequence[tuple[torch.Tensor, torch.Tensor]], lists: int
) -> list[dict[str, Any]]:
    """Return a cell for each number of drafts."""
    cells = []
    for num_drafts in MANY:
        generator = torch.Generator().manual_seed(num_drafts)
        runs = [
            kept_of_many(q, p, num_drafts, lists, generator)
            for q, p in track(pairs, f"{num_drafts} drafts of a token")
        ]
        mean = {name: statistics.fmean(run[name] for run in runs) for name in runs[0]}
        cells.append({"num_drafts": num_drafts, "mean_kept": mean, "runs": runs})
        print(f"{num_drafts}: " + ", ".join(f"{name} {value:.4f}" for name, value in mean.items()))
    return cells


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", type=int, default=24, help="pairs of random tables a shape")
    parser.add_argument("--data", type=Path, help="folder of prompt files, for the models' rows")
    parser.add_argument("--lists", type=int, default=100, help="of many drafts, sampled a pair")
    args = parser.parse_args()
    one_token = {"random": measure_many(random_rows(args.tables), args.lists)}
    if args.data is not None:
        one_token["models"] = measure_many(model_rows(args.data, args.tables), args.lists)
    names = (ONE, *RULES, OPTIMUM)
    cells: list[dict[str, Any]] = []
    for shape in SHAPES:
        vocab, length, num_drafts = shape
        title = f"V {vocab}, L {length}, K {num_drafts}"
        runs = [compared(shape, seed) for seed in track(range(args.tables), title)]
        mean = {name: statistics.fmean(run[name] for run in runs) for name in names}
        ahead = {
            f"{a} over {b}": sum(run[a] > run[b] + _EQUAL for run in runs)
            for a, b in (("traversal", "block-rrs"), ("induced-block", "traversal"))
        }
        behind = {
            f"{b} over {a}": sum(run[b] > run[a] + _EQUAL for run in runs)
            for a, b in (("traversal", "block-rrs"), ("induced-block", "traversal"))
        }
        cells.append(
            {"vocab": vocab, "length": length, "num_drafts": num_drafts, "mean_tokens": mean,
             "wins": ahead | behind, "runs": runs}
        )  # fmt: skip
        print(title + ": " + ", ".join(f"{name} {value:.3f}" for name, value in mean.items()))
        print("  " + ", ".join(f"{name}: {count}" for name, count in cells[-1]["wins"].items()))
    common.write(
        "several-drafts",
        {
            "environment": common.environment(),
            "settings": {"tables": args.tables, "lists": args.lists, "models": MODELS},
            "cells": cells,
            "one_token": one_token,
            "longer": longer(args.tables, args.lists),
        },
    )


if __name__ == "__main__":
    main()
