"""A lean model's own weights in the compiled kernels, and drafts of few rows in them.

A small model that drafts sees one row at a time, and torch's operations take longer than its
products: two layers of width 192 and 8,192 scores take 1.2 ms where the kernels take 0.4 (two Zen 5
cores, weights not in the caches). The kernels are slower than oneDNN with many rows, and the
weights lie in memory once more; so prompts are read as before, and large models run as before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from hierspec.lm.backend import Linear, Span
from hierspec.lm.weights import WeightSource

from . import kernels
from .decoder import LeanBackend

_BITS = {torch.float32: 32, torch.bfloat16: 16}
_FEW = 32  # rows
_MOST_BYTES = 256 << 20  # of weights that are held twice


class OwnWeights:
    """A lean model's layers and head with its own weights in the kernels' layout."""

    def __init__(self, backend: LeanBackend, library: Any, bits: int) -> None:
        layers: list[Any] = list(backend.stack.layers)
        sizes = backend.shape.head_dim, backend._windows
        self._library = library
        self.layers = kernels.KernelLayers(library, layers, *sizes, bits)
        self._output = kernels.Panels(backend._lm_head.plain(), bits=bits)
        self._norm = backend._norm

    @classmethod
    def of(cls, backend: LeanBackend) -> OwnWeights | None:
        """``None``: there are no kernels here, or none for weights of its dtype."""
        bits = _BITS.get(backend.weight_dtype)
        library = kernels.load() if bits else None
        return cls(backend, library, bits) if bits and library else None

    def head(self, h: torch.Tensor, threads: int) -> torch.Tensor:
        """Norm and output matrix: h [N, d] → what the head's rows give, float32."""
        return kernels.head(self._library, self._output, self._norm, h, threads)


class DraftLean(LeanBackend):
    """A :class:`LeanBackend` that drafts: on a CPU, calls of few rows run in the kernels."""

    def __init__(
        self,
        source: WeightSource,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__(source, dtype, device)
        weights = self.num_layers * self._layer_weights + self._lm_head.num_weights
        small = self.device.type == "cpu" and weights * dtype.itemsize <= _MOST_BYTES
        self._kernels = OwnWeights.of(self) if small else None
        if self._kernels is not None:
            self.fast_path += ", few rows in compiled kernels"

    def layers(self, h: torch.Tensor, lo: int, hi: int, spans: Sequence[Span]) -> torch.Tensor:
        if self._kernels is None or not 0 < len(h) <= _FEW:
            return super().layers(h, lo, hi, spans)
        threads = self._num_threads((hi - lo) * self._layer_weights, len(h))
        return self._kernels.layers(h, lo, hi, self._rotations_of(spans), spans, threads)

    def head(self, h: torch.Tensor, unembed: Linear | None = None) -> torch.Tensor:
        if self._kernels is None or unembed is not None or not 0 < len(h) <= _FEW:
            return super().head(h, unembed)
        threads = self._num_threads(self._lm_head.num_weights, len(h))
        return self.over_all(self._kernels.head(h, threads))
