"""Numbers that several rules share: the probabilities of the drafted tokens and their products.

Products of many ratios underflow, so they are carried as sums of logs in float64 [MATH §1].
"""

from __future__ import annotations

import torch

from hierspec.core.rules import Batch

# log-ratio of a token that its drafter calls impossible but the verifier does not. It cannot have
# been drawn, unless a law was rounded; finite, so that sums keep their digits.
_IMPOSSIBLE_DRAFT = 1e4


def chosen(batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """p_i(x_i) and q_i(x_i) of every drafted token, each [B, n] float64."""
    n = batch.tokens.shape[1]
    at = batch.tokens.unsqueeze(-1)
    p_x = batch.p[:, :n].gather(-1, at).squeeze(-1).double()
    q_x = batch.q.gather(-1, at).squeeze(-1).double()
    return p_x, q_x


def log_products(batch: Batch) -> torch.Tensor:
    """S_k = log(r_1 ⋯ r_k), k = 0..n → [B, n+1] float64; −inf from an impossible token on."""
    p_x, q_x = chosen(batch)
    log_r = p_x.log() - q_x.log()
    log_r = torch.where(q_x > 0, log_r, _IMPOSSIBLE_DRAFT)
    log_r = torch.where(p_x > 0, log_r, -torch.inf)
    return torch.nn.functional.pad(log_r.cumsum(-1), (1, 0))


def capped(log_products: torch.Tensor) -> torch.Tensor:
    """w_0 = 1, w_k = min(1, w_{k−1} r_k) from S [B, n+1], without forming a product."""
    highest = log_products.cummax(-1).values  # S_0 = 0, so never below 0
    return (log_products - highest).exp()


def excess(p: torch.Tensor, q: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """D(w·p, q) = Σ_x max(w·p(x) − q(x), 0) over the last axis, summed in float64."""
    return (w.unsqueeze(-1).to(p.dtype) * p - q).clamp_(min=0.0).sum(-1, dtype=torch.float64)


def at_ends(h: torch.Tensor, ends: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """``h`` [B, n] with the column of each draft's real end taken from ``ends``, 0 in padding."""
    k = torch.arange(1, h.shape[1] + 1, device=h.device)
    n = lengths.unsqueeze(-1)
    return torch.where(k < n, h, torch.where(k == n, ends, 0.0))
