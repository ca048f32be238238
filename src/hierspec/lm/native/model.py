"""A model's layers, run by the kernels on tensors' addresses."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import POINTER, Structure, c_float, c_int64, c_uint8, c_void_p
from dataclasses import dataclass, fields

import torch

from hierspec.lm.backend import LayerParts, Span
from hierspec.lm.lean.shape import LlamaShape
from hierspec.lm.trees import Branches

from .library import Library
from .matrices import MatrixStruct, PackedMatrix

_MATRICES = ("q", "k", "v", "proj", "gate", "up", "down")
_NORMALISED = {"q", "k", "v", "gate", "up"}  # whose inputs a norm has made even
_ATTENTION, _MLP = 1, 2  # as in kernels.c
CACHE_DTYPES = (torch.float32, torch.bfloat16, torch.float16)  # as in attention.h


class _LayerStruct(Structure):
    _fields_ = [
        *((name, MatrixStruct) for name in _MATRICES),
        *((name, c_void_p) for name in ("norm", "mlp_norm", "head_norm")),
        ("window", c_int64),
    ]


class _ModelStruct(Structure):
    _fields_ = [
        *((name, c_int64) for name in ("hidden", "inner", "heads", "kv_heads", "dim", "kind")),
        ("eps", c_float),
        ("head_eps", c_float),
        ("layers", POINTER(_LayerStruct)),
    ]


class _SpanStruct(Structure):
    _fields_ = [
        ("cache", c_void_p),
        *((name, c_int64) for name in ("layer_stride", "head_stride", "start", "count")),
        ("tree", POINTER(c_int64)),
    ]


@dataclass(frozen=True, slots=True, eq=False)
class LayerWeights:
    """A layer's matrices and norms.

    Rows of ``q`` and ``k`` are paired: those that rotate together lie side by side
    (:func:`hierspec.lm.lean.shape.pair_rows`). Norms are float32: ``norm`` and ``mlp_norm`` [d]
    times √d; ``head_norm`` [H + H_kv, D] times √D, or ``None``.
    """

    q: PackedMatrix
    k: PackedMatrix
    v: PackedMatrix
    proj: PackedMatrix
    gate: PackedMatrix
    up: PackedMatrix
    down: PackedMatrix
    norm: torch.Tensor
    mlp_norm: torch.Tensor
    head_norm: torch.Tensor | None

    def matrices(self) -> dict[str, PackedMatrix]:
        return {name: getattr(self, name) for name in _MATRICES}


class NativeLayers:
    """Layers that the kernels run in one call.

    Args:
        cache_dtype: of keys and values, one of :data:`CACHE_DTYPES`.
        narrow_inputs: whether products of codes that follow a norm take their inputs in 8 bits,
            not 16: they cost less, most where there are several rows.
    """

    def __init__(
        self,
        library: Library,
        layers: Sequence[LayerWeights],
        shape: LlamaShape,
        cache_dtype: torch.dtype,
        *,
        narrow_inputs: bool = False,
    ) -> None:
        self._library, self.weights = library, tuple(layers)  # C has addresses of their memory
        array = (_LayerStruct * len(layers))()
        for struct, layer, window in zip(array, layers, shape.windows, strict=True):
            for name, matrix in layer.matrices().items():
                setattr(struct, name, library.struct(matrix))
                getattr(struct, name).narrow = narrow_inputs and name in _NORMALISED
            struct.norm, struct.mlp_norm = layer.norm.data_ptr(), layer.mlp_norm.data_ptr()
            struct.head_norm = None if layer.head_norm is None else layer.head_norm.data_ptr()
            struct.window = window or 0
        self._model = _ModelStruct(
            hidden=shape.hidden_size,
            inner=shape.intermediate_size,
            heads=shape.num_heads,
            kv_heads=shape.num_kv_heads,
            dim=shape.head_dim,
            kind=CACHE_DTYPES.index(cache_dtype),
            eps=shape.eps * shape.hidden_size,
            head_eps=shape.eps * shape.head_dim,
            layers=array,
        )

    def run(
        self,
        h: torch.Tensor,
        lo: int,
        hi: int,
        rotations: torch.Tensor,
        spans: Sequence[Span],
        threads: int,
        parts: Sequence[LayerParts] | None = None,
        inputs: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Run layers lo … hi − 1 on h [N, d], unchanged, and return [N, d]; write to the caches.

        Args:
            rotations: complex64 [positions, 1, D / 2], contiguous.
            spans: with caches of ``cache_dtype`` [layers, 1, 2 H_kv, capacity, D].
            parts: of these layers to run; default: all.
            inputs: of queries, keys and values in place of h, float32 [N, i, d], each normalised.
        """
        assert inputs is None or inputs.is_contiguous()
        h, rows = h.clone(memory_format=torch.contiguous_format), h.size(0)
        if not rows:
            return h
        array, chosen = _span_array(spans), None
        if parts is not None:
            chosen = (c_uint8 * (hi - lo))()
            for part in parts:
                chosen[part.layer - lo] = _ATTENTION * part.attention | _MLP * part.mlp
        failed = self._library.layers(
            *(ctypes.byref(self._model), lo, hi, chosen, h.data_ptr()),
            *(None if inputs is None else inputs.data_ptr(), rows),
            *(rotations.data_ptr(), array, len(spans), threads),
        )
        if failed:
            raise MemoryError(f"no memory for {rows} rows")
        return h

    @property
    def num_bytes(self) -> int:
        return sum(m.num_bytes for layer in self.weights for m in layer.matrices().values())


assert tuple(field.name for field in fields(LayerWeights))[: len(_MATRICES)] == _MATRICES


def _span_array(spans: Sequence[Span]) -> ctypes.Array[_SpanStruct]:
    array = (_SpanStruct * len(spans))()
    for struct, span in zip(array, spans, strict=True):
        cache = span.cache
        struct.cache = cache.data_ptr()
        struct.layer_stride, struct.head_stride = cache.stride(0), cache.stride(2)
        struct.start, struct.count = span.start, span.n
        if span.branches is not None:
            struct.tree = _tree_array(span, span.branches)
    return array


def _tree_array(span: Span, branches: Branches) -> ctypes.Array[c_int64]:
    """Return the positions of a span's rows and what each attends to, as C reads it."""
    paths = [branches.path_to(span.start + i) for i in range(span.n)]
    numbers: list[int] = []
    for position, (text, path) in zip(span.positions, paths, strict=True):
        numbers += [position, text, len(path)]
    for _, path in paths:
        numbers += path
    return (c_int64 * len(numbers))(*numbers)
