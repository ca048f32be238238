"""The lean forward's layers.

Shapes: N packed tokens, d hidden, H query and H_kv key/value heads of D dimensions, C capacity.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


class Matrix:
    """``x [n, in] → x @ weight.T + bias [n, out]``."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.weight, self.bias, self.num_weights = weight, bias, weight.numel()

    def dense(self) -> Tensor:
        """Return the weights [out, in] that products are computed with."""
        return self.weight

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


class Norm:
    """RMSNorm of the last dimension, in five elementary operations, then ``dtype``.

    x / √(mean x² + ε) = x / hypot(|x|, √(dε)) · √d; ``weight`` comes with √d in it.
    """

    def __init__(self, weight: Tensor, size: int, eps: float, dtype: torch.dtype) -> None:
        self.weight = weight * size**0.5
        self.eps = torch.full((), (size * eps) ** 0.5, dtype=weight.dtype, device=weight.device)
        self.dtype = dtype

    def __call__(self, x: Tensor) -> Tensor:
        norm = torch.linalg.vector_norm(x, 2.0, [-1], True).hypot_(self.eps)
        return torch.div(x, norm).mul_(self.weight).to(self.dtype)


@dataclass(frozen=True, slots=True)
class Attended:
    """What a call's rows attend to.

    Attributes:
        rotation: of each row, [N, 1, D / 2] complex.
        starts, counts: the first position and the number of rows of each sequence.
        seen: by a layer's ``mask_index`` and by sequence, the first position attended to, and the
            mask from there on, as :meth:`Layer.attend` takes it.
    """

    rotation: Tensor
    starts: Sequence[int]
    counts: Sequence[int]
    seen: Sequence[Sequence[tuple[int, Tensor | None]]]


@dataclass(slots=True, eq=False)
class Layer:
    """One transformer layer. ``mask_index`` is the place of its mask among those of a call."""

    norm: Norm
    qkv: Matrix
    qk_norm: Norm | None
    out: Matrix
    mlp_norm: Norm
    gate_up: Matrix
    down: Matrix
    heads: int
    kv_heads: int
    attention_dtype: torch.dtype
    mask_index: int

    @property
    def dtype(self) -> torch.dtype:
        """That of the inputs of its matrices."""
        return self.norm.dtype

    @property
    def num_weights(self) -> int:
        return sum(each.num_weights for each in (self.qkv, self.out, self.gate_up, self.down))

    def add_attention(
        self, h: Tensor, attended: Attended, caches: Sequence[Tensor], inputs: Tensor | None = None
    ) -> Tensor:
        """Add the attention's output to h [N, d], in place, and return h.

        Args:
            caches: this layer's, one for each sequence, [1, 2 H_kv, C, D].
            inputs: of queries, keys and values in place of h, [N, i, d], each normalised.
        """
        normed = self.norm(h if inputs is None else inputs).flatten(1)
        x = self.rotate(self.qkv(normed), attended.rotation)
        q, kv = x.split([self.heads, 2 * self.kv_heads], 1)
        seen = attended.seen[self.mask_index]
        parts: list[Tensor] = []
        row = 0
        for i, n in enumerate(attended.counts):
            own, new = q.narrow(2, row, n), kv.narrow(2, row, n)
            parts.append(self.attend(own, new, caches[i], attended.starts[i], *seen[i]))
            row += n
        out = parts[0] if len(parts) == 1 else torch.cat(parts, 1)
        return h.add_(self.out(out.reshape(row, -1).to(self.dtype)))

    def add_mlp(self, h: Tensor) -> Tensor:
        """Add the MLP's output to h, in place, and return h."""
        gate_up = self.gate_up(self.mlp_norm(h)).chunk(2, 1)
        return h.add_(self.down(F.silu(gate_up[0]).mul_(gate_up[1])))

    def rotate(self, qkv: Tensor, rotation: Tensor) -> Tensor:
        """Return queries, keys and values, rotated, [1, H + 2 H_kv, N, D]."""
        total, rotated = len(qkv), self.heads + self.kv_heads
        x = qkv.to(self.norm.weight.dtype).view(total, rotated + self.kv_heads, -1)
        if self.qk_norm is not None:
            heads = x.narrow(1, 0, rotated)
            heads.copy_(self.qk_norm(heads))
        pairs = torch.view_as_complex(x.view(total, rotated + self.kv_heads, -1, 2))
        pairs.narrow(1, 0, rotated).mul_(rotation)
        return x.to(self.attention_dtype).transpose(0, 1).unsqueeze(0)

    def attend(
        self, q: Tensor, kv: Tensor, cache: Tensor, start: int, first: int, mask: Tensor | None
    ) -> Tensor:
        """Write one sequence's kv [1, 2 H_kv, n, D] to its cache, and return the attention of
        q [1, H, n, D], [1, n, H, D].

        Without a mask a single row attends to all from ``first``, several rows are causal from 0.
        """
        n = kv.size(2)
        cache.narrow(2, start, n).copy_(kv)
        text = cache.narrow(2, first, start + n - first)
        k, v = text.narrow(1, 0, self.kv_heads), text.narrow(1, self.kv_heads, self.kv_heads)
        grouped = self.heads != self.kv_heads
        if mask is None and n > 1:
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)
            return out.transpose(1, 2)
        if not grouped:
            return F.scaled_dot_product_attention(q, k, v, mask).transpose(1, 2)
        # Query heads that share keys become rows of one head, so that keys are not repeated.
        rows = q.reshape(1, self.kv_heads, (self.heads // self.kv_heads) * n, q.size(3))
        out = F.scaled_dot_product_attention(rows, k, v, mask)
        return out.reshape(1, self.heads, n, -1).transpose(1, 2)
