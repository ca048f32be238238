"""Rows and numbers read from distributions, without padding, copying or reading other rows."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hierspec.core.distributions import (
    DenseDistributions,
    Distributions,
    MixedDistributions,
    OneHotDistributions,
    parts,
)
from hierspec.core.rules import residual


def token_probs(tokens: Sequence[int], distributions: Distributions) -> list[float]:
    """Read p_i(x_i) of every token, from rows that lie in the host's memory."""
    probs: list[float] = []
    for part in parts(distributions):
        in_part = tokens[len(probs) : len(probs) + len(part)]
        if isinstance(part, DenseDistributions):
            # A few numbers: NumPy reads them in a tenth of what a gather costs.
            rows, width = part.probs.numpy(), part.width
            probs += [rows.item(i, t) if t < width else 0.0 for i, t in enumerate(in_part)]
        else:
            probs += [part.prob(i, token) for i, token in enumerate(in_part)]
    return probs


def residual_row(p: torch.Tensor, q: Distributions, i: int, w: float = 1.0) -> torch.Tensor:
    """Return max(w·p − q_i, 0) of a row p [V] and row i of q; q's mass past V cannot matter."""
    if isinstance(q, MixedDistributions):
        q, i = q.part_at(i)
    if isinstance(q, OneHotDistributions):  # one entry differs from w·p
        out, token = p * w, q.ids[i]
        if token < out.shape[0]:
            out[token] = (out[token] - 1.0).clamp(min=0.0)
        return out
    return dense_residual(p, q.row(i), w)


def dense_residual(p: torch.Tensor, q: torch.Tensor, w: float = 1.0) -> torch.Tensor:
    """Return max(w·p − q, 0) of rows p [V] and q, whose mass past V cannot matter."""
    return residual(p, resize_row(q, p.shape[0]).to(p), w)


def mass(row: torch.Tensor) -> float:
    return float(row.sum())


def normalised(rest: torch.Tensor, otherwise: torch.Tensor) -> torch.Tensor:
    """Return ``rest`` divided by its sum; ``otherwise`` where rounding left nothing of it."""
    total = rest.sum()
    return rest / total if total > 0.0 else otherwise


def token_prob(row: torch.Tensor, token: int) -> float:
    """Return a token's probability in a row [V]; 0 for ids past its vocabulary."""
    return float(row[token]) if token < row.shape[0] else 0.0


def resize_row(row: torch.Tensor, width: int) -> torch.Tensor:
    """Return a row padded with zeros, or cut, to ``width``."""
    missing = width - row.shape[0]
    return torch.nn.functional.pad(row, (0, missing)) if missing else row


def stack_rows(rows: Sequence[torch.Tensor]) -> torch.Tensor:
    """Stack rows that may differ in width to [n, V]."""
    if len(rows) == 1:
        return rows[0].unsqueeze(0)
    width = max(row.shape[0] for row in rows)
    return torch.stack([resize_row(row, width).to(rows[0]) for row in rows])
