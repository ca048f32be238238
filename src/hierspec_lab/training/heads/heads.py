"""Heads of early exits as they are trained, and the file that they are written to.

Shapes: N rows, d hidden, m inside an mlp, V tokens, v of them scored by a head.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from hierspec.config.exit_heads import SCHEMA
from hierspec.lm.backend import Backend, Linear
from hierspec.lm.exit_heads import FULL, MLP, head_scores
from hierspec.lm.hf.decoder import HFBackend
from hierspec_lab.acceptance.files import save_tensors


class Head(nn.Module):
    """A head while it is trained: parameters in float32 (float64 for a float64 model)."""

    def __init__(
        self, kind: str, backend: HFBackend, vocabulary: torch.Tensor | None, inner: int, seed: int
    ) -> None:
        super().__init__()
        dtype = torch.promote_types(backend.dtype, torch.float32)
        size = backend.hidden_size
        if kind == FULL:
            weight, bias = unembedding_rows(backend, vocabulary)
        else:
            rows = size + (inner if kind == MLP else 0)
            weight, bias = torch.zeros(rows, size), torch.zeros(rows)
        if kind == MLP:
            generator = torch.Generator().manual_seed(seed)
            weight[size:].normal_(0, 1 / math.sqrt(size), generator=generator)
        self.weight = nn.Parameter(weight.to(backend.device, dtype, copy=True))
        self.bias = None
        if bias is not None:
            self.bias = nn.Parameter(bias.detach().to(backend.device, dtype, copy=True))
        if kind == MLP:
            self.down = nn.Parameter(torch.zeros(size, inner, dtype=dtype, device=backend.device))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x.to(self.weight.dtype), self.weight, self.bias)

    def out(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x.to(self.down.dtype), self.down)


class Heads(nn.ModuleDict):
    """Heads by exit layer, of one kind.

    Args:
        backend: the frozen model, run by transformers' own modules: gradients must pass its final
            norm and unembedding.
        vocabulary: ids [v], ascending, of the tokens that are scored; ``None``: all.
        inner: m, of an mlp.
    """

    def __init__(
        self,
        kind: str,
        exits: Sequence[int],
        backend: HFBackend,
        vocabulary: torch.Tensor | None = None,
        inner: int = 0,
        seed: int = 0,
    ) -> None:
        super().__init__(
            {str(layer): Head(kind, backend, vocabulary, inner, seed + layer) for layer in exits}
        )
        self.kind, self.inner = kind, inner
        # The input of full heads need not be as wide as the model (OPT).
        self.input_size = backend.lm_head.weight.shape[1] if kind == FULL else backend.hidden_size
        self.ids = None if vocabulary is None else vocabulary.to(backend.device, torch.int64)
        self.num_scored = backend.vocab_size if vocabulary is None else len(vocabulary)
        self._unembed: Linear | None = None  # the product with the rows that are scored; None: all
        if self.ids is not None:
            weight, bias = unembedding_rows(backend, self.ids)
            self._unembed = partial(F.linear, weight=weight, bias=bias)

    def scores(self, layer: int, backend: Backend, h: torch.Tensor) -> torch.Tensor:
        """See :func:`head_scores`; [N, v] where a part of the vocabulary is scored."""
        head: Any = self[str(layer)]
        down = head.out if self.kind == MLP else None
        return head_scores(self.kind, backend, head, h, down, self._unembed)

    def teacher(self, backend: Backend, h: torch.Tensor) -> torch.Tensor:
        """Return the model's own scores of its last layer [N, d], for the tokens heads score."""
        return backend.head(h, self._unembed)

    def tokens(self, columns: torch.Tensor) -> torch.Tensor:
        """Return the ids of tokens given by their place among those that heads score."""
        return columns if self.ids is None else self.ids[columns]

    def round_to(self, dtype: torch.dtype) -> None:
        """Round all parameters to numbers of ``dtype``, as they will be stored."""
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(parameter.to(dtype))


def unembedding_rows(
    backend: HFBackend, ids: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return rows of an hf model's output matrix and of its bias, if any; ``None``: all rows."""
    lm_head = backend.lm_head
    weight, bias = lm_head.weight.detach(), getattr(lm_head, "bias", None)
    bias = None if bias is None else bias.detach()
    return (weight, bias) if ids is None else (weight[ids], None if bias is None else bias[ids])


def write(path: Path, heads: Heads, dtype: torch.dtype, info: Mapping[str, Any]) -> None:
    """Write all heads and their metadata in one step: readers find the old file or the new."""
    tensors = {
        f"exit.{name}": tensor.detach().to("cpu", dtype).contiguous()
        for name, tensor in heads.state_dict().items()
    }
    if heads.ids is not None:
        tensors["vocabulary"] = heads.ids.to("cpu", torch.int32)
    save_tensors(path, tensors, {"schema_version": SCHEMA, **info}, "the heads")
