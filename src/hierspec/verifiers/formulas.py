"""Every formula that rules share, once: ratios, block's weights and test, excess, token counts.

Batches use tensors. A decision about a single draft on the host needs a few numbers, which plain
floats compute in a tenth of what a tensor operation costs to launch. The residual itself is
:func:`hierspec.core.rules.residual`. Products of many ratios underflow, so they are carried as sums
of logs in float64 [MATH §1].
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeVar

import torch

from hierspec.core.distributions import row_sums
from hierspec.core.rules import Batch, residual

Excess = Callable[[int, float], float]  # (k, w) → D(w·p_{k+1}, q_{k+1}) of one draft

# log-ratio of a token that its drafter calls impossible but the verifier does not. It cannot have
# been drawn, unless a distribution was rounded; finite, so that sums keep their digits.
_IMPOSSIBLE_DRAFT = 1e4

_Number = TypeVar("_Number", float, torch.Tensor)


def pass_chance(d: _Number, w: _Number) -> _Number:
    """Return h = D/(D + (1 − w)), block's test below a draft's end; 0/0 where w = 1 and D = 0."""
    return d / (d + (1.0 - w))


# --- batches of drafts


def draft_mask(batch: Batch) -> torch.Tensor:
    """Return whether a column holds a drafted token, not padding: [B, n] bool."""
    columns = torch.arange(batch.tokens.shape[1], device=batch.tokens.device)
    return columns < batch.lengths.unsqueeze(-1)


def at_drafted(rows: torch.Tensor, batch: Batch) -> torch.Tensor:
    """Return ``rows`` [B, n, V] at drafted tokens and the verifier's elsewhere, [B, n+1, V]."""
    n = rows.shape[1]
    rows = torch.where(draft_mask(batch).unsqueeze(-1), rows, batch.p[:, :n])
    return torch.cat([rows, batch.p[:, n:]], dim=1)


def draft_token_probs(batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Return p_i(x_i) and q_i(x_i) of every drafted token, each [B, n] float64."""
    n = batch.tokens.shape[1]
    ids = batch.tokens.unsqueeze(-1)
    p_x = batch.p[:, :n].gather(-1, ids).squeeze(-1).double()
    q_x = batch.q.gather(-1, ids).squeeze(-1).double()
    return p_x, q_x


def capped_ratios(p_x: torch.Tensor, q_x: torch.Tensor) -> torch.Tensor:
    """Return min(1, p/q); where q gives the token no mass, 1 if p does, else 0."""
    return torch.where(q_x > 0, (p_x / q_x).clamp(max=1.0), (p_x > 0).to(p_x.dtype))


def log_products(batch: Batch) -> torch.Tensor:
    """Return log(r_1 ⋯ r_k), k = 0..n, [B, n+1] float64; −inf from an impossible token on."""
    p_x, q_x = draft_token_probs(batch)
    log_r = p_x.log() - q_x.log()
    log_r = torch.where(q_x > 0, log_r, _IMPOSSIBLE_DRAFT)
    log_r = torch.where(p_x > 0, log_r, -torch.inf)
    return torch.nn.functional.pad(log_r.cumsum(-1), (1, 0))


def capped(log_products: torch.Tensor) -> torch.Tensor:
    """Return w_0 = 1, w_k = min(1, w_{k−1} r_k) from log-products [B, n+1], forming no product."""
    highest = log_products.cummax(-1).values  # that of no ratios is 0, so never below 0
    return (log_products - highest).exp()


def excess(p: torch.Tensor, q: torch.Tensor, w: torch.Tensor | float) -> torch.Tensor:
    """Return D(w·p, q) = Σ_x max(w·p(x) − q(x), 0) over the last axis, in float64; w ≤ 1."""
    return row_sums(residual(p, q, w), torch.float64)


def overlap(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """Return Σ_x min(p(x), q(x)) = 1 − TV(p, q) over the last axis: tokenwise's acceptance rate."""
    return torch.minimum(p, q).sum(-1)


def total_variation(p: Any, q: Any) -> Any:
    """Return TV(p, q) = ½ Σ_x |p(x) − q(x)| over the last axis of tensors, or of NumPy's arrays."""
    return abs(p - q).sum(-1) / 2.0


def set_ends(h: torch.Tensor, ends: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Return ``h`` [B, n] with each draft's last column taken from ``ends``, and 0 in padding."""
    k = torch.arange(1, h.shape[1] + 1, device=h.device)
    n = lengths.unsqueeze(-1)
    return torch.where(k < n, h, torch.where(k == n, ends, 0.0))


# --- one draft, in Python floats


def capped_ratio(p_x: float, q_x: float) -> float:
    """Return min(1, p/q), as :func:`capped_ratios` does."""
    # This order keeps a NaN, which no number is below: min(1.0, nan) would be 1.0.
    return min(p_x / q_x, 1.0) if q_x > 0.0 else float(p_x > 0.0)


def log_ratio(p_x: float, q_x: float) -> float:
    """Return log(p/q): −inf where p is 0 (or NaN), else +inf where q is 0."""
    if not p_x > 0.0:
        return -math.inf
    return math.log(p_x) - math.log(q_x) if q_x > 0.0 else math.inf


def prefix_weights(p_x: Sequence[float], q_x: Sequence[float]) -> list[float]:
    """Compute w_0..w_n of one draft, as :func:`capped` does, from its tokens' probabilities."""
    w, log_w = [1.0], 0.0
    for p, q in zip(p_x, q_x, strict=True):
        if log_w > -math.inf:
            log_w = min(0.0, log_w + log_ratio(p, q))
        w.append(math.exp(log_w))
    return w


def block_test(k: int, w: Sequence[float], excess: Excess) -> float:
    """Return h_k of one draft in block verification, from its weights w_0..w_n; h_k ≤ w_k."""
    w_k = w[k]
    if k == len(w) - 1 or not 0.0 < w_k < 1.0:
        return w_k
    d = excess(k, w_k)
    return min(pass_chance(d, w_k), w_k)


def scan_from_end(w: Sequence[float], excess: Excess) -> Generator[float, bool, tuple[int, float]]:
    """Yield h_n, …, h_1 of one draft in block verification, until sent a pass → (τ, w_τ).

    ``Block.decide`` has the uniforms at hand, and so need not compute h_k where u_k ≥ w_k.
    """
    for k in range(len(w) - 1, 0, -1):
        if (yield block_test(k, w, excess)):
            return k, w[k]
    return 0, 1.0
