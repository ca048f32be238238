"""Greedy decoding: the verifier's distributions are one-hot, so integers are compared."""

from __future__ import annotations

from hierspec.core.distributions import OneHotDistributions
from hierspec.core.proposals import Verdict

from .case import DraftCase


def applies(case: DraftCase) -> bool:
    """Return whether integers decide: p is one-hot, and so is q if the rule reports a mixture."""
    return isinstance(case.p, OneHotDistributions) and (
        not case.rule.reads_scores or isinstance(case.draft.distributions, OneHotDistributions)
    )


def verdict(case: DraftCase) -> Verdict:
    """Keep the drafted tokens that the verifier would choose itself, then add its next choice."""
    assert isinstance(case.p, OneHotDistributions)
    choices = case.p.ids
    tau = case.rule.greedy(case.draft.tokens, choices, case.scores)
    token = None if case.drops_bonus(tau) else choices[tau]
    emitted = case.draft.tokens[:tau] + (() if token is None else (token,))
    return case.verdict(tau, token, OneHotDistributions(emitted))
