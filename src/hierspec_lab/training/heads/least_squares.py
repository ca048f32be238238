"""Initialise heads by least squares.

W is what a head adds: the linear map from an exit's features to what the last layer's have beyond
them.

Final norms ignore scale, so both are first scaled to a root mean square of 1. The solution costs
two products per position and saves most of the training steps that it would take to reach it. With
few texts a ridge penalty keeps it near the exit without a head; its strength is chosen on positions
that were not fitted.
"""

from __future__ import annotations

import torch

from hierspec.lm.exit_heads import FULL

from .heads import Head, Heads
from .states import StateStore

_ROWS = 1024  # read at once
_MAX_POSITIONS = 65_536  # fitted
_VALIDATION_SHARE = 0.2  # of the positions, to choose the ridge on
_RIDGES = (4.0, 64.0, 1024.0, 16384.0)  # penalties: each weighs as much as so many positions


@torch.no_grad()
def initialise(heads: Heads, store: StateStore, rows: torch.Tensor, seed: int) -> None:
    """Set W [d, d] of each head to a least-squares solution, if that lowers the KL divergence.

    W h, which a head adds to an exit's features h, comes near what the last layer's have beyond
    them. Full heads have no W and stay as they are.

    Args:
        rows: of ``store`` to learn from, text after text.
    """
    if heads.kind == FULL or len(rows) < 2:
        return
    generator = torch.Generator().manual_seed(seed)
    border = max(1, int((1 - _VALIDATION_SHARE) * len(rows)))
    frozen, size = store.frozen, store.frozen.backend.hidden_size
    xx, xy = _products(store, _sample(rows[:border], _MAX_POSITIONS, generator))
    validation = store.read(_sample(rows[border:], _ROWS, generator))
    best = frozen.distances(heads, validation)[0]
    chosen: list[torch.Tensor | None] = [None] * len(best)
    for ridge in _RIDGES:
        matrices = [
            torch.linalg.solve(a + ridge * torch.eye(size, dtype=a.dtype), b).T
            for a, b in zip(xx, xy, strict=True)
        ]
        for number, matrix in enumerate(matrices):
            _set_weight(heads, frozen.exits[number], matrix)
        kl = frozen.distances(heads, validation)[0]
        for number in (kl < best).nonzero().flatten().tolist():
            best[number], chosen[number] = kl[number], matrices[number]
    for layer, matrix in zip(frozen.exits, chosen, strict=True):
        _set_weight(heads, layer, torch.zeros(size, size) if matrix is None else matrix)


def _products(store: StateStore, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return XᵀX and Xᵀ(Y − X), [E, d, d] each, of exit features X and the last layer's Y."""
    size = store.frozen.backend.hidden_size
    xx = torch.zeros(len(store.frozen.exits), size, size, dtype=torch.float64)
    xy = torch.zeros_like(xx)
    for part in rows.split(_ROWS):
        *early, last = (_normalise(h) for h in store.read(part))
        for number, x in enumerate(early):
            xx[number] += (x.T @ x).double().cpu()
            xy[number] += (x.T @ (last - x)).double().cpu()
    return xx, xy


def _sample(rows: torch.Tensor, max_rows: int, generator: torch.Generator) -> torch.Tensor:
    return rows[torch.randperm(len(rows), generator=generator)[:max_rows]]


def _set_weight(heads: Heads, layer: int, matrix: torch.Tensor) -> None:
    head = heads[str(layer)]
    assert isinstance(head, Head)
    head.weight[: len(matrix)] = matrix.to(head.weight)


def _normalise(h: torch.Tensor) -> torch.Tensor:
    h = h.to(torch.promote_types(h.dtype, torch.float32))
    return h / h.square().mean(-1, keepdim=True).sqrt().clamp_(min=1e-6)
