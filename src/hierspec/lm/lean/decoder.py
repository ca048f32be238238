"""A fast forward for Llama-shaped models: the same weights, fewer and cheaper operations.

It differs from transformers' modules in the following, each because it was measured to pay:

- one matrix product for q, k and v, one for gate and up;
- rotary embedding as one complex multiplication: rows of the q and k projections are reordered at
  load time so that a pair to rotate lies side by side (q·k does not depend on the order);
- attention and its cache in float32 on CPUs even for bfloat16 weights: torch's bfloat16 kernel is
  5 times slower there for a single query; the residual stream is float32, too;
- RMSNorm in five elementary operations, half the time of ``F.rms_norm`` on CPUs. Its weight is
  *not* folded into the next matrix: that would save 1 µs a norm and round bfloat16 weights anew;
- a cache whose rewind is a number, no mask for one token, several sequences side by side;
- one thread for work that is done before a second one has woken up.

Against transformers: float32 within 5e-6 and float64 within 1e-12 of the largest score (the order
of additions differs; transformers rounds its norms to float32 even then, which alone makes 2e-7);
bfloat16 a fifth closer to the float32 scores than transformers', as less is rounded, and one call
for n tokens differs less from n calls for one. The head is computed in the weights' dtype, then
widened. (Compare with a model loaded in bfloat16: ``model.to(torch.bfloat16)`` rounds transformers'
rotary frequencies, which shows after a hundred positions.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F

from hierspec.errors import HierspecError
from hierspec.lm.backend import LayerParts, Linear, Span
from hierspec.lm.cudnn import without_cudnn
from hierspec.lm.in_steps import RunsInSteps
from hierspec.lm.weights import WeightSource
from hierspec.utils.graphs import send
from hierspec.utils.machine import give_back_memory
from hierspec.utils.reads import pick
from hierspec.utils.threads import OneThread, is_small

from .layers import Attended
from .loader import LeanLoader
from .shape import LlamaShape, rotations

_INITIAL_LENGTH = 2048


class LeanBackend(RunsInSteps):
    """A Llama-shaped model as a :class:`~hierspec.lm.backend.Backend`.

    A cache is one tensor [layers, 1, 2 H_kv, capacity, D]: keys, then values.

    Attributes:
        attends_to_all: whether every layer attends to the whole text.

    Args:
        source: the weights, read layer by layer.
        dtype: of the weights: float32, bfloat16, float16 or float64.
        shape: of the model; ``None``: as the source's configuration says.

    Raises:
        HierspecError: the model is not of a shape it runs.
        KeyError: the source lacks a weight.
    """

    trees = True
    watch: Any = None  # over a loaded model's weights: :class:`hierspec.lm.loaded.Watch`

    def __init__(
        self,
        source: WeightSource,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        shape: LlamaShape | None = None,
    ) -> None:
        shape = shape or LlamaShape.from_config(source.config)
        self._describe(source, shape, dtype, torch.device(device))
        # Accelerators have fast attention in half precision; CPUs have not.
        self.attention_dtype = self.dtype if self.device.type == "cpu" else dtype
        self._windows = shape.distinct_windows
        loader = LeanLoader(source, shape, self)
        self._embedding, self.stack, self._norm, self._lm_head = loader.load()
        self._scored = loader.scored
        self._num_bytes = loader.num_weights * dtype.itemsize
        self._weights_per_layer = self.stack[0].num_weights
        give_back_memory()

    def _describe(
        self, source: WeightSource, shape: LlamaShape, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.config, self.shape, self.name = source.config, shape, source.name
        self.device, self.weight_dtype = device, dtype
        self.dtype = torch.float64 if dtype == torch.float64 else torch.float32
        self.num_layers, self.hidden_size = shape.num_layers, shape.hidden_size
        self.max_length, self.vocab_size = shape.max_length, shape.vocab_size
        self.attends_to_all = shape.distinct_windows == (None,)
        self._rotations = torch.empty(0, device="cpu")

    @property
    def num_bytes(self) -> int:
        """Bytes of the weights that are its own."""
        return self._num_bytes

    def new_cache(self, capacity: int) -> torch.Tensor:
        shape = (self.num_layers, 1, 2 * self.shape.num_kv_heads, capacity, self.shape.head_dim)
        return torch.empty(shape, dtype=self.attention_dtype, device=self.device)

    def copy(self, source: torch.Tensor, destination: torch.Tensor, length: int) -> None:
        destination[:, :, :, :length] = source[:, :, :, :length]

    def move(self, cache: torch.Tensor, indices: Sequence[int], start: int) -> None:
        cache[:, :, :, start : start + len(indices)] = pick(cache, indices, 3)

    def embed(self, ids: torch.Tensor, spans: Sequence[Span]) -> torch.Tensor:
        return F.embedding(ids, self._embedding).to(self.dtype)

    def layers(
        self,
        h: torch.Tensor,
        lo: int,
        hi: int,
        spans: Sequence[Span],
        inputs: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """See :meth:`hierspec.lm.backend.Backend.layers`.

        Args:
            inputs: of queries, keys and values in place of h, [N, ``shape.num_inputs``, d].
        """
        parts = [LayerParts(i, True, True) for i in range(lo, hi)]
        return self.run_parts(h, parts, spans, inputs)

    @without_cudnn
    def run_parts(
        self,
        h: torch.Tensor,
        parts: Sequence[LayerParts],
        spans: Sequence[Span],
        inputs: torch.Tensor | None = None,
    ) -> torch.Tensor:
        attended, h = self._attended_by(spans), h.clone()
        with self._limit_threads(self._weights_per_layer, len(h)):
            for i, attention, mlp in parts:
                layer = self.stack[i]
                if attention:
                    caches = [span.cache[i] for span in spans]
                    h = layer.add_attention(h, attended, caches, inputs)
                if mlp:
                    h = layer.add_mlp(h)
        return h

    def queries(self, h: torch.Tensor, layer: int, spans: Sequence[Span]) -> torch.Tensor:
        """Return the rotated queries [H, N, D] of a layer whose input is ``h`` [N, d]."""
        own = self.stack[layer]
        return own.rotate(own.qkv(own.norm(h)), self._rotations_at(spans))[0, : own.heads]

    def keys_and_values(
        self, cache: torch.Tensor, layer: int, length: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return views of a layer's first keys, rotated, and values, [H_kv, length, D] each."""
        keys, values = cache[layer, 0, :, :length].split(self.shape.num_kv_heads)
        return keys, values

    def capacity(self, cache: torch.Tensor) -> int:
        """Return how many tokens a cache has room for."""
        return cache.shape[3]

    def head(self, h: torch.Tensor, unembed: Linear | None = None) -> torch.Tensor:
        if unembed is not None:
            return unembed(self._norm(h)).to(self.dtype)
        # A second thread is still awake if the layers have used it.
        with self._limit_threads(self._weights_per_layer + self._lm_head.num_weights, len(h)):
            return self.over_vocabulary(self._lm_head(self._norm(h)).to(self.dtype))

    def over_vocabulary(self, scores: torch.Tensor) -> torch.Tensor:
        """Return scores [N, V] from those of the head's rows, −∞ for tokens without a row."""
        if self._scored is None:
            return scores
        logits = scores.new_full((len(scores), self.vocab_size), -math.inf)
        return logits.index_copy_(1, self._scored, scores)

    def unembedding(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        if self._scored is not None:
            raise HierspecError(
                f"{self.name} scores only a part of its vocabulary: heads cannot be trained on it"
            )
        return self._output_rows(ids), None

    def _output_rows(self, ids: torch.Tensor) -> torch.Tensor:
        return self._lm_head.dense()[ids]

    def _limit_threads(self, num_weights: int, rows: int) -> OneThread:
        size = num_weights * self.weight_dtype.itemsize
        return OneThread(self.device.type == "cpu" and is_small(num_weights, size, rows))

    def _attended_by(self, spans: Sequence[Span]) -> Attended:
        return Attended(
            self._rotations_at(spans),
            [span.start for span in spans],
            [span.n for span in spans],
            [[self._attended(span, window) for span in spans] for window in self._windows],
        )

    def _attended(self, span: Span, window: int | None) -> tuple[int, torch.Tensor | None]:
        """Return the first position that a span's rows attend to, and the mask from there on.

        If the mask is ``None``, a single row attends to every position from the first on; several
        rows use causal attention and start at position 0.
        """
        _, start, n, branches = span
        end = start + n
        if branches is not None:
            hidden = ~branches.attention_mask(start, n, window)
            mask = torch.zeros(n, end, dtype=self.attention_dtype, device=hidden.device)
            mask.masked_fill_(hidden, -math.inf)
            return 0, self._repeat_for_groups(mask)
        first = 0 if window is None else max(0, start + 1 - window)
        if n == 1 or (start == 0 and (window is None or n <= window)):
            return first, None
        shape, dtype = (n, end), self.attention_dtype
        mask = torch.full(shape, -math.inf, dtype=dtype, device=self.device).triu_(start + 1)
        mask = mask[:, first:]
        if window is not None and end > window:
            rows = torch.arange(start, end, device=self.device)[:, None]
            columns = torch.arange(first, end, device=self.device)[None, :]
            mask.masked_fill_(columns <= rows - window, -math.inf)
        return first, self._repeat_for_groups(mask)

    def _repeat_for_groups(self, mask: torch.Tensor) -> torch.Tensor:
        """Repeat a mask [n, end]: the query heads of one key head are stacked as its rows."""
        groups = self.shape.num_heads // self.shape.num_kv_heads
        if groups > 1:
            mask = mask.repeat(groups, 1)
        if self.device.type == "cpu":
            return mask
        if mask.device.type == "cpu":  # of a tree
            mask = send(mask, self.device)
        # Accelerators need rows that begin at aligned addresses; a slice's do not.
        return mask.contiguous()

    def _rotations_at(self, spans: Sequence[Span]) -> torch.Tensor:
        """Return [N, 1, D / 2] complex, for the positions of ``spans``."""
        table = self._rotations_for(spans)
        parts = [
            table.narrow(0, span.start, span.n)
            if span.branches is None
            else pick(table, span.positions)
            for span in spans
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _rotations_for(self, spans: Sequence[Span]) -> torch.Tensor:
        end = 0
        for span in spans:
            # Without branches the last row has the highest position; with them any row may.
            last = span.start + span.n if span.branches is None else 1 + max(span.positions)
            end = max(end, last)
        return self.rotations_to(end)

    def rotations_to(self, end: int) -> torch.Tensor:
        """Return the rotations by position, [at least ``end``, 1, D / 2] complex."""
        table = self._rotations
        if end > table.shape[0]:  # faster than its length
            length = max(_INITIAL_LENGTH, 1 << (end - 1).bit_length())
            kind = torch.complex128 if self.dtype == torch.float64 else torch.complex64
            self._rotations = table = rotations(self.config, length).to(self.device, kind)[:, None]
        return table
