"""Drafts of one rule side by side, padded to one shape. No padding reaches a result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch

from hierspec.core.distributions import (
    DenseDistributions,
    Distributions,
    MixedDistributions,
    OneHotDistributions,
)
from hierspec.core.proposals import Proposal
from hierspec.core.rng import Rng
from hierspec.core.rules import Batch
from hierspec.utils.graphs import upload

if TYPE_CHECKING:
    from hierspec.core.nodes import Verify

_LARGEST = 1 << 27  # bytes of a shape's tensors; larger ones are not kept from call to call


class Case(NamedTuple):
    """One draft to verify: n tokens, n + 1 laws of the verifier, and the dice of its sequence."""

    node: Verify
    draft: Proposal
    p: Distributions
    rng: Rng
    scores: torch.Tensor | None


class Form(NamedTuple):
    """The shape of a batch: B rows of n tokens over V ids; hashable."""

    rows: int
    tokens: int
    width: int
    scores: bool
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, cases: Sequence[Case]) -> Form:
        width = max(max(case.p.width, case.draft.distributions.width) for case in cases)
        scores = cases[0].node.rule.reads_scores and cases[0].scores is not None
        if scores:  # one-hot laws are as wide as their ids, which the draft's tokens may decide
            width = max(
                width, *(case.scores.shape[-1] for case in cases if case.scores is not None)
            )
        tokens = max(len(case.draft) for case in cases)
        return cls(len(cases), tokens, width, scores, *_kept_as(cases[0].p))

    def bucket(self) -> Form:
        """The shape of static tensors that hold this one: counts rounded up to powers of two."""
        rows, tokens = (1 << (n - 1).bit_length() for n in (self.rows, max(1, self.tokens)))
        return self._replace(rows=rows, tokens=tokens)

    @property
    def small(self) -> bool:
        """Whether tensors of this shape may be kept."""
        rows = self.rows * ((3 if self.scores else 2) * self.tokens + 2)
        return rows * self.width * self.dtype.itemsize <= _LARGEST

    def empty(self) -> Batch:
        """Laws that say token 0; every row is a draft of no tokens."""
        rows, n, width, scores, dtype, device = self
        p = torch.zeros(rows, n + 1, width, dtype=dtype, device=device)
        p[..., 0] = 1.0
        tokens = torch.zeros(rows, n, dtype=torch.long, device=device)
        lengths = torch.zeros(rows, dtype=torch.long, device=device)
        return Batch(p, p[:, :n].clone(), tokens, lengths, p.clone() if scores else None)


def side_by_side(cases: Sequence[Case], form: Form) -> Batch:
    """The cases as one batch."""
    if len(cases) > 1:
        batch = form.empty()
        fill(batch, cases)
        return batch
    (case,) = cases  # nothing to pad, so nothing to copy
    p = case.p.dense(form.width)
    return Batch(
        p.unsqueeze(0),
        case.draft.distributions.dense(form.width).to(p).unsqueeze(0),
        torch.tensor([case.draft.tokens], dtype=torch.long, device=form.device),
        torch.tensor([form.tokens], device=form.device),
        # One-hot laws are written out on the CPU, wherever their scores are.
        widened(case.scores, form.width).to(p.device).unsqueeze(0)
        if form.scores and case.scores is not None
        else None,
    )


def fill(batch: Batch, cases: Sequence[Case]) -> None:
    """Write the cases into the first rows of a batch that is large enough."""
    (rows, n), width = batch.tokens.shape, batch.p.shape[-1]
    drafts = [case.draft for case in cases]
    spare = rows - len(cases)
    upload(batch.lengths, [len(draft) for draft in drafts] + [0] * spare)
    upload(batch.tokens, [[*d.tokens] + [0] * (n - len(d)) for d in drafts] + [[0] * n] * spare)
    for b, (case, draft) in enumerate(zip(cases, drafts, strict=True)):
        _write(batch.p[b, : len(draft) + 1], case.p)
        _write(batch.q[b, : len(draft)], draft.distributions)
        if batch.scores is not None:
            assert case.scores is not None, "scores for all drafts of a batch, or for none"
            batch.scores[b, : len(draft) + 1] = widened(case.scores, width)


def _write(out: torch.Tensor, distributions: Distributions) -> None:
    """Laws into as many rows ``out`` [n, V], without waiting for the device they are on."""
    row = 0
    for part in (
        distributions.parts if isinstance(distributions, MixedDistributions) else (distributions,)
    ):
        rows = out[row : row + len(part)]
        row += len(part)
        if not len(part):
            continue
        if isinstance(part, OneHotDistributions):  # as dense rows they would be made on the CPU
            ids = torch.empty(len(part), 1, dtype=torch.long, device=out.device)
            upload(ids, [[i] for i in part.ids])
            rows.zero_().scatter_(1, ids, 1.0)
        else:
            rows.copy_(part.dense(out.shape[1]), non_blocking=True)


def widened(scores: torch.Tensor, width: int) -> torch.Tensor:
    """Scores of a wider vocabulary: what the model cannot say scores −inf."""
    missing = width - scores.shape[-1]
    return torch.nn.functional.pad(scores, (0, missing), value=-torch.inf) if missing else scores


def _kept_as(distributions: Distributions) -> tuple[torch.dtype, torch.device]:
    """What rows written out will be."""
    parts = (
        distributions.parts if isinstance(distributions, MixedDistributions) else (distributions,)
    )
    for part in parts:
        if isinstance(part, DenseDistributions):
            return part.probs.dtype, part.probs.device
    return torch.float64, torch.device("cpu")
