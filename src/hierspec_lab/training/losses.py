"""Distances between a student's next-token distributions and its teacher's, from scores [N, V]."""

from __future__ import annotations

import torch

from hierspec.verifiers.formulas import total_variation

TV_FROM, TV_FULL = 0.5, 0.7  # shares of the steps between which TV replaces KL
TV_WEIGHT = 4.0  # gradients of TV are smaller than those of KL


def distances(
    teacher: torch.Tensor, student: torch.Tensor, weights: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
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


def kl_then_tv(kl: torch.Tensor, tv: torch.Tensor, progress: float) -> torch.Tensor:
    """Mix a loss that starts as KL, which is easier to optimise, and ends as TV.

    The acceptance of a draft is 1 − TV.

    Args:
        progress: share of the training, 0 to 1.
    """
    share = min(1.0, max(0.0, (progress - TV_FROM) / (TV_FULL - TV_FROM)))
    return (1 - share) * kl + share * TV_WEIGHT * tv


def soft_cross_entropy(teacher: torch.Tensor, student: torch.Tensor) -> torch.Tensor:
    """Return the cross entropy of a student with its teacher's distribution, a mean of rows."""
    return -(teacher.float().softmax(-1) * student.float().log_softmax(-1)).sum(-1).mean()
