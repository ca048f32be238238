"""A lean model's own weights in the compiled kernels, and draft models that run few rows in them.

A small model that drafts computes one row at a time, and torch's overhead takes longer than its
products: two layers of width 192 and 8,192 scores take .8 ms where the kernels take .25 (SmolLM2's
sibling, two Zen 5 cores). The kernels are slower than oneDNN with many rows, and need a second copy
of the weights in memory; so prompts still run in oneDNN, and large models as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from hierspec.lm.backend import Backend, Linear, Span

from . import kernels, panels
from .decoder import LeanBackend
from .kernel_layers import KernelLayers
from .linear import give_back_memory

BITS = {torch.float32: 32, torch.bfloat16: 16}
MAX_ROWS = 32  # of a call that runs in the kernels
MAX_BYTES = 256 << 20  # of weights that are copied


class KernelWeights:
    """A lean model's layers and head with its own weights in the kernels' layout."""

    def __init__(self, backend: LeanBackend, library: Any, bits: int) -> None:
        self._library = library
        self.layers = KernelLayers(library, backend.stack, backend.shape, bits)
        self._output = panels.Panels(backend._lm_head.dense(), bits=bits)
        self._norm = backend._norm

    @classmethod
    def build(cls, backend: LeanBackend) -> KernelWeights | None:
        """Copy a model's weights; return None without kernels, or without any for its dtype."""
        bits = BITS.get(backend.weight_dtype)
        library = kernels.load() if bits else None
        return cls(backend, library, bits) if bits and library else None

    @property
    def num_bytes(self) -> int:
        """Bytes of the matrices."""
        return self.layers.num_bytes + self._output.num_bytes

    def head(self, h: torch.Tensor, threads: int) -> torch.Tensor:
        """Return the head's scores of the norm of h [N, d], float32."""
        return panels.head(self._library, self._output, self._norm, h, threads)


class DraftLeanBackend(LeanBackend):
    """A lean model on a CPU whose calls of few rows run in the kernels; all else is shared.

    Attributes:
        kernel_bytes: bytes of the weights in the kernels' layout.
    """

    def __init__(self, backend: LeanBackend, weights: KernelWeights) -> None:
        vars(self).update(vars(backend))
        self._kernels = weights
        self.kernel_bytes = weights.num_bytes
        self.fast_path += ", few rows in compiled kernels"

    def layers(self, h: torch.Tensor, lo: int, hi: int, spans: Sequence[Span]) -> torch.Tensor:
        if not 0 < len(h) <= MAX_ROWS:
            return super().layers(h, lo, hi, spans)
        threads = self._num_threads((hi - lo) * self._weights_per_layer, len(h))
        return self._kernels.layers(h, lo, hi, self._rotations_for(spans), spans, threads)

    def head(self, h: torch.Tensor, unembed: Linear | None = None) -> torch.Tensor:
        if unembed is not None or not 0 < len(h) <= MAX_ROWS:
            return super().head(h, unembed)
        # As in the parent's head: a second thread is awake if the layers have used it.
        threads = self._num_threads(self._weights_per_layer + self._lm_head.num_weights, len(h))
        return self.over_vocabulary(self._kernels.head(h, threads))


def draft_backend(backend: Backend) -> Backend:
    """Return the backend for drafting with a model: with few rows in the kernels if they support
    the model and it is small; else the backend itself."""
    if type(backend) is not LeanBackend or backend.device.type != "cpu":
        return backend
    num_weights = backend.num_layers * backend._weights_per_layer + backend._lm_head.num_weights
    if num_weights * backend.weight_dtype.itemsize > MAX_BYTES:
        return backend
    weights = KernelWeights.build(backend)
    give_back_memory()
    return backend if weights is None else DraftLeanBackend(backend, weights)
