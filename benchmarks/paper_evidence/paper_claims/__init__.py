"""The papers' claims as data: the methods, the metric, and the smallest difference that matters.

Ratios are of speed, tokens or cost. The smallest differences that matter are listed in
:mod:`paper_evidence.claims`; some claims have one of their own.
"""

from __future__ import annotations

from paper_evidence.claims import decide
from paper_evidence.experiments import EXPERIMENTS
from paper_evidence.files import ExperimentFile

from . import p1, p2, p3, p4, p5

CLAIMS = tuple(claim for paper in (p1, p2, p3, p4, p5) for claim in paper.claims())


def all_decided(file: ExperimentFile) -> bool:
    """Return whether an experiment's file decides every claim that the experiment measures."""
    claims = [claim for claim in CLAIMS if file.experiment in claim.experiments]
    return all(
        decide(claim, EXPERIMENTS[file.experiment], file).verdict != "undecided" for claim in claims
    )
