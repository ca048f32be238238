"""Distances between a student's next-token distributions and its teacher's, from scores [N, V]."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from hierspec.verifiers.formulas import total_variation

TV_FROM, TV_FULL = 0.5, 0.7  # shares of the steps between which TV replaces KL
TV_WEIGHT = 4.0  # gradients of TV are smaller than those of KL


def distances(
    teacher: Tensor, student: Tensor, weights: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return KL(teacher ‖ student) in nats and TV(teacher, student), means over the rows.

    Args:
        weights: [N], of the rows; ``None``: equal weights.
    """
    log_p = teacher.float().log_softmax(-1)
    log_q = student.float().log_softmax(-1)
    p = log_p.exp()
    kl = (p * (log_p - log_q)).sum(-1)
    tv = total_variation(p, log_q.exp())
    if weights is None:
        return kl.mean(), tv.mean()
    return (kl @ weights) / weights.sum(), (tv @ weights) / weights.sum()


class Likeliest(NamedTuple):
    """The likeliest tokens of N distributions over D tokens.

    Attributes:
        columns: their numbers, int64 [N, K].
        probs: bfloat16 or float32 [N, K].
    """

    columns: Tensor
    probs: Tensor


def head_distances(
    state: Tensor, head: Tensor, teacher: Likeliest, weights: Tensor
) -> tuple[Tensor, Tensor]:
    """Return KL and TV of a student's scores, ``state`` [N, d] times ``head`` [D, d]ᵀ.

    As :func:`distances` with the teacher's other probabilities taken for 0. Only the product is as
    wide as the vocabulary, and its softmax: several times as fast.
    """
    kl, tv = _HeadDistances.apply(state, head, *teacher, weights / weights.sum())
    return kl, tv


class _HeadDistances(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, state: Tensor, head: Tensor, columns: Tensor, probs: Tensor, weights: Tensor
    ) -> tuple[Tensor, Tensor]:
        student = F.linear(state, head).softmax(-1)
        p, q = probs.float(), student.gather(1, columns).float()
        ctx.save_for_backward(state, head, columns, p, weights, student, q)
        kl = torch.special.xlogy(p, p / q.clamp(min=torch.finfo(q.dtype).tiny)).sum(-1)
        tv = 1 - torch.minimum(p, q).sum(-1)
        return kl @ weights, tv @ weights

    @staticmethod
    def backward(ctx: Any, by_kl: Tensor, by_tv: Tensor) -> tuple[Tensor | None, ...]:
        state, head, columns, p, weights, student, q = ctx.saved_tensors
        # Both gradients by the scores are a multiple of the student's distribution, less something
        # at the teacher's tokens: of KL Σp · q − p, of TV the same with q for p where q < p.
        less = weights[:, None] * (by_kl * p + by_tv * q * (q < p))
        total = less.sum(-1, keepdim=True)
        by_scores = student * total.to(student.dtype)
        by_scores.scatter_(1, columns, (total * q - less).to(student.dtype))
        return by_scores @ head, by_scores.T @ state, None, None, None


def kl_then_tv(kl: Tensor, tv: Tensor, progress: float) -> Tensor:
    """Mix a loss that starts as KL, which is easier to optimise, and ends as TV.

    The acceptance of a draft is 1 − TV.

    Args:
        progress: share of the training, 0 to 1.
    """
    share = min(1.0, max(0.0, (progress - TV_FROM) / (TV_FULL - TV_FROM)))
    return (1 - share) * kl + share * TV_WEIGHT * tv


def soft_cross_entropy(teacher: Tensor, student: Tensor) -> Tensor:
    """Return the cross entropy of a student with its teacher's distribution, a mean of rows."""
    return -(teacher.float().softmax(-1) * student.float().log_softmax(-1)).sum(-1).mean()
