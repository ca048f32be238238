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
TOKEN = 0.1  # kept of a draft


@dataclass(frozen=True, slots=True)
class Claim:
    """Something a paper says that an experiment can decide.

    Attributes:
        item: table or figure, by :mod:`.items`' name: ``P3 Table 1``.
        experiments: names of those that measure it, the real model's first.
        text: ours against theirs, as the page says it.
        ours, theirs: methods; of several the best (cross-fitted). No ``theirs``: ``against``.
        metric: of a run; ``other``: theirs, if another.
        against: a fixed number.
        apart: the effect on prompts that are not mathematics, over that on those that are.
        steady: the metric's variation over ``ours`` against that over ``theirs``.
        decides: its item; a claim whose costs cannot be compared stands beside the others only.
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
        """Return all methods it compares."""
        return (*self.ours, *self.theirs)


@dataclass(frozen=True, slots=True)
class Finding:
    """A claim on an experiment's file.

    Attributes:
        found: on the claim's own scale (logarithms for ratios); ``None``: nothing measured yet.
        needed: prompts for the smallest difference that matters, given the spread.
    """

    claim: Claim
    experiment: Experiment
    found: Estimate | None
    verdict: Verdict
    needed: int | None

    @property
    def shown(self) -> str:
        """The effect with its interval, ratios as ratios."""
        if self.found is None:
            return "not measured yet"
        parts = (self.found.value, self.found.low, self.found.high)
        if self.claim.scale == "ratio":
            value, low, high = map(math.exp, parts)
            return f"{value:.3f}× [{low:.3f}, {high:.3f}]"
        value, low, high = parts
        return f"{value:+.3f} [{low:+.3f}, {high:+.3f}]"


def together(group: Sequence[Finding]) -> Verdict:
    """Return a claim's verdict from all that measured it.

    It holds where it holds in one of them and does not fail in another.
    """
    said = {one.verdict for one in group}
    if "does not hold" in said:
        return "does not hold"
    return "holds" if "holds" in said else "undecided"


def effect(claim: Claim, data: Mapping[str, Any]) -> list[float]:
    """Return the claim's effect by prompt, on its own scale."""
    metric = claim.metric
    if claim.steady:
        return list(effects.steadier(data, claim.ours, claim.theirs, metric).values())
    ours = effects.best(data, claim.ours, metric)
    if claim.against is not None:
        theirs = dict.fromkeys(ours, claim.against)
    else:
        theirs = effects.best(data, claim.theirs, claim.other or metric)
    compare = effects.log_ratio if claim.scale == "ratio" else effects.difference
    found = compare(ours, theirs)
    if claim.apart:
        maths = {n for n, one in enumerate(data["prompts"]) if one["domain"] in MATHEMATICS}
        return list(effects.contrast(found, maths).values())
    return list(found.values())


def finding(claim: Claim, experiment: Experiment, data: Mapping[str, Any] | None) -> Finding:
    """Return the verdict on a claim by an experiment's file, or that there is none yet."""
    found = effect(claim, data) if data else []
    if len(found) < 2 or not data:
        return Finding(claim, experiment, None, "undecided", None)
    looks = len(data["settings"]["looks"])
    one = estimate(found, looks)
    said = verdict(one, claim.least, claim.kind)
    return Finding(claim, experiment, one, said, prompts_needed(one.deviation, claim.least, looks))
