"""Heads of early exits: their kinds, and how the engine runs them.

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
from dataclasses import dataclass

import torch

from .backend import Backend, Linear
from .products import Product, product, silu_by_row

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
