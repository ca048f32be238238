"""Products with matrices beside a model's own: of exits' heads, of predictors, of EAGLE-3."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from hierspec.lm.native.backend import NativeBackend, NativeProduct
from hierspec.utils.threads import OneThread, is_small

from .backend import Backend


class TorchProduct:
    """x [N, in] → x · Wᵀ + bias [N, out], by torch's operations."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._weight, self._bias = weight, bias
        self.num_bytes = weight.nbytes + (0 if bias is None else bias.nbytes)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        on_cpu = self._weight.device.type == "cpu"
        with OneThread(on_cpu and is_small(self._weight.numel(), self.num_bytes, len(x))):
            return F.linear(x.to(self._weight.dtype), self._weight, self._bias)


Product = TorchProduct | NativeProduct


def product(
    backend: Backend,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> Product:
    """Return the product with a matrix [out, in], computed as a backend computes its own.

    In the compiled kernels a row of the result is the same bits whatever is computed beside it.

    Args:
        dtype: of the weights; ``None``: that of the backend's.
    """
    dtype = dtype or backend.weight_dtype
    weight = weight.detach().to(backend.device, dtype)
    bias = None if bias is None else bias.detach().to(backend.device, dtype)
    if isinstance(backend, NativeBackend):
        return backend.product(weight, bias)
    return TorchProduct(weight, bias)


def silu_by_row(x: torch.Tensor) -> torch.Tensor:
    """Return silu(x) [N, m], the same bits for a row as alone.

    A CPU computes what fills no vector at the end of a tensor by other instructions.
    """
    if x.device.type != "cpu" or x.requires_grad:
        return F.silu(x)
    return torch.cat([F.silu(row) for row in x.split(1)])
