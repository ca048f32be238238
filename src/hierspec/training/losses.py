"""Distances between a student's next-token distributions and its teacher's, from scores [N, V]."""

from __future__ import annotations

import torch


def distances(teacher: torch.Tensor, student: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """KL(teacher ‖ student) in nats and TV(teacher, student), means over the rows."""
    log_p = teacher.float().log_softmax(-1)
    log_q = student.float().log_softmax(-1)
    p = log_p.exp()
    kl = (p * (log_p - log_q)).sum(-1).mean()
    tv = 0.5 * (p - log_q.exp()).abs().sum(-1).mean()
    return kl, tv


def soft_cross_entropy(teacher: torch.Tensor, student: torch.Tensor) -> torch.Tensor:
    """Cross entropy of a student with its teacher's distribution, mean over the rows."""
    return -(teacher.float().softmax(-1) * student.float().log_softmax(-1)).sum(-1).mean()
