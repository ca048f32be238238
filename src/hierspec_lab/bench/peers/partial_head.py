"""transformers models that score a part of their vocabulary, as siblings do."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import linear

from hierspec.lm.weights import HEAD, SCORED, WeightSource, build_hf_model


class PartialHead(torch.nn.Module):
    """Scores [..., V] of which v come from a product; the others are minus infinity.

    Attributes:
        weight: [v, d].
        token_ids: [v] int64, the tokens that are scored.
    """

    weight: torch.Tensor
    token_ids: torch.Tensor

    def __init__(self, weight: torch.Tensor, token_ids: torch.Tensor, vocab_size: int) -> None:
        super().__init__()
        self.register_buffer("weight", weight)
        self.register_buffer("token_ids", token_ids)
        self.vocab_size = vocab_size

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        scores = hidden.new_full((*hidden.shape[:-1], self.vocab_size), -torch.inf)
        scores[..., self.token_ids] = linear(hidden, self.weight)
        return scores


@dataclass(frozen=True, eq=False)
class _WholeHead:
    """A source as ``build_hf_model`` reads it: with a row for every token, those missing zero."""

    source: WeightSource

    @property
    def name(self) -> str:
        return self.source.name

    @property
    def config(self) -> Any:
        return self.source.config

    @property
    def tokenizer_path(self) -> Path | None:
        return self.source.tokenizer_path

    def names(self) -> list[str]:
        return [name for name in self.source.names() if name != SCORED]

    def tensor(self, name: str) -> torch.Tensor:
        found = self.source.tensor(name)
        if name != HEAD:
            return found
        whole = found.new_zeros(self.config.vocab_size, found.shape[1])
        whole[self.source.tensor(SCORED)] = found
        return whole


def build_with_partial_head(source: WeightSource, dtype: torch.dtype, device: Any) -> Any:
    """Build the transformers model of a source that scores a part of its vocabulary."""
    model = build_hf_model(_WholeHead(source), dtype, device)
    token_ids = source.tensor(SCORED).to(device)
    weight = model.lm_head.weight.detach()[token_ids]
    model.lm_head = PartialHead(weight, token_ids, source.config.vocab_size)
    return model
