"""What P1's formula says of an experiment's methods, from the acceptances that it measured.

P1's system does not stack models whatever they are: it puts measured acceptance rates and costs
into the formula of Corollary 3.1 and takes the hierarchy that is best by it. So what an experiment
on single drafts and stacks of three shows of P1 is whether the formula's choice is the fastest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from hierspec.planner.estimates import Chain, ideal
from hierspec_lab.planning.corollary import corollary

from . import effects
from .files import ExperimentFile
from .methods import SHORT_TAIL, TAIL

# Files with single drafts of a small and a large drafter and with stacks of both, by weights.
FILES = (
    "p1-trunk-0",
    "p1-trunk-1",
    "p1-t5-0",
    "p1-t5-1",
    "p1-tuned-0",
    "p1-tuned-1",
    "clock-p1-large-0",
)
SWEEPS = ("p1-trunk-sweep-0", "p1-trunk-sweep-1")  # with a table, and with horizontal cascades
SINGLE, STACKED = "single ", "three "


@dataclass(frozen=True, slots=True)
class FormulaReading:
    """Speed-ups over plain decoding by weights, predicted and measured, of vertical cascades.

    Attributes:
        rates: acceptance by drafter and verifier, as levels are named in the file; of the pairs
            that a method has at its lowest level.
        predicted, measured: by method.
    """

    rates: dict[tuple[str, str], float]
    predicted: dict[str, float]
    measured: dict[str, float]

    @property
    def choice(self) -> str:
        """The method that is best by the formula."""
        return max(self.predicted, key=lambda name: self.predicted[name])

    @property
    def choice_over_best(self) -> float:
        """What was measured of the choice, over the best that was measured."""
        return self.measured[self.choice] / max(self.measured.values())

    def stacked_over_single(self, speedups: dict[str, float]) -> float:
        """Return the best stack's speed-up over the best single draft's."""
        stacked, single = (
            max(value for name, value in speedups.items() if name.startswith(kind))
            for kind in (STACKED, SINGLE)
        )
        return stacked / single


def read_formula(file: ExperimentFile) -> FormulaReading:
    """Price an experiment's vertical cascades by P1's formula at the acceptances it measured."""
    levels = {name: content["levels"] for name, content in file.methods.items()}
    names = {  # of each cascade's levels, the target's last
        method: tuple(file.prices[method] or ())
        for method, below in levels.items()
        if below and all("num_speculative_tokens" in level for level in below)
    }
    prices = {
        name: price for method in names for name, price in (file.prices[method] or {}).items()
    }
    models = sorted(prices, key=lambda name: prices[name])
    chains = {
        method: Chain(
            tuple(map(models.index, names[method])),
            tuple(level["num_speculative_tokens"] for level in levels[method]),
        )
        for method in names
    }
    rates = {}
    for pair in dict.fromkeys(pair[:2] for pair in names.values()):
        methods = [method for method in names if names[method][:2] == pair]
        at_target = rate(file, methods) if pair[1] == models[-1] else None
        rates[pair] = rate_of_shares(file, methods) if at_target is None else at_target
    estimates = ideal(
        [prices[name] for name in models],
        [[rates.get((lower, upper)) for upper in models] for lower in models],
        max_budget=max(budget for chain in chains.values() for budget in chain.budgets),
    )
    return FormulaReading(
        rates,
        {name: 1 / corollary(estimates, chain).ms_per_token for name, chain in chains.items()},
        {
            name: fmean(effects.values_by_prompt(file, name, effects.tokens_per_cost).values())
            for name in chains
        },
    )


def choose_with_tail(file: ExperimentFile) -> str:
    """Return the formula's choice of a sweep, with P1's ten tokens after every level."""
    choice = read_formula(file).choice
    return next(name for name in (f"{choice} + {TAIL}", choice) if name in file.methods)


def choose_tail(file: ExperimentFile) -> str:
    """Return the formula's choice of a sweep with the number of tokens that is fastest there."""
    choice = read_formula(file).choice
    names = [choice, *(f"{choice} + {h}" for h in (SHORT_TAIL, TAIL))]
    values = {
        name: effects.values_by_prompt(file, name, effects.tokens_per_cost).values()
        for name in names
        if name in file.methods
    }
    return max(values, key=lambda name: effects.mean_logarithm(values[name]))


def rate(file: ExperimentFile, methods: Sequence[str]) -> float | None:
    """Return kept over judged tokens of the target's rounds; what follows a rejection is not."""
    rounds = [counts for name in methods for run in file.runs_of(name) for counts in run.rounds]
    if not rounds:
        return None
    kept = sum(counts.kept for counts in rounds)
    return kept / (kept + sum(counts.kept < counts.offered for counts in rounds))


def rate_of_shares(file: ExperimentFile, methods: Sequence[str]) -> float:
    """Return the rate of the smallest level where rounds are not recorded: of n tokens a share
    (α + … + αⁿ) / n is kept."""
    rates, weights = [], []
    for name in methods:
        n = file.methods[name]["levels"][0]["num_speculative_tokens"]
        levels = [run.levels[0] for run in file.runs_of(name)]
        drafted = sum(level.drafted for level in levels)
        share = sum(level.accepted for level in levels) / drafted
        low, high = 0.0, 1.0
        while high - low > 1e-12:
            middle = (low + high) / 2
            too_low = sum(middle**m for m in range(1, n + 1)) / n < share
            low, high = (middle, high) if too_low else (low, middle)
        rates.append(low)
        weights.append(drafted)
    return sum(r * w for r, w in zip(rates, weights, strict=True)) / sum(weights)
