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
SINGLE, STACKED = "single ", "three "
_CHAINS = {"single small": (0, 2), "single large": (1, 2), "three": (0, 1, 2)}  # in their names


@dataclass(frozen=True, slots=True)
class FormulaReading:
    """Speed-ups over plain decoding by weights, predicted and measured.

    Attributes:
        rates: acceptance of the small drafter's tokens by the large and by the target, and of the
            large drafter's by the target; ``None`` where no method drafts with it for the target.
        predicted, measured: by method.
    """

    rates: tuple[float, float | None, float]
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
    """Price an experiment's methods by P1's formula at the acceptances that it measured."""
    chains = {
        name: Chain(models, tuple(level["num_speculative_tokens"] for level in content["levels"]))
        for name, content in file.methods.items()
        for kind, models in _CHAINS.items()
        if name.startswith(kind)
    }
    small_by_large = rate_of_shares(file, [name for name in chains if name.startswith(STACKED)])
    small, large = (
        rate(file, [name for name, chain in chains.items() if chain.models == models])
        for models in ((0, 2), (1, 2))
    )
    assert large is not None, "every experiment has single drafts of the large drafter"
    prices = file.prices[next(name for name in chains if name.startswith(STACKED))]
    assert prices is not None
    estimates = ideal(
        list(prices.values()),
        [[None, small_by_large, small], [None, None, large], [None] * 3],
        max_budget=max(budget for chain in chains.values() for budget in chain.budgets),
    )
    return FormulaReading(
        (small_by_large, small, large),
        {name: 1 / corollary(estimates, chain).ms_per_token for name, chain in chains.items()},
        {
            name: fmean(effects.values_by_prompt(file, name, effects.tokens_per_cost).values())
            for name in chains
        },
    )


def rate(file: ExperimentFile, methods: Sequence[str]) -> float | None:
    """Return kept over judged tokens of the target's rounds; what follows a rejection is not."""
    rounds = [counts for name in methods for run in file.runs_of(name) for counts in run.rounds]
    if not rounds:
        return None
    kept = sum(counts.kept for counts in rounds)
    return kept / (kept + sum(counts.kept < counts.offered for counts in rounds))


def rate_of_shares(file: ExperimentFile, methods: Sequence[str]) -> float:
    """Return the rate of the smallest level, whose rounds are not recorded: of n tokens a share
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
