"""A matrix in the layout that multiplies fastest on this machine.

On CPUs oneDNN can store a weight once in blocks that suit its kernels, instead of reordering it at
every call: 2.4 times faster in bfloat16 at one row, 2–5 times in float32 at several (measured on
Zen 5). torch exposes this only to its own compiler, so the two operators are private: they are
tried once per dtype against ``F.linear``, and not used if anything differs.
"""

from __future__ import annotations

import contextlib
import ctypes
from functools import cache

import torch
import torch.nn.functional as F

# oneDNN chooses blocks for this many rows; float32 blocks for 1 row are slow at 8.
_ROWS_HINT = 16


@cache
def prepacking_works(dtype: torch.dtype) -> bool:
    """Return whether oneDNN's prepacked product exists and is right for this dtype on this CPU."""
    if dtype not in (torch.bfloat16, torch.float32) or not torch.backends.mkldnn.is_available():
        return False
    try:
        if dtype == torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
            return False
        weight = torch.linspace(-1, 1, 32 * 48).view(48, 32).to(dtype)
        x, bias = torch.linspace(-1, 1, 64).view(2, 32).to(dtype), weight[:, 0].contiguous()
        ours = torch.ops.mkldnn._linear_pointwise(x, prepack(weight), bias, "none", [], "")
        theirs = F.linear(x, weight, bias)
        tolerance = 0.1 if dtype == torch.bfloat16 else 1e-4
        return bool(torch.allclose(ours.float(), theirs.float(), atol=tolerance))
    except (RuntimeError, AttributeError, NotImplementedError):
        return False


def prepack(weight: torch.Tensor) -> torch.Tensor:
    """Pack ``weight`` [out, in] for ``torch.ops.mkldnn._linear_pointwise``, only."""
    return torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), _ROWS_HINT)


def padded_rows(num: int) -> int:
    """Return to how many rows, at least ``num``, the input of a oneDNN product is padded.

    oneDNN compiles a kernel for every new number of rows and keeps it: half a megabyte per matrix.
    So a few numbers are used for all, at the price of a few rows of padding.
    """
    if num <= 2:
        return num
    step = 4 if num <= 32 else 16 if num <= 64 else 64
    return -(-num // step) * step


def give_back_memory() -> None:
    """Return freed heap pages to the system (glibc keeps them; elsewhere nothing happens)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)
