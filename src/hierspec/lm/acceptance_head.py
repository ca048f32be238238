"""A draft model that predicts which of its tokens are kept: SpecDec++ (Huang et al. 2024).

A head on the draft model's last hidden state predicts, for the token the state belongs to, how
likely the target keeps it, given that it kept the drafted tokens before: D residual blocks
``x + silu(W x + b)`` and one row that makes a logit, as in the paper (§3.1, §4). The state is that
*after* the token, so the prediction takes the token through the model; the next step of the draft
finds it there, and only a draft that ends with the prediction has computed a state more than one
of fixed length, which the next round finds cached where the token was kept.

Shapes: N rows, d hidden.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import nn

from .base import Query
from .trunk.trunk import ExitModel


class AcceptanceHead(nn.Module):
    """Hidden states [N, d] → logits [N] of being kept, in float32.

    States are scaled to a root mean square of 1 first. Blocks start as the identity.

    Args:
        size: d.
        depth: D, how many residual blocks.
    """

    def __init__(self, size: int, depth: int) -> None:
        super().__init__()
        self.size, self.depth = size, depth
        self.blocks = nn.ModuleList(nn.Linear(size, size) for _ in range(depth))
        self.out = nn.Linear(size, 1)
        for part in (*self.blocks, self.out):
            assert isinstance(part, nn.Linear)
            nn.init.zeros_(part.weight)
            nn.init.zeros_(part.bias)

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        x = h.float()
        x = x * x.square().mean(-1, keepdim=True).clamp_min(1e-12).rsqrt()
        for block in self.blocks:
            x = x + F.silu(block(x))
        return self.out(x).squeeze(-1)


class PredictingExit(ExitModel):
    """A view of a trunk with a head that predicts what is kept of its tokens.

    It shares the slots of the trunk's other views.
    """

    def __init__(self, view: ExitModel, predictor: AcceptanceHead) -> None:
        super().__init__(view.trunk, view.index, view.head)
        self.predictor = predictor.to(view.device)

    def acceptance(self, queries: Sequence[Query]) -> list[float]:
        """See :meth:`hierspec.lm.base.PredictingModel.acceptance`."""
        places = [(q.slot, q.context, len(q.context) - 1, len(q.context)) for q in queries]
        states = self.trunk.hidden_states(places, [self.exit_layer])
        with torch.inference_mode():
            return self.predictor(torch.cat(states)).sigmoid().tolist()
