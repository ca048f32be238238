"""A matrix in the layout that multiplies fastest on this machine.

On CPUs oneDNN stores a weight blocked for its kernels once, instead of reading it in a layout it
has to fight at every call: 2.4 times faster in bfloat16 at one row, 2–5 times in float32 at
several (measured on Zen 5). torch exposes this only to its own compiler, so the two operators are
private: they are tried once per dtype against ``F.linear``, and left alone if anything is off.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache

import torch
import torch.nn.functional as F

Linear = Callable[[torch.Tensor], torch.Tensor]

# Blocking is chosen for this many rows; float32 kernels chosen for 1 row are slow at 8.
_ROWS_HINT = 16
# Below this many elements a float32 matrix–vector product is faster through MKL (3–10 µs a call
# against 11–19); the second copy then costs at most 1 MB.
_SMALL = 1 << 18


@cache
def prepacking_works(dtype: torch.dtype) -> bool:
    """Whether oneDNN's prepacked linear is there and right for this dtype on this CPU."""
    if dtype not in (torch.bfloat16, torch.float32) or not torch.backends.mkldnn.is_available():
        return False
    try:
        if dtype == torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
            return False
        weight = torch.linspace(-1, 1, 32 * 48).view(48, 32).to(dtype)
        x, bias = torch.linspace(-1, 1, 64).view(2, 32).to(dtype), weight[:, 0].contiguous()
        ours, theirs = _prepacked(weight, bias)(x).float(), F.linear(x, weight, bias).float()
        return bool(torch.allclose(ours, theirs, atol=0.1 if dtype == torch.bfloat16 else 1e-4))
    except (RuntimeError, AttributeError, NotImplementedError):
        return False


def linear(weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
    """``x [n, in] → x @ weight.T + bias [n, out]`` for ``weight`` [out, in]; may keep a copy."""
    if weight.device.type != "cpu" or not prepacking_works(weight.dtype):
        return _plain(weight, bias)
    packed = _prepacked(weight, bias)
    if weight.dtype == torch.float32 and weight.numel() <= _SMALL:
        plain = _plain(weight, bias)
        return lambda x: plain(x) if x.shape[0] == 1 else packed(x)
    return packed


def _plain(weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
    return lambda x: F.linear(x, weight, bias)


def _prepacked(weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
    packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), _ROWS_HINT)
    run = torch.ops.mkldnn._linear_pointwise.default
    return lambda x: run(x, packed, bias, "none", [], "")


def give_back_memory() -> None:
    """Return freed heap pages to the system (glibc keeps them; elsewhere nothing happens)."""
    try:
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    except (OSError, AttributeError):
        pass
