"""Claims of the papers as effects of experiments, and the verdicts on them.

Ratios are compared on a logarithmic scale and reported as ratios, shares as differences. The
smallest effects that matter are 3 % of speed or of tokens between systems, 1 % for a verification
rule (the papers' own margins are 1 to 5 %), .03 of an acceptance, .05 of an AUC, a tenth of a token
kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from hierspec_lab.papers.prompts import MATHEMATICS

from . import effects
from .experiments import Experiment
from .files import ExperimentFile
from .sequential import ClaimVerdict, Estimate, Kind, estimate, judge_interval, prompts_needed

EffectScale = Literal["ratio", "difference"]
SYSTEM_LOG_RATIO = math.log(1.03)
SMALL_LOG_RATIO = math.log(1.02)
RULE_LOG_RATIO = math.log(1.01)
ACCEPTANCE_DIFFERENCE, AUC_DIFFERENCE, VARIATION_DIFFERENCE = 0.03, 0.05, 0.05
TOKEN_DIFFERENCE = 0.1  # tokens kept of a draft


@dataclass(frozen=True, slots=True)
class Claim:
    """A statement of a paper that an experiment can decide.

    Attributes:
        item: the table or figure it belongs to, named as in :mod:`.items`: ``P3 Table 1``.
        experiments: names of the experiments that measure it, the real model's first.
        text: what is compared, for the page.
        ours, theirs: names of the methods compared; of several the best one (cross-fitted).
        metric: the number of a run that is compared.
        their_metric: the metric of ``theirs``, if it is another one.
        reference: a fixed number to compare with, where there is no ``theirs``.
        scale: how the numbers of a prompt are compared.
        smallest_effect: the smallest effect that matters, on the claim's scale, above 0.
        kind: whether the claim is an effect above 0, that no effect matters, or no loss.
        compares_variation: compare how much the metric varies over ``ours`` and over ``theirs``.
        contrasts_domains: compare the effect on prompts of mathematics with that on all others.
        decides: whether its verdict counts for its item: not where the methods' costs cannot be
            compared, where they differ in more than the item says, as in their models, or where
            the family is outside the range of the paper's.
        choose: names the one of ``ours``, from the runs of other prompts, in place of the best.
    """

    item: str
    experiments: tuple[str, ...]
    text: str
    ours: tuple[str, ...]
    theirs: tuple[str, ...] = ()
    metric: effects.Metric = effects.tokens_per_call
    their_metric: effects.Metric | None = None
    reference: float | None = None
    scale: EffectScale = "ratio"
    smallest_effect: float = SYSTEM_LOG_RATIO
    kind: Kind = "more"
    compares_variation: bool = False
    contrasts_domains: bool = False
    decides: bool = True
    choose: Callable[[ExperimentFile], str] | None = None

    @property
    def methods(self) -> tuple[str, ...]:
        """Names of all methods it compares."""
        return (*self.ours, *self.theirs)


@dataclass(frozen=True, slots=True)
class Finding:
    """A claim's effect and verdict according to one experiment's file.

    Attributes:
        estimate: the effect on the claim's own scale (logarithms for ratios); ``None``: nothing
            measured yet.
        num_needed: how many prompts show the smallest effect that matters, given the spread.
    """

    claim: Claim
    experiment: Experiment
    estimate: Estimate | None
    verdict: ClaimVerdict
    num_needed: int | None

    @property
    def effect_text(self) -> str:
        """The effect with its interval as text, with logarithms turned into ratios."""
        if self.estimate is None:
            return "not measured yet"
        value, low, high = self.estimate.value, self.estimate.low, self.estimate.high
        if self.claim.scale == "ratio":
            return f"{math.exp(value):.3f}× [{math.exp(low):.3f}, {math.exp(high):.3f}]"
        return f"{value:+.3f} [{low:+.3f}, {high:+.3f}]"


def combined_verdict(findings: Sequence[Finding]) -> ClaimVerdict:
    """Return a claim's verdict: it holds if one finding says so and none says that it does not."""
    verdicts = {finding.verdict for finding in findings}
    if "does not hold" in verdicts:
        return "does not hold"
    return "holds" if "holds" in verdicts else "undecided"


def effect_by_prompt(claim: Claim, file: ExperimentFile) -> list[float]:
    """Compare the claim's methods and return the effect by prompt, on the claim's scale."""
    metric = claim.metric
    if claim.compares_variation:
        return list(effects.variation_reduction(file, claim.ours, claim.theirs, metric).values())
    is_ratio = claim.scale == "ratio"
    if claim.choose:
        ours = effects.chosen_by_prompt(file, claim.choose, metric)
    else:
        ours = effects.best_by_prompt(file, claim.ours, metric, by_logarithm=is_ratio)
    if claim.reference is not None:
        theirs = dict.fromkeys(ours, claim.reference)
    else:
        theirs = effects.best_by_prompt(
            file, claim.theirs, claim.their_metric or metric, by_logarithm=is_ratio
        )
    compare = effects.log_ratio if is_ratio else effects.difference
    by_prompt = compare(ours, theirs)
    if claim.contrasts_domains:
        mathematics = {n for n, domain in enumerate(file.domains) if domain in MATHEMATICS}
        return list(effects.contrast(by_prompt, mathematics).values())
    return list(by_prompt.values())


def decide(claim: Claim, experiment: Experiment, file: ExperimentFile | None) -> Finding:
    """Decide a claim by an experiment's file; without enough data it is undecided."""
    by_prompt = effect_by_prompt(claim, file) if file else []
    if len(by_prompt) < 2 or not file:
        return Finding(claim, experiment, None, "undecided", None)
    looks = len(file.settings.looks)
    effect = estimate(by_prompt, looks)
    verdict = judge_interval(effect, claim.smallest_effect, claim.kind)
    num_needed = prompts_needed(effect.std, claim.smallest_effect, looks)
    return Finding(claim, experiment, effect, verdict, num_needed)
