"""A lean model's layers, or their attention alone, run by the kernels on tensors' addresses."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from ctypes import POINTER, Structure, c_float, c_int64, c_void_p
from typing import Any

import torch

from hierspec.lm.backend import Span
from hierspec.lm.trees import Branches

from .layers import Layer, Matrix, Norm, Stack
from .panels import MatrixStruct, Panels
from .shape import LlamaShape


class LayerStruct(Structure):
    _fields_ = [
        *((name, MatrixStruct) for name in ("qkv", "proj", "gate", "up", "down")),
        *((name, c_void_p) for name in ("norm", "mlp_norm", "head_norm")),
        ("window", c_int64),
    ]


class ModelStruct(Structure):
    _fields_ = [
        *((name, c_int64) for name in ("hidden", "inner", "heads", "kv_heads", "dim")),
        ("eps", c_float),
        ("head_eps", c_float),
        ("layers", POINTER(LayerStruct)),
    ]


class SpanStruct(Structure):
    _fields_ = [
        ("cache", c_void_p),
        *((name, c_int64) for name in ("layer_stride", "head_stride", "start", "count")),
        ("tree", POINTER(c_int64)),
    ]


class KernelLayers:
    """A lean model's layers, their matrices in 32, 16, 8 or 4 bits, run by the kernels.

    Args:
        stack: the lean model's, in any dtype; it is copied.
        bits: of a weight.
    """

    def __init__(
        self, library: ctypes.CDLL, stack: Stack, shape: LlamaShape, bits: int = 8
    ) -> None:
        self._library, self._bits = library, bits
        self._keep_alive: list[object] = []  # memory that C has addresses of
        layers: list[Any] = list(stack.layers)
        first: Layer = layers[0]
        array = (LayerStruct * len(layers))()
        for struct, layer in zip(array, layers, strict=True):
            struct.qkv, struct.proj = self._matrix(layer.qkv), self._matrix(layer.out)
            struct.gate, struct.up = self._matrix(layer.gate_up, 0), self._matrix(layer.gate_up, 1)
            struct.down = self._matrix(layer.down)
            struct.norm, struct.mlp_norm = self._weight(layer.norm), self._weight(layer.mlp_norm)
            struct.head_norm = self._weight(layer.qk_norm)
            struct.window = shape.distinct_windows[layer.mask_index] or 0
        self._model = ModelStruct(
            hidden=shape.hidden_size,
            inner=shape.intermediate_size,
            heads=shape.num_heads,
            kv_heads=shape.num_kv_heads,
            dim=shape.head_dim,
            eps=float(first.norm.eps) ** 2,
            head_eps=0.0 if first.qk_norm is None else float(first.qk_norm.eps) ** 2,
            layers=array,
        )

    def __call__(
        self,
        h: torch.Tensor,
        lo: int,
        hi: int,
        rotations: torch.Tensor,
        spans: Sequence[Span],
        threads: int,
    ) -> torch.Tensor:
        """Run layers lo … hi − 1 on h [N, d], unchanged, and return [N, d]; write to the caches.

        Args:
            rotations: complex64 [positions, 1, D / 2], contiguous.
            spans: with caches float32 [layers, 1, 2 H_kv, capacity, D].
        """
        h = h.contiguous().clone()
        array = _span_array(spans)
        failed = self._library.hierspec_layers(
            *(self._model, lo, hi, h.data_ptr(), len(h), rotations.data_ptr()),
            *(array, len(spans), threads),
        )
        if failed:
            raise MemoryError(f"no memory for {len(h)} rows")
        return h

    @property
    def num_bytes(self) -> int:
        """Bytes of the matrices."""
        return sum(item.num_bytes for item in self._keep_alive if isinstance(item, Panels))

    def _matrix(self, matrix: Matrix, half: int | None = None) -> MatrixStruct:
        weight, bias = matrix.dense(), matrix.bias
        if half is not None:
            weight = weight.chunk(2)[half]
            bias = None if bias is None else bias.chunk(2)[half]
        panels = Panels(weight, bias, self._bits)
        self._keep_alive.append(panels)
        return panels.struct()

    def _weight(self, norm: Norm | None) -> int | None:
        if norm is None:
            return None
        weight = norm.weight.detach().float().contiguous()
        self._keep_alive.append(weight)
        return weight.data_ptr()


class KernelAttention:
    """Attention of several sequences in one call, where torch needs one for each.

    Args:
        stack: a lean model's; only the norms of its heads are used.
    """

    def __init__(self, library: ctypes.CDLL, stack: Stack, shape: LlamaShape) -> None:
        layers: list[Any] = list(stack.layers)
        self._library, first = library, layers[0]
        self._norms = [
            None if layer.qk_norm is None else layer.qk_norm.weight.detach().contiguous()
            for layer in layers
        ]
        array = (LayerStruct * len(layers))()
        for struct, layer, norm in zip(array, layers, self._norms, strict=True):
            struct.head_norm = None if norm is None else norm.data_ptr()
            struct.window = shape.distinct_windows[layer.mask_index] or 0
        self._model = ModelStruct(
            heads=shape.num_heads,
            kv_heads=shape.num_kv_heads,
            dim=shape.head_dim,
            head_eps=0.0 if first.qk_norm is None else float(first.qk_norm.eps) ** 2,
            layers=array,
        )

    def for_spans(
        self, spans: Sequence[Span], rotations: torch.Tensor, threads: int
    ) -> Callable[[int, torch.Tensor], torch.Tensor]:
        """Return the attention of these sequences, (layer, [N, (H + 2 H_kv) D] float32) → [N, H D].

        It writes keys and values to the caches, float32 [layers, 1, 2 H_kv, capacity, D].

        Args:
            rotations: complex64 [positions, 1, D / 2], contiguous.
        """
        array, model = _span_array(spans), self._model

        def attend(layer: int, qkv: torch.Tensor) -> torch.Tensor:
            attended = qkv.new_empty(len(qkv), model.heads * model.dim)
            failed = self._library.hierspec_attention(
                *(model, layer, qkv.data_ptr(), len(qkv), rotations.data_ptr()),
                *(array, len(array), attended.data_ptr(), threads),
            )
            if failed:
                raise MemoryError(f"no memory for {len(qkv)} rows")
            return attended

        return attend


def _span_array(spans: Sequence[Span]) -> Any:
    array = (SpanStruct * len(spans))()
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
