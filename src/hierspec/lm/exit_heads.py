"""Heads of early exits: the two kinds, as they are trained and as the engine runs them.

*transform*: ``h + W h + b`` with a matrix W [d, d], then the model's own final norm and
unembedding: an affine map from one layer's features to the last one's. W and b start at zero.

*full*: the model's own final norm, then a matrix [V, d] in place of its unembedding, as in P1 §4.1.
It starts as a copy of the model's own (and of its bias, if that has one).

So both start as the exit without a head. A transform has V / d times fewer parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from hierspec.lm.lean.layers import Matrix
from hierspec.lm.lean.linear import rows_for
from hierspec.utils.threads import OneThread, is_small

from .backend import Backend

TRANSFORM, FULL = "transform", "full"
KINDS = (TRANSFORM, FULL)

Linear = Callable[[torch.Tensor], torch.Tensor]  # [N, in] → [N, out]


def scores(kind: str, backend: Any, linear: Linear, h: torch.Tensor) -> torch.Tensor:
    """Hidden states [N, d] at an exit → scores [N, V], soft-capping and scaling included.

    ``backend`` is a :class:`~hierspec.lm.backend.Backend`; for full heads its ``head`` takes, as
    those of lean and hf do, a second argument that stands in for the model's own matrix.
    """
    if kind == TRANSFORM:
        return backend.head((h + linear(h)).to(h.dtype))
    return backend.head(h, linear)


class Head(nn.Module):
    """A head while it is trained: parameters in float32 (float64 for a float64 model)."""

    def __init__(self, kind: str, backend: Any) -> None:
        super().__init__()
        exact = torch.promote_types(backend.dtype, torch.float32)
        if kind == TRANSFORM:
            size = backend.hidden_size
            weight, bias = torch.zeros(size, size), torch.zeros(size)
        else:
            own = backend.lm_head
            weight, bias = own.weight.detach(), getattr(own, "bias", None)
        self.weight = nn.Parameter(weight.to(backend.device, exact, copy=True))
        self.bias = None if bias is None else nn.Parameter(_copy(bias, backend, exact))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x.to(self.weight.dtype), self.weight, self.bias)


class Heads(nn.ModuleDict):
    """Heads by exit layer, of one kind.

    Args:
        backend: the frozen model, run by transformers' own modules
            (:class:`~hierspec.lm.hf.decoder.HFBackend`): gradients must pass its final norm and
            unembedding.
    """

    def __init__(self, kind: str, exits: Sequence[int], backend: Any) -> None:
        super().__init__({str(layer): Head(kind, backend) for layer in exits})
        self.kind = kind
        # What full heads are multiplied with need not be as wide as the model (OPT).
        self.width = backend.hidden_size if kind == TRANSFORM else backend.lm_head.weight.shape[1]

    def scores(self, layer: int, backend: Any, h: torch.Tensor) -> torch.Tensor:
        """See :func:`scores`."""
        return scores(self.kind, backend, self[str(layer)], h)

    def round_to(self, dtype: torch.dtype) -> None:
        """Round all parameters to ``dtype``, in which they will be stored, and keep their own."""
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(parameter.to(dtype))


def _copy(bias: torch.Tensor, backend: Any, exact: torch.dtype) -> torch.Tensor:
    return bias.detach().to(backend.device, exact, copy=True)


class ExitHead:
    """Hidden states [N, d] at one exit → scores [N, V], as a trunk's view takes it.

    The matrix is held in the dtype of the model's weights, prepacked where the machine can. Between
    the backends lean and hf, scores differ by no more than those of the model itself do.
    """

    def __init__(
        self, kind: str, weight: torch.Tensor, bias: torch.Tensor | None, backend: Backend
    ) -> None:
        self.kind, self.backend = kind, backend
        # The lean backend's hidden states are float32 whatever its weights are.
        self.dtype: torch.dtype = getattr(backend, "weight_dtype", backend.dtype)

        def placed(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.to(backend.device, self.dtype)

        self.matrix = Matrix(placed(weight), None if bias is None else placed(bias))

    @property
    def num_parameters(self) -> int:
        return self.matrix.num_weights + (0 if self.matrix.bias is None else self.matrix.num_out)

    def __call__(self, h: torch.Tensor) -> torch.Tensor:
        return scores(self.kind, self.backend, self._linear, h)

    def _linear(self, x: torch.Tensor) -> torch.Tensor:
        matrix, num = self.matrix, len(x)
        rows = rows_for(num) if matrix.is_packed else num
        size = matrix.num_weights * self.dtype.itemsize
        one = self.backend.device.type == "cpu" and is_small(matrix.num_weights, size, rows)
        with OneThread(one):
            return matrix(F.pad(x.to(self.dtype), (0, 0, 0, rows - num)))[:num]
