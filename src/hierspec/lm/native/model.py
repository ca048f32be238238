"""A model that the kernels run in one call, on tensors' addresses."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import POINTER, Structure, addressof, c_float, c_int64, c_uint8, c_void_p
from dataclasses import dataclass, fields

import torch

from hierspec.lm.backend import LayerParts, Scored, Span, States
from hierspec.lm.lean.shape import LlamaShape
from hierspec.lm.trees import Branches

from .library import Library
from .matrices import MatrixStruct, PackedMatrix

_MATRICES = ("q", "k", "v", "proj", "gate", "up", "down")
_NORMALISED = {"q", "k", "v", "gate", "up"}  # whose inputs a norm has made even
_ATTENTION, _MLP = 1, 2  # as in kernels.c
_CPU = torch.device("cpu")
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
        *((name, POINTER(MatrixStruct)) for name in ("embedding", "output", "refined")),
        ("final_norm", c_void_p),
    ]


class _SpanStruct(Structure):
    _fields_ = [
        ("cache", c_void_p),
        *((name, c_int64) for name in ("layer_stride", "head_stride", "start", "count")),
        ("tree", POINTER(c_int64)),
        *((name, c_void_p) for name in ("input", "output")),
    ]


class _CallStruct(Structure):
    _fields_ = [
        *((name, c_int64) for name in ("lo", "hi")),
        *((name, c_void_p) for name in ("parts", "spans")),
        *((name, c_int64) for name in ("num_spans", "rows")),
        *((name, c_void_p) for name in ("ids", "inputs", "rotations", "scored")),
        ("num_scored", c_int64),
        ("scores", c_void_p),
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


class NativeModel:
    """Layers, and what is before and behind them, that the kernels run in one call.

    Args:
        cache_dtype: of keys and values, one of :data:`CACHE_DTYPES`.
        narrow_inputs: whether products of codes that follow a norm take their inputs in 8 bits,
            not 16: they cost less, most where there are several rows.
        final_norm: float32 [d], times √d.
        refined: ``output`` in more bits, in which scores near the best are computed again, those of
            one panel in sixteen at most.
    """

    def __init__(
        self,
        library: Library,
        layers: Sequence[LayerWeights],
        shape: LlamaShape,
        cache_dtype: torch.dtype,
        *,
        narrow_inputs: bool = False,
        embedding: PackedMatrix | None = None,
        final_norm: torch.Tensor | None = None,
        output: PackedMatrix | None = None,
        refined: PackedMatrix | None = None,
    ) -> None:
        self._library, self.weights = library, tuple(layers)  # C has addresses of their memory
        self._ends = (embedding, final_norm, output, refined)
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
            final_norm=None if final_norm is None else final_norm.data_ptr(),
        )
        for name, matrix in (("embedding", embedding), ("output", output), ("refined", refined)):
            if matrix is not None:
                setattr(self._model, name, ctypes.pointer(library.struct(matrix)))
        self._num_scores = 0 if output is None else output.num_out
        self._row_bytes = shape.hidden_size * torch.float32.itemsize

    def run(
        self,
        lo: int,
        hi: int,
        spans: Sequence[Span],
        outputs: Sequence[States],
        threads: int,
        *,
        ids: Sequence[int] = (),
        inputs: Sequence[States] = (),
        scored: Sequence[Scored] = (),
        rotations: torch.Tensor | None = None,
        parts: Sequence[LayerParts] | None = None,
        attended: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Run :meth:`.Backend.run`; return scores float32 [rows, outputs].

        Args:
            spans: with caches of ``cache_dtype`` [layers, 1, 2 H_kv, capacity, D].
            outputs, inputs, scored: all states are float32 and contiguous.
            rotations: complex64 [positions, 1, D / 2], contiguous.
            parts: of these layers to run; default: all.
            attended: inputs of queries, keys and values in place of the hidden states, float32
                [N, i, d], each normalised.
        """
        assert attended is None or attended.is_contiguous()
        size, num_rows = self._row_bytes, 0
        array = (_SpanStruct * len(spans))()
        for i, (span, output) in enumerate(zip(spans, outputs, strict=True)):
            struct, (cache, start, count, branches) = array[i], span
            num_rows += count
            struct.start, struct.count = start, count
            struct.output = output[0].data_ptr() + (start - output[1]) * size
            if inputs:
                struct.input = inputs[i][0].data_ptr() + (start - inputs[i][1]) * size
            if cache is not None:
                struct.cache = cache.data_ptr()
                struct.layer_stride, struct.head_stride = cache.stride(0), cache.stride(2)
            if branches is not None:
                struct.tree = _tree_array(span, branches)
        places = [
            rows.data_ptr() + (index - first) * size
            for (rows, first), indices in scored
            for index in indices
        ]
        scores = torch.empty(len(places), self._num_scores, dtype=torch.float32, device=_CPU)
        addresses, tokens = (c_void_p * len(places))(*places), (c_int64 * len(ids))(*ids)
        call = _CallStruct(
            *(lo, hi, None, addressof(array), len(spans), num_rows, addressof(tokens)),
            *(None if attended is None else attended.data_ptr(),),
            *(None if rotations is None else rotations.data_ptr(),),
            *(addressof(addresses), len(places), scores.data_ptr()),
        )
        if parts is not None:
            chosen = (c_uint8 * (hi - lo))()
            for part in parts:
                chosen[part.layer - lo] = _ATTENTION * part.attention | _MLP * part.mlp
            call.parts = addressof(chosen)
        if self._library.run(ctypes.byref(self._model), ctypes.byref(call), threads):
            raise MemoryError(f"no memory for {num_rows} rows")
        return scores

    @property
    def num_bytes(self) -> int:
        return sum(m.num_bytes for layer in self.weights for m in layer.matrices().values())


assert tuple(field.name for field in fields(LayerWeights))[: len(_MATRICES)] == _MATRICES


def _tree_array(span: Span, branches: Branches) -> ctypes.Array[c_int64]:
    """Return the positions of a span's rows and what each attends to, as C reads it."""
    paths = [branches.path_to(span.start + i) for i in range(span.n)]
    numbers: list[int] = []
    for position, (text, path) in zip(span.positions, paths, strict=True):
        numbers += [position, text, len(path)]
    for _, path in paths:
        numbers += path
    return (c_int64 * len(numbers))(*numbers)
