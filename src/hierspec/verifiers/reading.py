"""Numbers read off laws without padding, copying or touching rows that do not matter."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hierspec.core.distributions import DenseDistributions, Distributions, MixedDistributions


def chosen_probabilities(tokens: Sequence[int], distributions: Distributions) -> list[float]:
    """p_i(x_i) of every token, from laws that lie in the host's memory."""
    out: list[float] = []
    for part in (
        distributions.parts if isinstance(distributions, MixedDistributions) else (distributions,)
    ):
        mine = tokens[len(out) : len(out) + len(part)]
        if isinstance(part, DenseDistributions):
            # A few numbers: NumPy reads them in a tenth of what a gather costs.
            rows, width = part.probs.numpy(), part.width
            out += [rows.item(i, t) if t < width else 0.0 for i, t in enumerate(mine)]
        else:
            out += [part.prob(i, token) for i, token in enumerate(mine)]
    return out


def row_at(distributions: Distributions, i: int) -> torch.Tensor:
    """Row i, [width]."""
    part, i = (
        distributions.at(i) if isinstance(distributions, MixedDistributions) else (distributions, i)
    )
    if isinstance(part, DenseDistributions):
        return part.probs[i]
    one = part.rows(i, i + 1)
    return one.dense(one.width)[0]


def residual(p: Distributions, q: Distributions, i: int, w: float) -> torch.Tensor:
    """max(w·p − q, 0) at row i, [width of p]; what q says beyond p's vocabulary cannot matter."""
    row = row_at(p, i)
    part, i = q.at(i) if isinstance(q, MixedDistributions) else (q, i)
    if isinstance(part, DenseDistributions):
        other = part.probs[i].to(row)
        missing = row.shape[0] - other.shape[0]
        if missing:  # padding by a negative number cuts
            other = torch.nn.functional.pad(other, (0, missing))
        return torch.sub(row if w == 1.0 else row * w, other).clamp_(min=0.0)
    out = row * w
    token = part.ids[i]
    if token < out.shape[0]:
        out[token] = (out[token] - 1.0).clamp(min=0.0)
    return out


def stacked(rows: list[torch.Tensor]) -> torch.Tensor:
    """[n, V] of rows that may differ in width."""
    if len(rows) == 1:
        return rows[0].unsqueeze(0)
    width = max(row.shape[0] for row in rows)
    if any(row.shape[0] < width for row in rows):
        pad = torch.nn.functional.pad
        rows = [pad(row, (0, width - row.shape[0])) for row in rows]
    return torch.stack([row.to(rows[0]) for row in rows])
