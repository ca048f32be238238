"""Caches for transformers layers, whose ``update`` writes at the position that *we* choose.

A transformers cache is cropped; ours is a preallocated tensor and a number. Layers read the part up
to the tokens they add, whatever is stored beyond.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch

from hierspec.lm.backend import Span
from hierspec.lm.in_steps import RunsInSteps


class Storage:
    """One sequence's keys and values: per layer [1, H_kv, capacity, d_head], made on first use.

    Shapes are known only when layers run (H_kv and d_head may differ from layer to layer).

    Attributes:
        first_long: the first position that is encoded as in a long text
            (:class:`hierspec.lm.backend.PositionSwitch`); beyond all where none is chosen.
    """

    __slots__ = ("capacity", "first_long", "keys", "values")

    def __init__(self, num_layers: int, capacity: int) -> None:
        self.capacity, self.first_long = capacity, sys.maxsize
        self.keys: list[torch.Tensor | None] = [None] * num_layers
        self.values: list[torch.Tensor | None] = [None] * num_layers

    def write(
        self, layer: int, start: int, k: torch.Tensor, v: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store k, v [1, H_kv, n, d] at ``start``; return views of all from 0 to their end."""
        end = start + k.shape[2]
        keys, values = self.keys[layer], self.values[layer]
        if keys is None or values is None:
            keys = self.keys[layer] = self._tensor_like(k)
            values = self.values[layer] = self._tensor_like(v)
        keys[:, :, start:end] = k
        values[:, :, start:end] = v
        return keys[:, :, :end], values[:, :, :end]

    def _tensor_like(self, x: torch.Tensor) -> torch.Tensor:
        """Return a tensor for ``capacity`` rows like those of x [1, H_kv, n, d]."""
        return x.new_empty(1, x.shape[1], self.capacity, x.shape[3])

    def copy_to(self, destination: Storage, length: int) -> None:
        """Copy the first ``length`` positions to another storage."""
        destination.first_long = self.first_long
        pairs = ((self.keys, destination.keys), (self.values, destination.values))
        for sources, targets in pairs:
            for i, source in enumerate(sources):
                if source is None:
                    continue
                target = targets[i]
                if target is None:
                    target = targets[i] = destination._tensor_like(source)
                target[:, :, :length] = source[:, :, :length]


class StorageBackend(RunsInSteps):
    """The methods of a backend whose caches are :class:`Storage` objects."""

    def copy(self, source: Storage, destination: Storage, length: int) -> None:
        source.copy_to(destination, length)

    def move(self, cache: Storage, indices: Sequence[int], start: int) -> None:
        for tensor in (*cache.keys, *cache.values):
            if tensor is not None:
                tensor[:, :, start : start + len(indices)] = tensor[:, :, list(indices)]


class SpansCache:
    """A transformers cache of packed sequences, as far as layers use it.

    The keys and values of several are read by :class:`.attention.PackedAttention`.
    """

    def __init__(self, spans: Sequence[Span]) -> None:
        self.spans = spans
        self.views: list[tuple[torch.Tensor, torch.Tensor]] = []

    def update(
        self, k: torch.Tensor, v: torch.Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        row, self.views = 0, []
        for cache, start, n, _branches in self.spans:
            rows = slice(row, row + n)
            self.views.append(cache.write(layer_idx, start, k[:, :, rows], v[:, :, rows]))
            row += n
        return self.views[0] if len(self.spans) == 1 else (k, v)
