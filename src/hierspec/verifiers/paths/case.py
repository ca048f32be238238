"""A draft to verify, and how its verdict is put together."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from hierspec.core.distributions import Distributions
from hierspec.core.proposals import Proposal, Verdict
from hierspec.core.rng import Rng
from hierspec.core.rules import Verifier


class DraftCase(NamedTuple):
    """One draft at a node.

    Attributes:
        draft: n tokens and the distributions they were drawn from.
        p: n + 1 rows of the verifier.
        rng: of the draft's sequence.
        scores: [n+1, V] untempered, for rules that read them.
        bonus: whether one more token follows a draft (n ≥ 1) that was accepted whole.
        owner: index of the node, recorded as owner of what is emitted.
    """

    rule: Verifier
    draft: Proposal
    p: Distributions
    rng: Rng
    scores: torch.Tensor | None
    bonus: bool
    owner: int

    def drops_bonus(self, tau: int) -> bool:
        """Return whether no token follows because the whole, non-empty draft was accepted.

        That is decided by count, never by a token's value.
        """
        return not self.bonus and tau == len(self.draft) > 0

    def verdict(self, tau: int, token: int | None, distributions: Distributions) -> Verdict:
        """Build the verdict of τ accepted tokens, then ``token``; of enough ``distributions``."""
        tokens, origins = self.draft.tokens[:tau], self.draft.origins[:tau]
        if token is not None:
            tokens, origins = (*tokens, token), (*origins, self.owner)
        n = len(tokens)
        rows = distributions if n == len(distributions) else distributions.rows(0, n)
        return Verdict(tau, Proposal(tokens, rows, (self.owner,) * n, origins, (math.nan,) * n))
