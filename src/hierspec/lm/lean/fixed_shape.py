"""The lean forward for calls of fixed shape: B sequences × n tokens, positions on the device.

Calls of one shape differ only in the contents of tensors, so a call can be recorded as a CUDA graph
(:mod:`hierspec.utils.graphs`) and nothing in it waits for the host. Attention is one call for all
sequences, over the first C' columns of their caches, with a mask made from the positions.

The caches of all sequences are rows of one *arena*. Its last column is scratch: padding tokens have
that position and write there, and nothing reads it. Columns beyond a sequence's text hold zeros or
stale numbers, always finite, and the mask gives them weight 0.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .decoder import LeanBackend
from .layers import Layer


class FixedShapeForward:
    """The pieces of a call, over rows 0 … B − 1 of an arena; ``positions`` are [B, n]."""

    def __init__(self, backend: LeanBackend) -> None:
        self.backend = backend
        self.stack = [layer for layer in backend.stack.layers if isinstance(layer, Layer)]
        self.heads, self.kv_heads = backend.shape.num_heads, backend.shape.num_kv_heads
        # The backend makes a longer table when it needs one; recorded calls still read this one.
        self.rotations = backend.rotations_to(1)

    def new_arena(self, rows: int, columns: int) -> Tensor:
        """Return zeros [layers, rows, 2 H_kv, columns, D]; calls recorded for another are void."""
        shape = self.backend.shape
        self.rotations = self.backend.rotations_to(columns)
        size = (shape.num_layers, rows, 2 * shape.num_kv_heads, columns, shape.head_dim)
        return torch.zeros(size, dtype=self.backend.attention_dtype, device=self.backend.device)

    def embed(self, ids: Tensor) -> Tensor:
        """Return the embeddings [B n, d] of ids [B, n]."""
        return self.backend.embed(ids.flatten(), ())

    def layers(
        self, h: Tensor, lo: int, hi: int, arena: Tensor, positions: Tensor, num_columns: int
    ) -> Tensor:
        """Run layers lo … hi − 1 on h [B n, d], which is not changed, attending to the first
        ``num_columns`` columns; return [B n, d]."""
        backend = self.backend
        columns = torch.arange(num_columns, device=positions.device)
        causal = columns <= positions.unsqueeze(-1)  # [B, n, C']
        masks = []
        for window in backend.shape.distinct_windows:
            mask = causal
            if window is not None:
                mask = causal & (columns > positions.unsqueeze(-1) - window)
            masks.append(mask.repeat(1, self.heads // self.kv_heads, 1).unsqueeze(1))
        rotation = self.rotations[positions.flatten()]
        h = h.clone()
        for i in range(lo, hi):
            layer = self.stack[i]
            qkv = layer.rotate(layer.qkv(layer.norm(h)), rotation)
            h = layer.finish(h, self._attend(qkv, arena[i], positions, masks[layer.mask_index]))
        return h

    def _attend(self, qkv: Tensor, cache: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
        """Write keys and values of qkv [1, H + 2 H_kv, B n, D] to cache [rows, 2 H_kv, C, D].

        Return the attention of its queries, [B n, H D].
        """
        (batch, n), size = positions.shape, qkv.shape[3]
        qkv = qkv[0].unflatten(1, (batch, n)).transpose(0, 1)  # [B, H + 2 H_kv, n, D]
        rows = torch.arange(batch, device=positions.device).unsqueeze(1)
        cache.transpose(1, 2).index_put_((rows, positions), qkv[:, self.heads :].transpose(1, 2))
        keys, values = cache[:batch, :, : mask.shape[3]].split(self.kv_heads, 1)
        # Query heads that share keys become rows of one head, as in the ordinary forward.
        q = qkv[:, : self.heads].reshape(batch, self.kv_heads, -1, size)
        out = F.scaled_dot_product_attention(q, keys, values, mask)
        # Not a view: some kernels return other strides than those of their inputs.
        out = out.reshape(batch, self.heads, n, size).transpose(1, 2)
        return out.reshape(batch * n, -1).to(self.backend.weight_dtype)
