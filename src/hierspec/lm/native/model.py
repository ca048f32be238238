"""A model that the kernels run in one call, on tensors' addresses."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import (
    POINTER,
    Structure,
    addressof,
    c_double,
    c_float,
    c_int64,
    c_uint8,
    c_void_p,
)
from dataclasses import dataclass, fields

import torch

from hierspec.core.distributions import Uniforms
from hierspec.lm.backend import HiddenStates, LayerParts, ScoredStates, Span
from hierspec.lm.lean.shape import LlamaShape
from hierspec.lm.trees import Branches
from hierspec.sampling.sampler import NoDistributionError, Sampler

from .library import Library
from .matrices import MatrixStruct, PackedMatrix

_MATRICES = ("q", "k", "v", "proj", "gate", "up", "down")
_NORMALISED = {"q", "k", "v", "gate", "up"}  # whose inputs a norm has made even
_ATTENTION, _MLP, _NO_CHOICE = 1, 2, 1  # as in kernels.c
_KEPT = 16  # spans, tokens and rows to score of calls whose arguments are kept
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
        ("num_drafted", c_int64),
        ("draft", c_void_p),
        ("temperature", c_float),
        ("min_p", c_float),
        ("top_k", c_int64),
        ("top_p", c_double),
        *((name, c_void_p) for name in ("uniforms", "probs")),
    ]


class _CallStruct(Structure):
    _fields_ = [
        *((name, c_int64) for name in ("lo", "hi")),
        *((name, c_void_p) for name in ("parts", "spans")),
        *((name, c_int64) for name in ("num_spans", "rows")),
        *((name, c_void_p) for name in ("ids", "inputs", "rotations", "scored")),
        ("num_scored", c_int64),
        ("scores", c_void_p),
        ("num_choices", c_int64),
        ("choice_ids", c_void_p),
    ]


class _Arguments:
    """The arguments of calls with so many spans, tokens and rows to score, whose values change."""

    __slots__ = ("at", "call", "ids", "scored", "spans")

    def __init__(self, num_spans: int, num_ids: int, num_scored: int) -> None:
        self.spans = (_SpanStruct * num_spans)()
        self.ids, self.scored = (c_int64 * num_ids)(), (c_int64 * num_scored)()
        self.call = _CallStruct(
            spans=addressof(self.spans), ids=addressof(self.ids), scored=addressof(self.scored)
        )
        self.at = ctypes.byref(self.call)


class Drafting:
    """What a call drafts after its spans: tokens picked by their scores, each run in its turn.

    Args:
        counts: how many after each span, at least 1.
        num_choices: of the outputs the first so many can be picked.
        names: int64 [outputs], the outputs' tokens; ``None``: their numbers.
        samplers: of each span. Greedy ones pick the best token, others draw from what they keep as
            :func:`hierspec.core.distributions.draw` does.
        uniforms: for each span as many as its count, where tokens are drawn.

    Attributes:
        tokens: the drafts, once the call has returned.
        probs: what each span's were drawn from, float32 [count, num_choices]; ``None`` where they
            were picked.
    """

    def __init__(
        self,
        counts: Sequence[int],
        num_choices: int,
        names: torch.Tensor | None,
        samplers: Sequence[Sampler],
        uniforms: Sequence[Uniforms],
    ) -> None:
        self.num_choices, self.names, self.samplers = num_choices, names, samplers
        self.tokens = [(c_int64 * count)() for count in counts]
        self.uniforms = [(c_double * len(own))(*own) for own in uniforms]
        self.probs = [
            None
            if sampler.greedy
            else torch.empty(count, num_choices, dtype=torch.float32, device=_CPU)
            for count, sampler in zip(counts, samplers, strict=True)
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
        self._num_ids = 0 if embedding is None else embedding.num_out
        self._num_scores = 0 if output is None else output.num_out
        self._row_bytes = shape.hidden_size * torch.float32.itemsize
        self._at = ctypes.byref(self._model)
        # By their shape; a call takes those that it uses out, so that threads share none.
        self._arguments: dict[tuple[int, int, int], _Arguments] = {}

    def run(
        self,
        lo: int,
        hi: int,
        spans: Sequence[Span],
        outputs: Sequence[HiddenStates],
        threads: int,
        *,
        ids: Sequence[int] = (),
        inputs: Sequence[HiddenStates] = (),
        scored: Sequence[ScoredStates] = (),
        rotations: torch.Tensor | None = None,
        parts: Sequence[LayerParts] | None = None,
        attended: torch.Tensor | None = None,
        drafting: Drafting | None = None,
    ) -> torch.Tensor:
        """Run :meth:`.Backend.run`; return scores float32 [rows, outputs].

        Args:
            spans: with caches of ``cache_dtype`` [layers, 1, 2 H_kv, capacity, D].
            outputs, inputs, scored: all states are float32 and contiguous.
            rotations: complex64 [positions, 1, D / 2], contiguous.
            parts: of these layers to run; default: all.
            attended: inputs of queries, keys and values in place of the hidden states, float32
                [N, i, d], each normalised.
            drafting: what is drafted after each span, of which one row is scored. The scores are
                then the last step's.

        Raises:
            NoDistributionError: a token cannot be picked.
            ValueError: rows, tokens or a cache are too short for the spans, or a number is none of
                a layer, a token or a row: the kernels would leave their memory.
        """
        assert attended is None or attended.is_contiguous()
        if lo < 0 or hi > len(self.weights):
            raise ValueError(f"layers {lo} to {hi} of a model that has {len(self.weights)}")
        for states, indices in scored:
            if indices:
                self._validate_rows("states to score", states, min(indices), max(indices) + 1)
        places = [
            rows.data_ptr() + (index - first) * self._row_bytes
            for (rows, first), indices in scored
            for index in indices
        ]
        scores = torch.empty(len(places), self._num_scores, dtype=torch.float32, device=_CPU)
        shape = len(spans), len(ids), len(places)
        arguments = self._arguments.pop(shape, None) or _Arguments(*shape)
        call = arguments.call
        call.lo, call.hi, call.scores = lo, hi, scores.data_ptr()
        call.num_spans, call.num_scored = len(spans), len(places)
        call.rows = num_rows = self._set_spans(arguments, spans, outputs, inputs, drafting)
        if not inputs:
            self._validate_ids(ids, num_rows)
        if attended is not None and len(attended) < num_rows:
            raise ValueError(f"inputs of {len(attended)} rows for spans of {num_rows}")
        attends = lo < hi and (parts is None or any(part.attention for part in parts))
        if attends and any(span.cache is None or span.cache.size(0) < hi for span in spans):
            raise ValueError(f"a span without a cache of {hi} layers, for layers with attention")
        arguments.ids[:], arguments.scored[:] = ids, places
        call.rotations = None if rotations is None else rotations.data_ptr()
        call.inputs = None if attended is None else attended.data_ptr()
        chosen = None
        if parts is not None:
            chosen = (c_uint8 * (hi - lo))()
            for part in parts:
                chosen[part.layer - lo] = _ATTENTION * part.attention | _MLP * part.mlp
        call.parts = None if chosen is None else addressof(chosen)
        if drafting is not None:
            names = drafting.names
            call.num_choices = drafting.num_choices
            call.choice_ids = None if names is None else names.data_ptr()
        if state := self._library.run(self._at, arguments.at, threads):
            if state == _NO_CHOICE:
                raise NoDistributionError(scores[: call.num_scored])
            raise MemoryError(f"no memory for {num_rows} rows")
        if max(shape) <= _KEPT:
            self._arguments[shape] = arguments
        return scores

    def _set_spans(
        self,
        arguments: _Arguments,
        spans: Sequence[Span],
        outputs: Sequence[HiddenStates],
        inputs: Sequence[HiddenStates],
        drafting: Drafting | None,
    ) -> int:
        size, num_rows = self._row_bytes, 0
        for i, ((cache, start, count, branches), states) in enumerate(
            zip(spans, outputs, strict=True)
        ):
            struct = arguments.spans[i]
            num_rows += count
            struct.start, struct.count, end = start, count, start + count
            if drafting is not None:
                end += len(drafting.tokens[i]) - 1
            self._validate_rows("outputs", states, start, end)
            struct.output = states.rows.data_ptr() + (start - states.first) * size
            struct.input = None
            if inputs:
                states = inputs[i]
                self._validate_rows("inputs", states, start, start + count)
                struct.input = states.rows.data_ptr() + (start - states.first) * size
            if cache is not None:
                if start < 0 or end > cache.size(3):
                    raise ValueError(
                        f"tokens {start} to {end} of a cache with room for {cache.size(3)}"
                    )
                struct.cache = cache.data_ptr()
                struct.layer_stride, struct.head_stride = cache.stride(0), cache.stride(2)
            struct.tree = None if branches is None else _tree_array(spans[i], branches)
            struct.num_drafted = 0
            if drafting is not None:
                struct.num_drafted = len(drafting.tokens[i])
                struct.draft = addressof(drafting.tokens[i])
                sampler = drafting.samplers[i]
                struct.temperature, struct.top_p = sampler.temperature, sampler.top_p or 1.0
                struct.top_k = min(sampler.top_k or 0, drafting.num_choices)
                struct.min_p = sampler.min_p or 0.0
                if (probs := drafting.probs[i]) is not None:
                    struct.uniforms = addressof(drafting.uniforms[i])
                    struct.probs = probs.data_ptr()
        return num_rows

    def _validate_rows(self, what: str, states: HiddenStates, start: int, end: int) -> None:
        first, last = states.first, states.first + states.rows.nbytes // self._row_bytes
        if not first <= start <= end <= last:
            raise ValueError(f"{what}: rows {start} to {end}, where there are {first} to {last}")

    def _validate_ids(self, ids: Sequence[int], num_rows: int) -> None:
        if len(ids) < num_rows:
            raise ValueError(f"{len(ids)} tokens for spans of {num_rows}")
        if ids and not 0 <= min(ids) <= max(ids) < self._num_ids:
            raise ValueError(f"tokens {min(ids)} to {max(ids)} of {self._num_ids}")

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
