"""A Llama-shaped model on a CPU, in the compiled kernels: see :class:`NativeBackend`."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from hierspec.core.distributions import (
    DenseDistributions,
    Distributions,
    OneHotDistributions,
    Uniforms,
)
from hierspec.errors import HierspecError
from hierspec.lm.backend import HasBackend, HiddenStates, LayerParts, Linear, ScoredStates, Span
from hierspec.lm.base import SampledDraft
from hierspec.lm.lean.decoder import LeanBackend
from hierspec.lm.lean.loader import LeanLoader
from hierspec.lm.lean.shape import LlamaShape, unsupported_reason
from hierspec.lm.weights import HEAD, StoredSource, WeightSource
from hierspec.sampling.sampler import Sampler
from hierspec.utils.machine import give_back_memory
from hierspec.utils.threads import is_small

from .formats import FORMATS
from .kept_panels import KeptPanels, panels_key
from .library import Library, why_none
from .library import load as load_kernels
from .matrices import PackedMatrix, is_packable
from .model import Drafting, LayerWeights, NativeModel

FORMS = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}
# Copies in fewer bits, and their output matrix: in many tokens' vocabularies few scores matter.
COPY_FORMS = {8: "Q8_0", 6: "Q6_1", 5: "Q5_1", 4: "Q4_1"}
_LARGE_VOCAB = 8192
Rounded = Callable[[int, Mapping[str, PackedMatrix]], Mapping[str, PackedMatrix]]


class NativeBackend(LeanBackend):
    """A Llama-shaped model as a :class:`~hierspec.lm.backend.Backend`, in the compiled kernels.

    Each weight is stored once, in the kernels' layout, a tied embedding included. A token's
    scores are the same bits alone, in a check, in a tree or in a batch.

    Attributes:
        own_bits: whether they are those of its file.

    Args:
        source: the weights, read and packed one after the other.
        dtype: of the weights: float32, bfloat16 or float16. The residual stream and attention are
            float32; inputs of products with bfloat16 weights are rounded to it.
        cache_dtype: of cached keys and values, float32, bfloat16 or float16 (beyond 65,504: that);
            default: bfloat16 with such weights, as in transformers; float16 in own bits, but
            float32 where all matrices are; else float32.
        own_bits: keep matrices in the bits in which the source has them; ``dtype`` is then that of
            heads that are trained on the model, and of matrices in types that no kernel has.
        shape: of the model; ``None``: as the source's configuration says.

    Raises:
        HierspecError: the model is not of a shape that runs here.
        KeyError: the source lacks a weight.
    """

    def __init__(
        self,
        source: WeightSource,
        dtype: torch.dtype,
        library: Library,
        cache_dtype: torch.dtype | None = None,
        *,
        own_bits: bool = False,
        shape: LlamaShape | None = None,
    ) -> None:
        shape = shape or LlamaShape.from_config(source.config)
        self._describe(source, shape, dtype, torch.device("cpu"))
        self.own_bits, self.library = own_bits, library
        rounded = isinstance(source, StoredSource) and not own_bits
        self.file = source if rounded else None  # whose bits copies keep
        files: list[Path] = getattr(source, "weight_files", [])
        what = (replace(shape, biased=frozenset()), str(dtype), own_bits)  # biases are not kept
        self._kept_as = panels_key(files, *what)
        with KeptPanels(self._kept_as, sum(file.stat().st_size for file in files)) as kept:
            loader = _Loader(source, shape, self, own_bits, kept)
            self._scored, width = loader.scored, shape.hidden_size
            # The largest matrices first, while there is little beside what is packed of them.
            self._embedding = None
            if shape.embeds:
                self._embedding = loader.matrix("model.embed_tokens", shape.vocab_size, width)
            self._refined = None  # scores near the best in more bits
            self._output_of_copies: tuple[PackedMatrix, PackedMatrix | None] | None = None
            self._owns_embedding = loader.has_own_head and shape.embeds  # or: the output's rows
            output = loader.output() if loader.has_own_head else self._embedding
            assert output is not None
            self._output = output
            layers = [loader.packed_layer(i) for i in range(shape.num_layers)]
            if self._kept_as != panels_key(files, *what):  # others took their place meanwhile
                kept.close()
                self._kept_as = None
        self.attention_dtype = cache_dtype or _cache_dtype(layers, dtype, own_bits)
        self._final_norm = loader.scaled_norm("model.norm", width)
        loader.validate_all_used()
        give_back_memory()
        self._set_layers(layers)

    def _set_layers(self, weights: Sequence[LayerWeights], narrow_inputs: bool = False) -> None:
        """Set the layers, between the embedding and the output that it has."""
        self._layers = NativeModel(
            *(self.library, weights, self.shape, self.attention_dtype),
            narrow_inputs=narrow_inputs,
            embedding=self._embedding,
            final_norm=self._final_norm,
            output=self._output,
            refined=self._refined,
        )
        layers = [layer.matrices().values() for layer in weights]
        self._weights_per_layer = sum(matrix.num_weights for matrix in layers[0])
        used = (*(matrix for layer in layers for matrix in layer), self._output)
        self.formats = ", ".join(dict.fromkeys(matrix.format.name for matrix in used))

    @property
    def layer_weights(self) -> tuple[LayerWeights, ...]:
        return self._layers.weights

    @property
    def num_bytes(self) -> int:
        """Bytes of the matrices that are its own: a copy shares the embedding."""
        owned = self._embedding if self._owns_embedding else None
        return self.num_bytes_read + (0 if owned is None else owned.num_bytes)

    @property
    def num_bytes_read(self) -> int:
        """Bytes of the matrices that a token's pass reads, but for rows of an embedding."""
        refined = 0 if self._refined is None else self._refined.num_bytes
        return self._layers.num_bytes + self._output.num_bytes + refined

    def run(
        self,
        lo: int,
        hi: int,
        spans: Sequence[Span],
        outputs: Sequence[HiddenStates],
        *,
        ids: Sequence[int] = (),
        inputs: Sequence[HiddenStates] = (),
        scored: Sequence[ScoredStates] = (),
        parts: Sequence[LayerParts] | None = None,
        attended: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """See :meth:`hierspec.lm.backend.Backend.run`: all of it is one call of the kernels.

        Args:
            parts: of these layers to run; default: all.
            attended: inputs of queries, keys and values in place of the hidden states, [N,
                ``shape.num_inputs``, d].
        """
        num_rows, num_scored = sum([span.n for span in spans]), sum([len(at) for _, at in scored])
        num_weights = (hi - lo if parts is None else len(parts)) * self._weights_per_layer
        if scored:  # a second thread is awake if the layers have used it
            num_weights = (num_weights or self._weights_per_layer) + self._output.num_weights
        scores = self._layers.run(
            *(lo, hi, spans, outputs, self._threads(num_weights, max(num_rows, num_scored))),
            ids=ids,
            inputs=inputs,
            scored=scored,
            rotations=self._rotations_for(spans) if lo < hi and spans else None,
            parts=parts,
            attended=attended,
        )
        return scores if self._scored is None else self.over_vocabulary(scores)

    def draft(
        self,
        hi: int,
        spans: Sequence[Span],
        outputs: Sequence[HiddenStates],
        ids: Sequence[int],
        counts: Sequence[int],
        samplers: Sequence[Sampler],
        uniforms: Sequence[Uniforms],
    ) -> list[SampledDraft]:
        """See :meth:`hierspec.lm.backend.DraftingBackend.draft`: all is one call of the kernels."""
        names, width = self._scored, min(samplers[0].vocab_size, self.vocab_size)
        num_choices = width if names is None else int((names < width).sum())  # they ascend
        drafting = Drafting(counts, num_choices, names, samplers, uniforms)
        last = zip(outputs, spans, strict=True)
        end = max(span.start + span.n + n for span, n in zip(spans, counts, strict=True))
        self._layers.run(
            *(0, hi, spans, outputs),
            self._threads(hi * self._weights_per_layer + self._output.num_weights, len(ids)),
            ids=ids,
            scored=[(states, (span.start + span.n - 1,)) for states, span in last],
            rotations=self.rotations_to(end),
            drafting=drafting,
        )

        def rows(tokens: list[int], probs: torch.Tensor | None) -> Distributions:
            if probs is None:
                return OneHotDistributions(tuple(tokens))
            if names is not None:
                whole = probs.new_zeros(len(tokens), width)
                probs = whole.index_copy_(1, names[:num_choices], probs)
            return DenseDistributions(probs)

        drafts = zip(map(list, drafting.tokens), drafting.probs, strict=True)
        return [(tokens, rows(tokens, probs)) for tokens, probs in drafts]

    def embed(self, ids: torch.Tensor, spans: Sequence[Span]) -> torch.Tensor:
        h = torch.empty(len(ids), self.hidden_size, dtype=self.dtype, device=self.device)
        self.run(0, 0, [Span(None, 0, len(ids))], [HiddenStates(h)], ids=ids.tolist())
        return h

    def run_parts(
        self,
        h: torch.Tensor,
        parts: Sequence[LayerParts],
        spans: Sequence[Span],
        inputs: torch.Tensor | None = None,
    ) -> torch.Tensor:
        if not parts:
            return h.clone()
        h = h.contiguous()
        out, row = torch.empty_like(h), 0
        before, after = list[HiddenStates](), list[HiddenStates]()
        for span in spans:
            before.append(HiddenStates(h, span.start - row))
            after.append(HiddenStates(out, span.start - row))
            row += span.n
        lo, hi = parts[0].layer, parts[-1].layer + 1
        self.run(lo, hi, spans, after, inputs=before, parts=parts, attended=inputs)
        return out

    def queries(self, h: torch.Tensor, layer: int, spans: Sequence[Span]) -> torch.Tensor:
        weights, shape = self._layers.weights[layer], self.shape
        threads = self._threads(self._weights_per_layer, len(h))
        eps = shape.eps * shape.hidden_size
        q = self.library.multiply(weights.q, h, threads, weights.norm, eps)
        q = q.view(len(h), shape.num_heads, shape.head_dim)
        if weights.head_norm is not None:
            size = q.square().sum(-1, keepdim=True).add_(shape.eps * shape.head_dim).rsqrt_()
            q = q * size * weights.head_norm[: shape.num_heads]
        pairs = torch.view_as_complex(q.unflatten(-1, (-1, 2)).contiguous())
        rotated = torch.view_as_real(pairs * self._rotations_at(spans)).flatten(-2)
        return rotated.transpose(0, 1)

    def head(self, h: torch.Tensor, unembed: Linear | None = None) -> torch.Tensor:
        eps = self.shape.eps * self.hidden_size
        if unembed is not None:
            assert isinstance(unembed, NativeProduct)
            return unembed(h, self._final_norm, eps)
        h = h.float().contiguous()
        return self.run(0, 0, (), (), scored=[(HiddenStates(h), range(len(h)))])

    def _output_rows(self, ids: torch.Tensor) -> torch.Tensor:
        return self.library.rows(self._output, ids).to(self.weight_dtype)

    def product(self, weight: torch.Tensor, bias: torch.Tensor | None) -> NativeProduct:
        return NativeProduct(self, PackedMatrix.of(weight, bias=bias))

    def copy_in(self, bits: int, rounded: Rounded | None = None) -> NativeBackend:
        """Return the same model in fewer bits; embedding, norms and caches are shared.

        So are matrices that take no more bits as they are. Those of a file in few bits that the
        model has in more are read from it again: rounded anew, they would be other numbers. Where
        weights are rounded, products that follow a norm take their inputs in 8 bits, not 16: that
        is cheaper, most where several tokens are checked, and costs less accuracy than the weights'
        own bits.

        Args:
            bits: 8, 6, 5 or 4; a large vocabulary's scores are computed in 4 bits, and near the
                best again in 8.
            rounded: a layer's number and matrices → its matrices in fewer bits, asked in order;
                default: each weight rounded by itself.
        """
        form = COPY_FORMS[bits]
        copied = copy.copy(self)
        copied.own_bits = False
        as_it_is = rounded is None and self.file is None and self._kept_as is not None
        copied._kept_as = f"{self._kept_as}-{form}" if as_it_is else None
        with KeptPanels(copied._kept_as, self._layers.num_bytes * bits // 16) as kept:
            file = self._as_in_file()
            layers = list[LayerWeights]()
            for i, layer in enumerate(self._layers.weights):
                source = (layer if file is None else file.packed_layer(i)).matrices()
                matrices = (
                    {
                        name: self._fewer_bits(kept, f"{i} {name}", one, form)
                        for name, one in source.items()
                    }
                    if rounded is None
                    else rounded(i, source)
                )
                layers.append(replace(layer, **matrices))
        if self._output_of_copies is None:
            self._output_of_copies = self._output_in_fewer_bits()
        copied._output, copied._refined = self._output_of_copies
        copied._owns_embedding = False
        copied.weight_dtype, copied.name = torch.int8, f"{self.name}:int{bits}"
        copied._set_layers(layers, narrow_inputs=file is None)
        give_back_memory()
        return copied

    def _as_in_file(self) -> _Loader | None:
        """Return what reads the matrices in a file's bits, if the model has them in more."""
        return None if self.file is None else _Loader(self.file, self.shape, self, True)

    def _fewer_bits(
        self, kept: KeptPanels, name: str, matrix: PackedMatrix, form: str
    ) -> PackedMatrix:
        if matrix.format.bits_per_weight <= FORMATS[form].bits_per_weight:
            return matrix
        self.library.prepare(form)
        pack = partial(matrix.in_fewer_bits, form, self.library.rows)
        return kept.matrix(f"{name} {form}", matrix.bias_of_outputs, pack)

    def _output_in_fewer_bits(self) -> tuple[PackedMatrix, PackedMatrix | None]:
        """Return the matrix of the scores in 8 bits; of many tokens in 4, and in 8 for the best."""
        file = self._as_in_file()
        output = self._output if file is None else file.output()
        key = f"{self._kept_as}-output" if file is None and self._kept_as else None
        with KeptPanels(key, 2 * output.num_weights) as kept:
            fine = self._fewer_bits(kept, "output", output, "Q8_0")
            if output.num_out < _LARGE_VOCAB:
                return fine, None
            coarse = self._fewer_bits(kept, "output", output, "Q4_1")
        return (fine, None) if coarse is fine else (coarse, fine)

    def threads_after_layers(self, num_weights: int, rows: int) -> int:
        """Return how many threads a product uses; a second one is awake if the layers used it."""
        return self._threads(self._weights_per_layer + num_weights, rows)

    def _threads(self, num_weights: int, rows: int) -> int:
        """Return how many threads a call uses, for all its products alike."""
        size = num_weights * self.weight_dtype.itemsize
        return 1 if is_small(num_weights, size, rows) else torch.get_num_threads()


class NativeProduct:
    """x [N, in] → x · Wᵀ + bias [N, out], float32, with a matrix beside a model's own."""

    def __init__(self, backend: NativeBackend, matrix: PackedMatrix) -> None:
        self._backend, self._matrix = backend, matrix
        self.num_bytes = matrix.num_bytes

    def __call__(
        self, x: torch.Tensor, norm: torch.Tensor | None = None, eps: float = 0.0
    ) -> torch.Tensor:
        """See :meth:`~.library.Library.multiply`, which normalises x where there is a norm."""
        threads = self._backend.threads_after_layers(self._matrix.num_weights, len(x))
        return self._backend.library.multiply(self._matrix, x, threads, norm, eps)


def why_no_kernels(config: Any, dtype: torch.dtype, device: torch.device) -> str | None:
    """Return why the kernels run no model of this configuration, dtype and device here.

    ``None`` if they do.
    """
    if reason := unsupported_reason(config):
        return reason
    if device.type != "cpu":
        return f"it runs on {device}"
    if dtype not in FORMS:
        return f"its weights are in {str(dtype).removeprefix('torch.')}"
    return None if load_kernels() else why_none()


def why_rows_differ(backend: Any) -> str | None:
    """Return why the bits of a token may depend on how many are computed with it.

    ``None`` where they do not; else the rest of a sentence that begins with the model's name.
    """
    if isinstance(backend, HasBackend):  # it leaves out parts of another
        backend = backend.backend
    if isinstance(backend, NativeBackend):
        return None
    if (reason := getattr(backend, "rows_differ", None)) is not None:
        return reason
    if not isinstance(backend, LeanBackend):
        return "runs on transformers' own layers"
    if backend.device.type != "cpu":
        return f"runs on {backend.device}"
    if load_kernels() is None:
        return f"runs without the compiled kernels ({why_none()})"
    return "runs outside the compiled kernels, for its dtype or as its backend says"


def _cache_dtype(layers: Sequence[LayerWeights], dtype: torch.dtype, own: bool) -> torch.dtype:
    if not own:
        return torch.bfloat16 if dtype == torch.bfloat16 else torch.float32
    forms = {matrix.format.name for layer in layers for matrix in layer.matrices().values()}
    return torch.float32 if forms == {"F32"} else torch.float16


class _Loader(LeanLoader):
    """Reads a model's weights from their source and packs them, so that none is there twice."""

    def __init__(
        self,
        source: WeightSource,
        shape: LlamaShape,
        backend: NativeBackend,
        own_bits: bool,
        kept: KeptPanels | None = None,
    ) -> None:
        super().__init__(source, shape, backend)
        self.library = backend.library
        self.kept = kept or KeptPanels(None, 0)
        self.form = FORMS[backend.weight_dtype]
        self.own = source if own_bits and isinstance(source, StoredSource) else None

    @property
    def has_own_head(self) -> bool:
        return HEAD in self.names or not self.source.config.tie_word_embeddings

    @property
    def num_scored(self) -> int:
        return self.shape.vocab_size if self.scored is None else len(self.scored)

    def matrix(
        self,
        name: str,
        rows: int,
        width: int,
        order: Callable[[torch.Tensor], torch.Tensor] = lambda rows: rows,
    ) -> PackedMatrix:
        """Read a matrix and its bias, if it has one; ``order`` changes the order of its rows."""
        bias, kind = None, name.rpartition(".")[2].removesuffix("_proj")
        if kind in self.shape.biased:
            bias = order(self.vector(f"{name}.bias", rows))
        name = f"{name}.weight"

        def pack() -> PackedMatrix:
            stored = None if self.own is None else self.own.stored(name)
            if stored is None or not is_packable(stored):
                return PackedMatrix.of(order(self.read(name, rows, width)), self.form, bias)
            self.use(name, (len(stored.rows), stored.width), (rows, width))
            try:
                return PackedMatrix.of_stored(stored._replace(rows=order(stored.rows)), bias)
            except ValueError as error:
                raise HierspecError(
                    f"{self.source.name} is damaged ({name} {error}): fetch it again"
                ) from None

        self.unused.discard(name)  # where it is kept, its source is not read
        matrix = self.kept.matrix(name, bias, pack)
        self.library.prepare(matrix.format.name)  # while the next are packed
        return matrix

    def vector(self, name: str, size: int) -> torch.Tensor:
        """Read a norm's weight or a bias, float32; rounded like the matrices but in own bits."""
        read = self.get if self.own is None else self.read
        return read(name, size).float()

    def scaled_norm(self, name: str, size: int, num: int = 1) -> torch.Tensor:
        """Read the weight of a norm, or of ``num`` side by side, float32, times √size."""
        return self.vector(f"{name}.weight", num * size) * size**0.5

    def output(self) -> PackedMatrix:
        """Read the matrix of the scores, the embedding's where it is tied."""
        name = "lm_head" if self.has_own_head else "model.embed_tokens"
        return self.matrix(name, self.num_scored, self.shape.hidden_size)

    def packed_layer(self, i: int) -> LayerWeights:
        prefix, shape = f"model.layers.{i}.", self.shape
        width, inner = shape.hidden_size, shape.intermediate_size
        heads, kv = (n * shape.head_dim for n in (shape.num_heads, shape.num_kv_heads))
        attention, mlp, num = prefix + "self_attn.", prefix + "mlp.", shape.num_inputs
        return LayerWeights(
            q=self.matrix(attention + "q_proj", heads, num * width, self.pair),
            k=self.matrix(attention + "k_proj", kv, num * width, self.pair),
            v=self.matrix(attention + "v_proj", kv, num * width),
            proj=self.matrix(attention + "o_proj", width, heads),
            gate=self.matrix(mlp + "gate_proj", inner, width),
            up=self.matrix(mlp + "up_proj", inner, width),
            down=self.matrix(mlp + "down_proj", width, inner),
            norm=self.scaled_norm(prefix + "input_layernorm", width, num),
            mlp_norm=self.scaled_norm(prefix + "post_attention_layernorm", width),
            head_norm=self.head_norms(attention) if shape.qk_norm else None,
        )

    def head_norms(self, attention: str) -> torch.Tensor:
        """Return Qwen3's norms of the query and key heads as one, [H + H_kv, D]."""
        size, counts = self.shape.head_dim, (self.shape.num_heads, self.shape.num_kv_heads)
        q, k = (self.pair(self.scaled_norm(f"{attention}{x}_norm", size)) for x in "qk")
        return torch.cat([x.expand(n, -1) for x, n in zip((q, k), counts, strict=True)])
