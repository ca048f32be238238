"""Greedy decoding: the verifier's distributions are one-hot, so integers are compared."""

from __future__ import annotations

from collections.abc import Callable

import torch

from hierspec.core.distributions import OneHotDistributions, UnreadOneHot
from hierspec.core.proposals import Verdict
from hierspec.core.rules import count_accepted
from hierspec.utils.reads import Read, Reads, sent

from .case import DraftCase


def applies(case: DraftCase) -> bool:
    """Return whether integers decide: p is one-hot, and so is q if the rule reports a mixture."""
    return isinstance(case.p, OneHotDistributions) and (
        not case.rule.reads_scores or isinstance(case.draft.distributions, OneHotDistributions)
    )


def start(case: DraftCase, reads: Reads) -> Callable[[], Verdict]:
    """Begin to decide a draft; what is returned waits, if need be, and gives the verdict.

    The drafted tokens are accepted that the verifier would choose itself, and its next choice is
    added.
    """
    p, draft, scores = case.p, case.draft.tokens, case.scores
    assert isinstance(p, OneHotDistributions)
    accepted: Read | None = None
    if draft and isinstance(p, UnreadOneHot) and case.rule.scores_decide:
        assert scores is not None, "the rule compares a token's score with the best"
        tokens, n = sent(draft, torch.long, scores.device), len(draft)
        accepted = reads.add(case.rule.accepted_by_scores(tokens, p.tokens[:n], scores[:n]))

    def verdict() -> Verdict:
        choices = p.ids
        if accepted is None:
            tau = case.rule.greedy(draft, choices, scores)
        else:
            tau = count_accepted(accepted.look())
        token = None if case.drops_bonus(tau) else choices[tau]
        emitted = draft[:tau] + (() if token is None else (token,))
        return case.verdict(tau, token, OneHotDistributions(emitted))

    return verdict
