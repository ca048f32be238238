"""What the host reads from an accelerator, and what it sends there, in as few waits as possible."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from .graphs import upload


class Reads:
    """Numbers that the host will read: the first look at any brings over all that were added."""

    def __init__(self) -> None:
        self._waiting: list[Read] = []

    def add(self, numbers: torch.Tensor) -> Read:
        """Add numbers that float64 holds; all of one device."""
        read = Read(self, numbers)
        self._waiting.append(read)
        return read

    def fetch(self) -> None:
        """Bring all over that is not here yet, with one wait."""
        waiting, self._waiting = self._waiting, []
        parts = [read.numbers for read in waiting]
        here = torch.cat([part.double().flatten() for part in parts]).cpu()
        sizes = [part.numel() for part in parts]
        for read, own in zip(waiting, here.split_with_sizes(sizes), strict=True):
            read.here = own.view(*read.numbers.shape).numpy()


class Read:
    """Some numbers among :class:`Reads`."""

    __slots__ = ("_reads", "here", "numbers")

    def __init__(self, reads: Reads, numbers: torch.Tensor) -> None:
        self._reads, self.numbers = reads, numbers
        self.here: np.ndarray | None = None

    def look(self) -> np.ndarray:
        """Return the numbers, float64."""
        if self.here is None:
            self._reads.fetch()
            assert self.here is not None
        return self.here


def sent(values: Any, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return numbers of the host as a tensor on a device, which is not waited for."""
    if device.type == "cpu":
        return torch.tensor(values, dtype=dtype, device=device)
    out = torch.empty(np.shape(values), dtype=dtype, device=device)
    upload(out, values)
    return out


def pick(tensor: torch.Tensor, indices: Sequence[int], dim: int = 0) -> torch.Tensor:
    """Return ``tensor[indices]``, by a list that an accelerator is not waited for."""
    return tensor.index_select(dim, sent(indices, torch.long, tensor.device))
