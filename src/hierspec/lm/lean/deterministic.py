"""The lean forward with the same bits for a token, however many are computed with it.

A matrix product adds in an order that depends on its shape: a row checked among eight differs from
the same row computed alone in its last bits, and a near-tie may fall the other way. Our own kernels
(:mod:`.kernels`) sum a row in one order, whatever is computed with it, and so the layers run in
them, with the weights in their own type (float32 or bfloat16), where there is a C compiler. There
the attention of a tree's token sums in the order of its path, wherever its keys are stored.

Elsewhere, and for the small matrices of exits, all shapes are fixed. Tokens go through the layers
in padded tiles of ``TILE`` rows, and each attends by itself to the positions before it, as in plain
decoding. Everything else is the parent's own code, whose attention sums in the order of storage.

Whether rows of a tile get equal bits is tried when the model is loaded: equal rows must come out of
all layers and the head with equal bits. Where a machine's kernels do not guarantee that, tiles have
one row, which is right by construction and slow.

The bits hold for one machine, number of threads and version of torch.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hierspec.lm.backend import Backend, Linear, Span
from hierspec.lm.weights import WeightSource
from hierspec.utils.machine import available_memory

from . import kernels
from .decoder import LeanBackend
from .kernel_weights import BITS, KernelWeights
from .linear import give_back_memory

TILE = 8
_SHARE_OF_MEMORY = 0.5  # of what is free, for a second copy of a model's weights


class DeterministicLeanBackend(LeanBackend):
    """A :class:`LeanBackend` on a CPU, in tiles.

    Args:
        source, dtype: of the weights, as for the parent.

    Attributes:
        tile: rows computed at once, where no kernels run.
        trees: whether it takes token trees, as the kernels do.
    """

    def __init__(
        self,
        source: WeightSource,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        *,
        tile: int = TILE,
    ) -> None:
        super().__init__(source, dtype, device)
        self.tile = tile
        self._padding_cache = self.new_cache(1)  # one position, written by the padding of tiles
        self._kernels = KernelWeights.build(self)
        if self._kernels is None and tile > 1 and not self._rows_are_equal():
            self.tile = 1
        self.trees = self._kernels is not None
        form = f"in tiles of {self.tile}" if self._kernels is None else "in compiled kernels"
        self.fast_path += f", deterministic {form}"

    @classmethod
    def of(cls, backend: LeanBackend, weights: KernelWeights) -> DeterministicLeanBackend:
        """Return a loaded model in the kernels; all but their copy of its weights is shared."""
        new = object.__new__(cls)
        vars(new).update(vars(backend))
        new.tile, new._kernels, new.trees = TILE, weights, True
        new._padding_cache = new.new_cache(1)
        new.fast_path += ", deterministic in compiled kernels"
        return new

    def layers(self, h: torch.Tensor, lo: int, hi: int, spans: Sequence[Span]) -> torch.Tensor:
        if self._kernels is not None and len(h):
            rotations = self._rotations_for(spans)
            return self._kernels.layers(h, lo, hi, rotations, spans, torch.get_num_threads())
        rows = [Span(span.cache, span.start + i, 1) for span in spans for i in range(span.n)]
        out: list[torch.Tensor] = []
        for start in range(0, len(rows), self.tile):
            tile_spans = rows[start : start + self.tile]
            padding = [Span(self._padding_cache, 0, 1)] * (self.tile - len(tile_spans))
            tile = self._pad_tile(h[start : start + self.tile])
            out.append(super().layers(tile, lo, hi, [*tile_spans, *padding])[: len(tile_spans)])
        return torch.cat(out) if out else h.clone()

    def head(self, h: torch.Tensor, unembed: Linear | None = None) -> torch.Tensor:
        if not len(h):
            return super().head(h, unembed)
        if self._kernels is not None and unembed is None:
            return self.over_vocabulary(self._kernels.head(h, torch.get_num_threads()))
        head, parts = super().head, h.split(self.tile)
        return torch.cat([head(self._pad_tile(part), unembed)[: len(part)] for part in parts])

    def _rows(self, num: int) -> int:
        return num

    def _pad_tile(self, rows: torch.Tensor) -> torch.Tensor:
        """Return a copy of the rows, padded to a tile."""
        tile = rows.new_zeros(self.tile, rows.shape[1])
        tile[: len(rows)] = rows
        return tile

    def _rows_are_equal(self) -> bool:
        """Return whether a row gets the same bits at every place in a tile."""
        generator = torch.Generator().manual_seed(0)
        row = torch.randn(1, self.hidden_size, generator=generator, dtype=self.dtype)
        tile, spans = row.repeat(self.tile, 1), [Span(self._padding_cache, 0, 1)] * self.tile
        with torch.inference_mode():
            hidden = super().layers(tile, 0, self.num_layers, spans)
            scores = super().head(row.repeat(self.tile, 1))
        return bool((hidden == hidden[:1]).all()) and bool((scores == scores[:1]).all())


def deterministic_backend(backend: Backend) -> Backend:
    """Return a model in the kernels, where they can run it; else the backend itself."""
    if type(backend) is not LeanBackend or _obstacle(backend) is not None:
        return backend
    weights = KernelWeights.build(backend)
    give_back_memory()
    return backend if weights is None else DeterministicLeanBackend.of(backend, weights)


def why_rows_differ(backend: Backend) -> str | None:
    """Return why the bits of a token may depend on how many are computed with it.

    ``None`` where they do not; else the rest of a sentence that begins with the model's name.
    """
    if isinstance(backend, DeterministicLeanBackend):
        return None
    if not isinstance(backend, LeanBackend):
        return "runs on transformers' own layers"
    return _obstacle(backend) or 'was loaded without "deterministic": true'


def _obstacle(backend: LeanBackend) -> str | None:
    """Return why the kernels cannot run a lean model; ``None`` where they can."""
    if backend.device.type != "cpu":
        return f"runs on {backend.device}, and the compiled kernels on CPUs"
    if backend.weight_dtype not in BITS:
        dtype = str(backend.weight_dtype).removeprefix("torch.")
        return f"has {dtype} weights, and the compiled kernels run float32 and bfloat16"
    if kernels.load() is None:
        return "needs the compiled kernels, and no C compiler was found (or HIERSPEC_KERNELS is 0)"
    num_weights = backend.num_layers * backend._weights_per_layer + backend._lm_head.num_weights
    num_bytes = num_weights * backend.weight_dtype.itemsize
    if num_bytes > _SHARE_OF_MEMORY * available_memory():
        return f"needs {num_bytes / 1e9:.1f} GB more memory to run in the compiled kernels"
    return None
