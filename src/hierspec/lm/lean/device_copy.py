"""A copy of a lean model in 8 or 4 bits.

Weights are int8 with a scale for each output, or those of the compiled kernels' copy in 4 bits,
with a grid for each group of 32 inputs. Products are in the model's own dtype. With Triton the
weights are read in 8 or 4 bits, and a draft takes as much less time; without it they are widened
before each product, which is correct and slow.
"""

from __future__ import annotations

import dataclasses

import torch
import torch.nn.functional as F
from torch import Tensor

from hierspec.lm.native.formats import FORMATS, GROUP
from hierspec.lm.native.rounding import round_to

from .decoder import LeanBackend
from .fused import has_triton
from .layers import Layer, Matrix

_MAX_ROWS = 64  # of a product in Triton; more are faster with weights that are widened first


class DeviceMatrix(Matrix):
    """A matrix in 8 or 4 bits.

    Attributes:
        codes: int8 [out, in]; in 4 bits uint8 [out, groups, 16], a byte holding the codes of inputs
            r (low) and r + 16 of its group.
        grid: in 8 bits each output's scale, float32 [out]; in 4 bits the step and lowest value of
            each group, float16 [out, groups, 2].
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, bits: int) -> None:
        self.bits, self.width = bits, weight.shape[1]
        self.num_weights = weight.numel()
        self.bias = None if bias is None else bias.detach().float()
        weight = weight.detach().float()
        if bits == 8:
            self.grid = (weight.abs().amax(1) / 127).clamp_min(1e-20)
            self.codes = (weight / self.grid[:, None]).round_().to(torch.int8)
        else:
            parts = round_to(weight, FORMATS["Q4_1"])
            assert parts.lowest is not None
            self.grid = torch.stack((parts.steps, parts.lowest), 2)
            codes = F.pad(parts.codes, (0, -self.width % GROUP))
            low, high = codes.view(len(codes), -1, 2, GROUP // 2).unbind(2)
            self.codes = low | high << 4
        self.in_triton = has_triton(weight.device)

    @property
    def num_bytes(self) -> int:
        """Bytes read from memory for a product."""
        return self.codes.nbytes + self.grid.nbytes

    def dense(self) -> Tensor:
        """Return the weights that products are computed with, float32 [out, in]."""
        if self.bits == 8:
            return self.codes * self.grid[:, None]
        codes = torch.cat([self.codes & 15, self.codes >> 4], 2)  # [out, groups, 32]
        step, lowest = self.grid.float().unsqueeze(3).unbind(2)
        return (codes * step + lowest).flatten(1)[:, : self.width]

    def __call__(self, x: Tensor) -> Tensor:
        if self.in_triton and len(x) <= _MAX_ROWS and x.dtype != torch.float64:
            from . import triton_kernels

            return triton_kernels.product(x.contiguous(), self.codes, self.grid, self.bias)
        bias = None if self.bias is None else self.bias.to(x.dtype)
        return F.linear(x, self.dense().to(x.dtype), bias)


class DeviceCopy(LeanBackend):
    """A copy of a lean model; all but the matrices is shared."""

    rows_differ = "has a copy in fewer bits, which runs outside the compiled kernels"

    def __init__(self, backend: LeanBackend, bits: int) -> None:
        vars(self).update(vars(backend))
        matrices: list[DeviceMatrix] = []

        def copied(matrix: Matrix, bits: int) -> DeviceMatrix:
            matrices.append(DeviceMatrix(matrix.dense(), matrix.bias, bits))
            return matrices[-1]

        def copied_layer(layer: Layer) -> Layer:
            names = ("qkv", "out", "gate_up", "down")
            return dataclasses.replace(
                layer, **{name: copied(getattr(layer, name), bits) for name in names}
            )

        self.stack = [copied_layer(layer) for layer in backend.stack]
        self._lm_head = copied(backend._lm_head, 8)  # its errors are errors of the scores
        self.weight_dtype = torch.int8
        self.name = f"{backend.name}:int{bits}"
        self._num_bytes = sum(matrix.num_bytes for matrix in matrices)
