"""Heads of early exits: their kinds, as they are trained and as the engine runs them.

*transform*: ``h + W h + b`` with a matrix W [d, d], then the model's own final norm and
unembedding: an affine map from one layer's features to the last one's. W and b start at zero.

*mlp*: ``h + W h + b + s · D silu(U h / s + c)`` with s the root mean square of h, then the same.
U [m, d] starts at random, D [d, m] at zero.

*full*: the model's own final norm, then a matrix [V, d] in place of its unembedding, as in P1 §4.1.
It starts as a copy of the model's own (and of its bias, if that has one).

So all start as the exit without a head. A transform has V / d times fewer parameters than a full
head.

Heads may score a part of the vocabulary, v of V tokens: other rows of the unembedding are not
multiplied with, and their tokens score −∞, so that the exit never drafts them. Output stays exact:
the levels above can emit tokens that the draft cannot.

Shapes: N rows, d hidden, m inside an mlp, V tokens, v of them scored by a head.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import nn

from .backend import Backend, Linear
from .products import Product, product, silu_by_row

if TYPE_CHECKING:
    from .hf.decoder import HFBackend

TRANSFORM, FULL, MLP = "transform", "full", "mlp"
KINDS = (TRANSFORM, FULL, MLP)


def head_scores(
    kind: str,
    backend: Backend,
    linear: Linear,
    h: torch.Tensor,
    down: Linear | None = None,
    unembed: Linear | None = None,
) -> torch.Tensor:
    """Return scores [N, V] of hidden states [N, d] at an exit, soft-capping and scaling included.

    Args:
        linear: the product with the head's matrix: W of a transform, W stacked on U of an mlp, the
            output matrix of a full head.
        down: D of an mlp.
        unembed: the product with the rows of the model's own matrix that are scored; scores are
            then [N, v]. ``None``: all rows.
    """
    if kind == FULL:
        return backend.head(h, linear)
    change = linear(h)
    if kind == MLP:
        assert down is not None
        dtype = torch.promote_types(h.dtype, torch.float32)
        scale = h.to(dtype).square().mean(-1, keepdim=True).sqrt().clamp_(min=1e-6)
        size = h.shape[-1]
        inner = silu_by_row(change[:, size:] / scale)
        change = change[:, :size] + down(inner) * scale
    features = (h + change).to(h.dtype)
    return backend.head(features) if unembed is None else backend.head(features, unembed)


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
        self._rows: tuple[torch.Tensor, torch.Tensor | None] | None = None
        if self.ids is not None and kind != FULL:
            self._rows = unembedding_rows(backend, self.ids)

    def scores(self, layer: int, backend: Backend, h: torch.Tensor) -> torch.Tensor:
        """See :func:`head_scores`; [N, v] where a part of the vocabulary is scored."""
        head: Any = self[str(layer)]
        down = head.out if self.kind == MLP else None
        unembed = None if self._rows is None else self._unembed
        return head_scores(self.kind, backend, head, h, down, unembed)

    def teacher(self, backend: Backend, h: torch.Tensor) -> torch.Tensor:
        """Return the model's own scores of its last layer [N, d], for the tokens heads score."""
        if self._rows is not None:
            return backend.head(h, self._unembed)
        scores = backend.head(h)
        return scores if self.ids is None else scores[:, self.ids]

    def round_to(self, dtype: torch.dtype) -> None:
        """Round all parameters to numbers of ``dtype``, as they will be stored."""
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(parameter.to(dtype))

    def _unembed(self, x: torch.Tensor) -> torch.Tensor:
        assert self._rows is not None
        weight, bias = self._rows
        return F.linear(x, weight, bias)


def unembedding_rows(
    backend: HFBackend, ids: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return rows of an hf model's output matrix and of its bias, if any; ``None``: all rows."""
    lm_head = backend.lm_head
    weight, bias = lm_head.weight.detach(), getattr(lm_head, "bias", None)
    bias = None if bias is None else bias.detach()
    return (weight, bias) if ids is None else (weight[ids], None if bias is None else bias[ids])


@dataclass(frozen=True, slots=True, eq=False)
class VocabularyPart:
    """A part of a model's vocabulary, and the rows of the model's output matrix for it.

    Attributes:
        ids: [v] int64, ascending.
        matrix: the rows; ``None`` where a full head has rows of its own.
    """

    ids: torch.Tensor
    matrix: Product | None


def vocabulary_part(backend: Backend, ids: torch.Tensor, kind: str) -> VocabularyPart:
    """Return the part ``ids`` of a loaded model's vocabulary; several exits' heads may share it."""
    ids = ids.to(backend.device, torch.int64)
    rows = None if kind == FULL else product(backend, *backend.unembedding(ids))
    return VocabularyPart(ids, rows)


class ExitHead:
    """Hidden states [N, d] at one exit → scores [N, V], as the head of a trunk's view.

    Matrices have the dtype of the model's weights, and run as they do. Between backends, scores
    differ by no more than those of the model itself do.

    Attributes:
        num_bytes: of its matrices, without those of ``part``.

    Args:
        part: the tokens scored, others score −∞; ``None``: all are scored.
    """

    def __init__(
        self,
        kind: str,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        backend: Backend,
        down: torch.Tensor | None = None,
        part: VocabularyPart | None = None,
    ) -> None:
        self.kind, self.backend, self.part = kind, backend, part
        self.matrix = product(backend, weight, bias)
        self.down = None if down is None else product(backend, down)
        self.num_bytes = self.matrix.num_bytes + (0 if self.down is None else self.down.num_bytes)

    def __call__(self, h: torch.Tensor) -> torch.Tensor:
        part = self.part
        unembed = None if part is None else part.matrix
        scores = head_scores(self.kind, self.backend, self.matrix, h, self.down, unembed)
        if part is None:
            return scores
        logits = scores.new_full((len(scores), self.backend.vocab_size), -math.inf)
        return logits.index_copy_(1, part.ids, scores)
