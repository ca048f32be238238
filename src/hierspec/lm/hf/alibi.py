"""Attention with linear biases (Press et al., 2022, arXiv 2108.12409): BLOOM, and some Falcons.

Layers take a bias for every key instead of positions. Falcon's take it as part of their mask.
"""

from __future__ import annotations

import math
import sys
from typing import Any

import torch

from hierspec.lm.backend import Span


class Alibi:
    """The attention biases of one model.

    Args:
        build: transformers' function of the model, (mask [1, L], heads, dtype) → [heads, 1, L].
        in_mask: whether the attention takes the biases as part of its mask.
        head_size: in the mask, biases are divided by its square root.
    """

    def __init__(self, build: Any, num_heads: int, in_mask: bool, head_size: int) -> None:
        self.build, self.num_heads, self.in_mask = build, num_heads, in_mask
        self.scale = 1 / math.sqrt(head_size)

    def biases(self, h: torch.Tensor, span: Span) -> torch.Tensor:
        """Return biases of a span's keys and all before: [heads, 1, L], or [1, heads, 1, L]."""
        biases = self._biases(span, h.dtype, h.device)
        return biases[None] if self.in_mask else biases

    def mask(self, span: Span, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Return [1, heads, n, L]: biases of the keys a row attends to, else the lowest number."""
        _, start, n, branches = span
        if branches is None:
            rows = torch.arange(start, start + n, device=device)[:, None]
            hidden = torch.arange(start + n, device=device)[None, :] > rows
        else:
            hidden = ~branches.attention_mask(start, n).to(device)
        biases = self._biases(span, dtype, device)[None] * self.scale
        return biases.masked_fill(hidden, torch.finfo(dtype).min)

    def _biases(self, span: Span, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        end = span.start + span.n
        mask = torch.ones(1, end, dtype=torch.long, device=device)
        biases = self.build(mask, self.num_heads, dtype)
        if span.branches is None:
            return biases
        # A key's bias depends on its position alone, not the query's: only differences matter.
        return biases[..., span.branches.positions(0, end)]


def alibi_of(model: Any, config: Any) -> Alibi | None:
    """Return the biases of a model whose layers take them; ``None`` if it has positions instead."""
    decoder = model.get_decoder()
    if not getattr(decoder, "use_alibi", True):
        return None
    build = sys.modules[type(decoder).__module__].build_alibi_tensor
    num_heads = config.num_attention_heads
    in_mask = hasattr(decoder, "use_alibi")
    return Alibi(build, num_heads, in_mask, config.hidden_size // num_heads)
