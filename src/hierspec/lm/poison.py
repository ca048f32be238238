"""A debug mode in which cache without values holds NaN, so that a read of it shows in the scores.

Caches are allocated without being written to, and a rewind leaves what it forgets in memory. Who
reads either gets numbers that look plausible and differ from run to run. The environment variable
``HIERSPEC_POISON_CACHES=1`` turns the mode on; it is slow.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import Any

import torch

enabled = os.environ.get("HIERSPEC_POISON_CACHES", "0") != "0"


def empty(size: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return a tensor for values to come: uninitialised, or NaN in this mode."""
    if enabled:
        return torch.full(tuple(size), math.nan, dtype=dtype, device=device)
    return torch.empty(tuple(size), dtype=dtype, device=device)


def fill_layer(cache: Any, layer: int, start: int, value: float) -> None:
    """Overwrite what a cache holds of a layer from position ``start`` on."""
    if isinstance(cache, torch.Tensor):  # [layers, …, capacity, D]
        tensors = [cache[layer]]
    else:  # as in :mod:`hierspec.lm.hf.cache`
        tensors = [cache.keys[layer], cache.values[layer]]
    for tensor in tensors:
        if tensor is not None:
            tensor[..., start:, :] = value
