"""Lenient acceptance: a drafted token is accepted with ``lenience`` times the usual probability.

Leviathan et al. (2023, Appendix A.5); CS-Drafting (Chen et al. 2023) verifies so between its draft
models. As a final rule it is lossy. As an intermediate rule it is sound, because the distribution
of what it hands up is known: with ℓ the lenience, a position drafted from q and verified with p
holds token x with probability min(q(x), ℓ p(x)) + (1 − Σ_y min(q(y), ℓ p(y)))·e(x), where e is the
distribution norm(max(ℓ p − q, 0)) of the replacement. :meth:`Lenient.reported` returns that
mixture.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch

from hierspec.core.distributions import row_sums
from hierspec.core.rules import Acceptance, Batch, Verifier, residual
from hierspec.errors import HierspecError
from hierspec.verifiers.formulas import at_drafted, capped_ratios, draft_token_probs, set_ends


@dataclass(frozen=True)
class Lenient(Verifier):
    """h_i = min(1, ℓ p_i(x_i)/q_i(x_i)), tested token by token; with ℓ = 1 it is ``tokenwise``.

    Greedy: a token is accepted whose untempered probability is at least 1/ℓ of the largest.

    Attributes:
        lenience: ℓ, at least 1.
    """

    lenience: float = 1.0
    name: ClassVar[str] = "lenient"
    exact: ClassVar[bool] = False
    exact_when: ClassVar[str] = "below a level whose rule is exact, or lenience = 1"
    options: ClassVar[tuple[str, ...]] = ("lenience",)
    reads_scores: ClassVar[bool] = True
    reports_model_distributions: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not 1.0 <= self.lenience < math.inf:
            raise HierspecError(f"lenient: lenience must be at least 1, not {self.lenience}")

    def exact_for(self, greedy: bool) -> bool:
        return self.lenience == 1.0

    def acceptance(self, batch: Batch) -> Acceptance:
        p_x, q_x = draft_token_probs(batch)
        h = capped_ratios(self.lenience * p_x, q_x)
        w = h.new_full((h.shape[0], h.shape[1] + 1), self.lenience)
        return Acceptance(set_ends(h, h, batch.lengths), w)

    def reported(self, batch: Batch) -> torch.Tensor:
        p = batch.p[:, : batch.tokens.shape[1]]
        q = batch.q.to(p.dtype)
        kept = torch.minimum(q, p * self.lenience)
        rest = residual(p, q, self.lenience)
        total = row_sums(rest).unsqueeze(-1)
        # Nothing is left where ℓ p lies below q everywhere, so ℓ = 1 and p = q: all is accepted.
        rest = torch.where(total > 0, rest / total, p)
        mixture = kept + (1.0 - row_sums(kept).unsqueeze(-1)).clamp(min=0.0) * rest
        return at_drafted(mixture, batch)

    @property
    def scores_decide(self) -> bool:
        return self.lenience > 1.0

    def accepted_by_scores(
        self, tokens: torch.Tensor, choices: torch.Tensor, scores: torch.Tensor
    ) -> torch.Tensor:
        width = scores.shape[1]
        own = scores.gather(1, tokens.clamp(max=width - 1).unsqueeze(1)).squeeze(1)
        near = (tokens < width) & (own >= scores.amax(-1) - math.log(self.lenience))
        return (tokens == choices) | near
