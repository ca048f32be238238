"""A trained head in the engine: scores for the rows that an exit is asked for."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from hierspec.lm.backend import Backend
from hierspec.lm.lean_layers import Matrix
from hierspec.lm.lean_linear import rows_for
from hierspec.lm.lean_threads import is_small
from hierspec.one_thread import OneThread

from .kinds import scores


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
