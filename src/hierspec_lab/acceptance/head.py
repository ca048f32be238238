"""A draft model that predicts which of its tokens are accepted: SpecDec++ (Huang et al. 2024).

A head on the draft model's last hidden state predicts, for the token the state belongs to, how
likely the target accepts it if it accepts the drafted tokens before: D residual blocks
``x + silu(W x + b)`` and one row that makes a logit, as in the paper (§3.1, §4). The state is that
*after* the token, so the prediction runs the token through the model. The next step of the draft
finds the state cached. Only a draft that ends at the prediction has computed one state more than a
draft of fixed length, and that state is still cached in the next round if the token was accepted.

Shapes: N rows, d hidden.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import nn

from hierspec.lm.backend import Linear
from hierspec.lm.base import Query
from hierspec.lm.products import product, silu_by_row
from hierspec.lm.trunk.trunk import ExitModel


class AcceptanceHead(nn.Module):
    """Hidden states [N, d] → logits [N] of acceptance, in float32.

    States are scaled to a root mean square of 1 first. Blocks are initialised to the identity.

    Args:
        size: d.
        depth: D, how many residual blocks.
    """

    def __init__(self, size: int, depth: int) -> None:
        super().__init__()
        self.size, self.depth = size, depth
        self.blocks = nn.ModuleList(nn.Linear(size, size) for _ in range(depth))
        self.out = nn.Linear(size, 1)
        for layer in (*self.blocks, self.out):
            assert isinstance(layer, nn.Linear)
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        return _logits(h, self.blocks, self.out)


def _logits(h: torch.Tensor, blocks: Iterable[Linear], out: Linear) -> torch.Tensor:
    x = h.float()
    x = x * x.square().mean(-1, keepdim=True).clamp_min(1e-12).rsqrt()
    for block in blocks:
        x = x + silu_by_row(block(x))
    return out(x).squeeze(-1)


class PredictingExit(ExitModel):
    """A view of a trunk with a head that predicts which of its tokens are accepted.

    It shares the slots of the trunk's other views.
    """

    def __init__(self, view: ExitModel, predictor: AcceptanceHead) -> None:
        super().__init__(view.trunk, view.index, view.head)
        self._blocks = [self._product(block) for block in predictor.blocks]
        self._out = self._product(predictor.out)

    def _product(self, layer: nn.Module) -> Linear:
        assert isinstance(layer, nn.Linear)
        return product(self.trunk.backend, layer.weight, layer.bias, torch.float32)

    def acceptance(self, queries: Sequence[Query]) -> list[float]:
        """See :meth:`hierspec.lm.base.PredictingModel.acceptance`."""
        ranges = [(q.slot, q.context, len(q.context) - 1, len(q.context)) for q in queries]
        states = self.trunk.hidden_states(ranges, [self.exit_layer])
        with torch.inference_mode():
            logits = _logits(torch.cat(states), self._blocks, self._out)
            # One by one: the same bits whatever is predicted beside it.
            return [float(logit.sigmoid()) for logit in logits]
