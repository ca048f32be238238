"""Claims of the papers as effects of experiments, and the verdicts on them.

Ratios are compared on a logarithmic scale and reported as ratios, shares as differences. ``least``
is the smallest difference that matters: 3 % of speed or of tokens for a system against another, 1 %
for a verification rule (the papers' own margins are 1 to 5 %), .03 of an acceptance, .05 of an AUC,
a tenth of a token kept.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from hierspec_papers.prompts import MATHEMATICS

from . import effects
from .experiments import Experiment
from .sequential import Estimate, Kind, Verdict, estimate, prompts_needed, verdict

Scale = Literal["ratio", "difference"]
SYSTEM, SMALL, RULE = math.log(1.03), math.log(1.02), math.log(1.01)  # ratios
SHARE, AREA = 0.03, 0.05  # an acceptance, an AUC
TOKEN = 0.1  # tokens kept of a draft


@dataclass(frozen=True, slots=True)
class Claim:
    """A statement of a paper that an experiment can decide.

    Attributes:
        item: the table or figure it belongs to, named as in :mod:`.items`: ``P3 Table 1``.
        experiments: names of those that measure it, the real model's first.
        text: what is compared, for the page.
        ours, theirs: names of the methods compared; of several the best one (cross-fitted).
        metric: number of a run that is compared; of ``theirs``, ``other`` if given.
        against: a fixed number to compare with, where there is no ``theirs``.
        scale: how the numbers of a prompt are compared.
        least: the smallest effect that matters, on the claim's scale, above 0.
        kind: whether the claim is an effect above 0 or none that matters.
        apart: compare the effect on prompts that are not mathematics to that on those that are.
        steady: compare how much the metric varies over ``ours`` and over ``theirs``.
        decides: whether it decides its item; a claim whose costs cannot be compared does not.
    """

    item: str
    experiments: tuple[str, ...]
    text: str
    ours: tuple[str, ...]
    theirs: tuple[str, ...] = ()
    metric: effects.Metric = effects.tokens_per_call
    other: effects.Metric | None = None
    against: float | None = None
    scale: Scale = "ratio"
    least: float = SYSTEM
    kind: Kind = "more"
    steady: bool = False
    apart: bool = False
    decides: bool = True

    @property
    def methods(self) -> tuple[str, ...]:
        """Names of all methods it compares."""
        return (*self.ours, *self.theirs)


@dataclass(frozen=True, slots=True)
class Finding:
    """A claim's effect and verdict by one experiment's file.

    Attributes:
        estimate: the effect on the claim's own scale (logarithms for ratios); ``None``: nothing
            measured yet.
        needed: prompts that show the smallest difference that matters, given the spread.
    """

    claim: Claim
    experiment: Experiment
    estimate: Estimate | None
    verdict: Verdict
    needed: int | None

    @property
    def shown(self) -> str:
        """The effect with its interval as text, ratios as ratios."""
        if self.estimate is None:
            return "not measured yet"
        parts = (self.estimate.value, self.estimate.low, self.estimate.high)
        if self.claim.scale == "ratio":
            value, low, high = map(math.exp, parts)
            return f"{value:.3f}× [{low:.3f}, {high:.3f}]"
        value, low, high = parts
        return f"{value:+.3f} [{low:+.3f}, {high:+.3f}]"


def combined(group: Sequence[Finding]) -> Verdict:
    """Combine a claim's findings: it holds if one says so and none says that it does not."""
    verdicts = {finding.verdict for finding in group}
    if "does not hold" in verdicts:
        return "does not hold"
    return "holds" if "holds" in verdicts else "undecided"


def effect_by_prompt(claim: Claim, data: Mapping[str, Any]) -> list[float]:
    """Compare the claim's methods and return the effect by prompt, on the claim's scale."""
    metric = claim.metric
    if claim.steady:
        return list(effects.steadier(data, claim.ours, claim.theirs, metric).values())
    ours = effects.best(data, claim.ours, metric)
    if claim.against is not None:
        theirs = dict.fromkeys(ours, claim.against)
    else:
        theirs = effects.best(data, claim.theirs, claim.other or metric)
    compare = effects.log_ratio if claim.scale == "ratio" else effects.difference
    by_prompt = compare(ours, theirs)
    if claim.apart:
        maths = {n for n, prompt in enumerate(data["prompts"]) if prompt["domain"] in MATHEMATICS}
        return list(effects.contrast(by_prompt, maths).values())
    return list(by_prompt.values())


def decide(claim: Claim, experiment: Experiment, data: Mapping[str, Any] | None) -> Finding:
    """Decide a claim by an experiment's file; without enough data it is undecided."""
    by_prompt = effect_by_prompt(claim, data) if data else []
    if len(by_prompt) < 2 or not data:
        return Finding(claim, experiment, None, "undecided", None)
    looks = len(data["settings"]["looks"])
    effect = estimate(by_prompt, looks)
    needed = prompts_needed(effect.deviation, claim.least, looks)
    decision = verdict(effect, claim.least, claim.kind)
    return Finding(claim, experiment, effect, decision, needed)
