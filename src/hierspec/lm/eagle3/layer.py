"""The network's one layer as it drafts: fused matrices, prepacked where the machine can.

It is the lean forward's layer (:mod:`hierspec.lm.lean.layers`) with an input twice as wide: the
embedding of a token, and the hidden state of the token before.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F

from hierspec.lm import poison
from hierspec.lm.backend import Backend, Span
from hierspec.lm.lean.layers import Layer, Matrix, Norm
from hierspec.lm.lean.linear import padded_rows
from hierspec.lm.lean.shape import pair_rows, rotations
from hierspec.utils.threads import OneThread, is_small

from .network import Eagle3Network

_FIRST_ROTATIONS = 2048


class Eagle3Layer:
    """``fc``, the layer and the head over packed rows; a cache is a tensor [1, 2 H_kv, C, S].

    Args:
        backend: of the target, whose device and dtypes are used.
    """

    def __init__(self, network: Eagle3Network, backend: Backend) -> None:
        self.config = config = network.config
        self.device = backend.device
        self.dtype = torch.float64 if backend.dtype == torch.float64 else torch.float32
        self.weight_dtype = backend.weight_dtype
        on_cpu = self.device.type == "cpu"
        self.attention_dtype = self.dtype if on_cpu else self.weight_dtype
        layer, attention = network.midlayer, network.midlayer.self_attn
        size = config.head_dim

        def fuse_weights(*parts: torch.nn.Linear, pairs: int = 0) -> Matrix:
            weights, biases = [], []
            for j, part in enumerate(parts):
                weight, bias = part.weight.detach(), part.bias
                bias = weight.new_zeros(len(weight)) if bias is None else bias.detach()
                weights.append(pair_rows(weight, size) if j < pairs else weight)
                biases.append(pair_rows(bias, size) if j < pairs else bias)
            biased = any(part.bias is not None for part in parts)
            return Matrix(
                torch.cat(weights).to(self.device, self.weight_dtype),
                torch.cat(biases).to(self.device, self.weight_dtype) if biased else None,
            )

        def norm(part: torch.nn.RMSNorm, dtype: torch.dtype) -> Norm:
            weight = part.weight.detach().to(self.device, self.dtype)
            return Norm(weight, len(weight), config.eps, dtype)

        self.fc, self.head = fuse_weights(network.fc), fuse_weights(network.lm_head)
        self.embedding_norm = norm(layer.input_layernorm, self.weight_dtype)
        self.hidden_norm = norm(layer.hidden_norm, self.dtype)
        self.final_norm = norm(network.norm, self.weight_dtype)
        self.layer = Layer(
            norm=self.hidden_norm,
            qkv=fuse_weights(attention.q_proj, attention.k_proj, attention.v_proj, pairs=2),
            qk_norm=None,
            out=fuse_weights(attention.o_proj),
            mlp_norm=norm(layer.post_attention_layernorm, self.weight_dtype),
            gate_up=fuse_weights(layer.mlp.gate_proj, layer.mlp.up_proj),
            down=fuse_weights(layer.mlp.down_proj),
            heads=config.num_heads,
            kv_heads=config.num_kv_heads,
            attention_dtype=self.attention_dtype,
            mask_index=0,
        )
        # Its norm is applied before the embedding is joined, so nothing is cast after it.
        self.layer.dtype = self.weight_dtype
        matrices = (self.layer.qkv, self.layer.out, self.layer.gate_up, self.layer.down, self.head)
        self.num_weights = sum(matrix.num_weights for matrix in matrices)
        self._rotations = torch.empty(0)

    @property
    def num_bytes(self) -> int:
        """Bytes of its matrices."""
        return (self.num_weights + self.fc.num_weights) * self.weight_dtype.itemsize

    def new_cache(self, capacity: int) -> torch.Tensor:
        """Return an empty cache for the keys and values of ``capacity`` rows."""
        shape = (1, 2 * self.config.num_kv_heads, capacity, self.config.head_dim)
        return poison.empty(shape, self.attention_dtype, self.device)

    def fuse(self, features: torch.Tensor) -> torch.Tensor:
        """Combine the target's hidden states [N, 3 d] into [N, d]."""
        with self._threads(len(features)):
            return self.fc(features.to(self.weight_dtype)).to(self.dtype)

    def __call__(
        self, hidden: torch.Tensor, embedded: torch.Tensor, spans: Sequence[Span]
    ) -> torch.Tensor:
        """Return outputs [N, d] of hidden states and embeddings [N, d], the rows of ``spans``."""
        num_rows = len(hidden)
        num_padded = padded_rows(num_rows) if self.head.is_packed else num_rows
        padding = (0, 0, 0, num_padded - num_rows)
        hidden = F.pad(hidden.to(self.dtype), padding)  # a copy, which the layer changes
        embedded = F.pad(embedded.to(self.dtype), padding)
        with self._threads(num_padded):
            normed = self.hidden_norm(hidden)
            if self.config.norm_before_residual:
                hidden = normed.clone()
            inputs = torch.cat((self.embedding_norm(embedded), normed.to(self.weight_dtype)), 1)
            qkv = self.layer.rotate(self.layer.qkv(inputs), self._rotation(spans))
            heads, row = self.config.num_heads, 0
            parts: list[torch.Tensor] = []
            for span in spans:
                cache, start, n, _ = span
                q, kv = qkv[:, :heads, row : row + n], qkv[:, heads:, row : row + n]
                parts.append(self.layer.attend(q, kv, cache, start, 0, self._mask(span)))
                row += n
            attended = torch.cat(parts, 1).reshape(num_rows, -1).to(self.weight_dtype)
            return self.layer.finish(hidden, F.pad(attended, padding))[:num_rows]

    def scores(self, output: torch.Tensor) -> torch.Tensor:
        """Return scores over the draft vocabulary [N, D] of outputs [N, d]."""
        num_rows = len(output)
        num_padded = padded_rows(num_rows) if self.head.is_packed else num_rows
        with self._threads(num_padded):
            padded = F.pad(output, (0, 0, 0, num_padded - num_rows))
            return self.head(self.final_norm(padded))[:num_rows].to(self.dtype)

    def _threads(self, rows: int) -> OneThread:
        size = self.num_weights * self.weight_dtype.itemsize
        return OneThread(self.device.type == "cpu" and is_small(self.num_weights, size, rows))

    def _mask(self, span: Span) -> torch.Tensor | None:
        """Return the mask of a span's rows; None where the layer needs none."""
        _, start, n, branches = span
        if branches is None:
            if n == 1 or start == 0:
                return None
            hidden = torch.ones(n, start + n, dtype=torch.bool).triu_(start + 1)
        else:
            hidden = ~branches.attention_mask(start, n)
        mask = torch.zeros(n, start + n, dtype=self.attention_dtype)
        mask = mask.masked_fill_(hidden, -math.inf).to(self.device)
        groups = self.config.num_heads // self.config.num_kv_heads
        return mask.repeat(groups, 1) if groups > 1 else mask

    def _rotation(self, spans: Sequence[Span]) -> torch.Tensor:
        """Return [N, 1, S / 2] complex, for the rows of ``spans``."""
        end = max(span.start + span.n for span in spans)
        if end > len(self._rotations):
            length = max(_FIRST_ROTATIONS, 1 << (end - 1).bit_length())
            kind = torch.complex128 if self.dtype == torch.float64 else torch.complex64
            table = rotations(self.config.llama, length)
            self._rotations = table.to(self.device, kind)[:, None]
        parts = [
            self._rotations[list(span.positions)]
            if span.branches
            else self._rotations.narrow(0, span.start, span.n)
            for span in spans
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts)
