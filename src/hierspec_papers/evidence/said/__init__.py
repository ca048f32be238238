"""What the papers claim, as data: which methods, which metric, which difference matters.

Ratios are of speed, tokens or cost. The smallest differences that matter: 3 % for a system against
another, 1 to 2 % for a verification rule (the papers' own margins are 1 to 5 %), .03 of an
acceptance, .05 of an AUC.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hierspec_papers.evidence.claims import Claim, finding
from hierspec_papers.evidence.experiments import EXPERIMENTS

from . import p1, p2, p3, p4, p5

CLAIMS = tuple(claim for paper in (p1, p2, p3, p4, p5) for claim in paper.claims())


def about(experiment: str) -> list[Claim]:
    """Return the claims that an experiment measures."""
    return [claim for claim in CLAIMS if experiment in claim.experiments]


def decided(data: Mapping[str, Any]) -> bool:
    """Return whether every claim about this file's experiment is decided by it."""
    name = data["experiment"]
    every: Sequence[Claim] = about(name)
    return all(finding(c, EXPERIMENTS[name], data).verdict != "undecided" for c in every)
