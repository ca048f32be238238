"""Leading tokens: keep a drafted token while it is among the verifier's m best.

P3 §3.2 (HiSpec's intermediate verifier); MATH §1. As a final rule under sampling it is lossy. As
an intermediate rule it is sound, because the distribution of what it hands up is known: a position
drafted from q holds x with probability q(x)·1[x ∈ A] + (1 − q(A))·e(x), A the leading tokens and e
the distribution of the replacement. That mixture is what :meth:`Leading.reported` returns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from hierspec.core.rules import Acceptance, Batch, Verifier
from hierspec.errors import HierspecError
from hierspec.verifiers.formulas import at_drafted, draft_mask


@dataclass(frozen=True)
class Leading(Verifier):
    """Keep while among the verifier's leading tokens; at the first miss draw a token of its own.

    Attributes:
        top_m: how many leading tokens count, at least 1. Ties go to the lower id; a token that the
            verifier cannot emit (score −inf, or an id past its vocabulary) is never among them.
    """

    top_m: int = 1
    name: ClassVar[str] = "leading"
    exact: ClassVar[bool] = False
    exact_when: ClassVar[str] = "greedy decoding with top_m = 1, or below a level that is exact"
    options: ClassVar[tuple[str, ...]] = ("top_m",)
    reads_scores: ClassVar[bool] = True
    reports_model_distributions: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.top_m < 1:
            raise HierspecError(f"leading: top_m must be at least 1, not {self.top_m}")

    def exact_for(self, greedy: bool) -> bool:
        return greedy and self.top_m == 1

    def acceptance(self, batch: Batch) -> Acceptance:
        ids, possible = self._leading(batch)
        kept = ((ids == batch.tokens.unsqueeze(-1)) & possible).any(-1)
        h = (kept & draft_mask(batch)).double()
        return Acceptance(h, h.new_ones(h.shape[0], h.shape[1] + 1))

    def correction(self, batch: Batch, accepted: Acceptance, tau: torch.Tensor) -> torch.Tensor:
        return batch.p[torch.arange(len(tau), device=batch.p.device), tau]

    def reported(self, batch: Batch) -> torch.Tensor:
        ids, possible = self._leading(batch)
        p = batch.p[:, : batch.tokens.shape[1]]
        kept = batch.q.gather(-1, ids).to(p.dtype) * possible
        mixture = p * (1.0 - kept.sum(-1, keepdim=True)).clamp(min=0.0)
        mixture.scatter_add_(-1, ids, kept)
        return at_drafted(mixture, batch)

    def _leading(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Return A of each position: ids [B, n, m], and which of them the verifier can emit."""
        n = batch.tokens.shape[1]
        scores, impossible = (batch.p, 0.0) if batch.scores is None else (batch.scores, -torch.inf)
        ids = leading_tokens(scores[:, :n], self.top_m)
        return ids, scores[:, :n].gather(-1, ids) > impossible

    @property
    def scores_decide(self) -> bool:
        return self.top_m > 1

    def accepted_by_scores(
        self, tokens: torch.Tensor, choices: torch.Tensor, scores: torch.Tensor
    ) -> torch.Tensor:
        ids = leading_tokens(scores, self.top_m)
        possible = scores.gather(-1, ids) > -torch.inf
        return ((ids == tokens.unsqueeze(-1)) & possible).any(-1)


def leading_tokens(scores: torch.Tensor, m: int) -> torch.Tensor:
    """Return the ``m`` best tokens of each row [..., V] → ids [..., min(m, V)].

    Of tied tokens the lower id comes first.
    """
    m = min(m, scores.shape[-1])
    if scores.device.type == "cpu":
        best = scores.topk(m, dim=-1)
        lowest = best.values[..., -1:]
        if bool(((scores >= lowest).sum(-1) == m).all()):
            return best.indices
    # `topk` breaks ties arbitrarily; a stable sort does not, and needs no host synchronisation.
    return scores.sort(dim=-1, descending=True, stable=True).indices[..., :m]
