"""The data type of a model outside the kernels: the checkpoint's, or float32 on a CPU without it.

torch converts every weight whenever it is read where the processor has no arithmetic in a
half-precision type. For one row the wait for memory hides that; for a check of many rows it does
not: 16 rows of a model of 135 M parameters take 12 times as long as one row in torch's emulated
bfloat16, and 2.3 times as long in float32 (Zen 3). Every bfloat16 and float16 number is a float32
number, so widening changes no weight; it takes twice the memory. The compiled kernels convert fast
enough: there the checkpoint's own type is faster for any number of rows
(``benchmarks/results/dtype-auto.json``).
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from hierspec.utils.machine import processor_features

from .backend import backend_of
from .base import CacheUser

# Processor features of which any one suffices, by Linux's names, and torch's where they differ.
_NATIVE_FEATURES = {
    torch.bfloat16: {"avx512_bf16", "amx_bf16", "bf16", "svebf16", "arm_bf16"},
    torch.float16: {"avx512_fp16", "amx_fp16", "asimdhp", "fphp", "fp16"},
}


@cache
def is_native(dtype: torch.dtype) -> bool:
    """Return whether this processor computes in a data type, instead of converting from it."""
    return dtype not in _NATIVE_FEATURES or bool(_NATIVE_FEATURES[dtype] & _features())


def default_dtype(stored: torch.dtype | None, device: torch.device) -> torch.dtype:
    """Return the data type of weights where the user gives none and the kernels do not run them.

    Args:
        stored: the data type of the checkpoint's weights; ``None``: unknown.
    """
    if stored is None:
        return torch.float32
    return stored if device.type != "cpu" or is_native(stored) else torch.float32


def weight_dtype_name(model: CacheUser) -> str:
    """Return ``float32``, …: the data type of a language model's weights; empty for a table.

    Of a GGUF file's model in its own bits the formats are named: ``Q4_K, Q6_K``.
    """
    backend = backend_of(model)
    if getattr(backend, "own_bits", False):
        return getattr(backend, "formats", "")
    return "" if backend is None else str(backend.weight_dtype).removeprefix("torch.")


def describe(dtype: torch.dtype = torch.bfloat16, in_kernels: bool = False) -> str:
    """Describe in one line what ``auto`` chooses for a checkpoint in ``dtype`` on this CPU.

    Args:
        in_kernels: whether there are compiled kernels.
    """
    name = str(dtype).removeprefix("torch.")
    if is_native(dtype):
        return f"{name}: this processor computes in it"
    reason = f"this processor has no {name} arithmetic"
    if in_kernels:
        return f"{name} in the compiled kernels; other architectures in float32, since {reason}"
    return f"float32: {reason}"


def _features() -> frozenset[str]:
    if features := processor_features():
        return features
    # On systems without /proc/cpuinfo.
    capabilities: Any = getattr(torch.cpu, "get_capabilities", dict)()
    return frozenset(name for name, value in capabilities.items() if value is True)
