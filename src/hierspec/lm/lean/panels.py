"""A matrix in the order in which the kernels of ``kernels.c`` read it, and products with it."""

from __future__ import annotations

import ctypes
from ctypes import Structure, c_int64, c_void_p
from typing import Any

import torch
import torch.nn.functional as F

from .layers import Norm

_WEIGHT_RANGE, _MAX_CODE = 127, 15
NEAR = 8.0  # nats below the best 4-bit score within which scores are computed in 8 bits
_PANEL, GROUP = 16, 32  # outputs side by side, inputs of one 4-bit grid: as in kernels.c


class MatrixStruct(Structure):
    _fields_ = [
        *((name, c_void_p) for name in ("weight", "grid", "scale", "bias")),
        *((name, c_int64) for name in ("out", "width", "bits")),
    ]


class Panels:
    """A matrix [out, in] in 32, 16, 8 or 4 bits, in the order in which the kernels read it.

    In 32 bits it is float32 and in 16 bfloat16. In 8 bits each output has a scale. In 4 bits, 32
    inputs of an output share a step and a lowest value in float16, as in GGUF's Q4_1.

    Args:
        weight: [out, in], of any floating dtype.
        bias: [out].
        bits: of a weight, 32, 16, 8 or 4.
    """

    def __init__(
        self, weight: torch.Tensor, bias: torch.Tensor | None = None, bits: int = 8
    ) -> None:
        weight = weight.detach().float()
        self.num_out, self.width = weight.shape
        self.num_weights = weight.numel()
        self.bits = bits
        padded = -(-self.num_out // _PANEL) * _PANEL
        self.scale, self.bias = weight.new_ones(padded), weight.new_zeros(padded)
        if bias is not None:
            self.bias[: self.num_out] = bias.detach().float()
        self.grid: torch.Tensor | None = None
        weight = F.pad(weight, (0, 0, 0, padded - self.num_out))
        if self.bits == 32:
            codes = weight
        elif self.bits == 16:
            codes = F.pad(weight, (0, self.width % 2)).bfloat16().view(padded, -1, 2)
        elif self.bits == 8:
            codes, self.scale = to_8_bits(weight)
        else:
            codes, grid = to_4_bits(weight)
            self.grid = grid.view(-1, _PANEL, *grid.shape[1:]).permute(0, 2, 3, 1).contiguous()
            codes = codes.view(padded, -1, 2, 4)
            codes = codes[:, :, 0] | codes[:, :, 1] << 4  # [out, in / 8, 4]
        rows = codes.view(-1, _PANEL, *codes.shape[1:])
        self.weight = rows.transpose(1, 2).contiguous()

    @property
    def num_bytes(self) -> int:
        """Bytes read from memory for a product."""
        grid = 0 if self.grid is None else self.grid.nbytes
        return self.weight.nbytes + grid

    def dense(self) -> torch.Tensor:
        """Return the weights that products are computed with, float32 [out, in]."""
        rows = self.weight.transpose(1, 2).flatten(0, 1)
        if self.bits == 16:
            return rows.flatten(1)[: self.num_out, : self.width].float()
        if self.grid is None:
            return (rows * self.scale[:, None])[: self.num_out]
        codes = torch.stack([rows & 15, rows >> 4], 2).flatten(1)[:, : self.width]
        step, lowest = self.grid.float().permute(2, 0, 3, 1).reshape(2, len(rows), -1)
        step, lowest = (x.repeat_interleave(GROUP, 1)[:, : self.width] for x in (step, lowest))
        return (codes * step + lowest)[: self.num_out]

    def struct(self) -> MatrixStruct:
        """Return the matrix as C takes it, pointing to this object's memory."""
        grid = None if self.grid is None else self.grid.data_ptr()
        addresses = self.weight.data_ptr(), grid, self.scale.data_ptr(), self.bias.data_ptr()
        return MatrixStruct(*addresses, self.num_out, self.width, self.bits)


def to_8_bits(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return codes of weights [out, in] float32, int8, and each output's scale, [out]."""
    scale = (weight.abs().amax(1) / _WEIGHT_RANGE).clamp_min(1e-20)
    return (weight / scale[:, None]).round_().to(torch.int8), scale


def to_4_bits(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return codes 0 … 15 of weights [out, in], uint8 [out, groups · 32], and each group's step and
    lowest value, float16 [out, groups, 2]."""
    padding = -weight.size(1) % GROUP
    # The last group is padded with its own last weight, which widens no range.
    padded = torch.cat([weight, weight[:, -1:].expand(-1, padding)], 1)
    groups = padded.view(len(weight), -1, GROUP)
    lowest, highest = groups.aminmax(dim=2)
    grid = torch.stack([(highest - lowest) / _MAX_CODE, lowest], 2).half()
    step, start = grid.float().unsqueeze(2).unbind(3)
    codes = ((groups - start) / step.clamp_min(1e-20)).round_().clamp_(0, _MAX_CODE)
    return codes.to(torch.uint8).flatten(1), grid


def head(
    library: ctypes.CDLL,
    matrix: Panels,
    norm: Norm,
    h: torch.Tensor,
    threads: int,
    in_4_bits: Panels | None = None,
) -> torch.Tensor:
    """Return the output matrix's scores [N, V] float32 of the norm of h [N, d] float32.

    Args:
        in_4_bits: the same matrix, whose scores are used for panels without a score within
            ``NEAR`` of the row's best, so that less is read.
    """
    h = h.contiguous()
    scores = h.new_empty(len(h), matrix.num_out)
    weight = norm.weight.detach().float().contiguous()
    arguments: Any = (weight.data_ptr(), float(norm.eps) ** 2, h.data_ptr(), len(h))
    arguments = (*arguments, scores.data_ptr(), threads)
    if in_4_bits is None:
        failed = library.hierspec_head(matrix.struct(), *arguments)
    else:
        failed = library.hierspec_two_heads(in_4_bits.struct(), matrix.struct(), NEAR, *arguments)
    if failed:
        raise MemoryError(f"no memory for {len(h)} rows")
    return scores
