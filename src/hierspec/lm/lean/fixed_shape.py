"""The lean forward for calls of fixed shape: B sequences × n tokens, positions on the device.

Calls of one shape differ only in the contents of tensors, so a call can be recorded as a CUDA graph
(:mod:`hierspec.utils.graphs`) and nothing in it waits for the host. Attention is one call for all
sequences, over the first C' columns of their caches, with a mask made from the positions.

The caches of all sequences are rows of one *arena*. Its last column is scratch: padding tokens have
that position and write there, and nothing reads it. Columns beyond a sequence's text hold zeros or
stale numbers, always finite, and the mask gives them weight 0.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from hierspec.lm.cudnn import without_cudnn

from .decoder import LeanBackend
from .fused import CallPlaces, NodePlaces, Operations, has_triton
from .layers import Layer


class FixedShapeForward:
    """The pieces of a call, over rows 0 … B − 1 of an arena; ``positions`` are [B, n]."""

    def __init__(self, backend: LeanBackend) -> None:
        self.backend = backend
        self.operations = Operations()
        if has_triton(backend.device):
            from .triton_kernels import TritonOperations

            self.operations = TritonOperations()
        self.stack = backend.stack
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

    def places(
        self, positions: Tensor, num_columns: int, nodes: NodePlaces | None = None
    ) -> CallPlaces:
        """Return what all layers need of ``positions``, attending to the first ``num_columns``.

        ``nodes``: where the tokens are nodes of trees.
        """
        backend, device = self.backend, positions.device
        columns = torch.arange(num_columns, device=device)
        stored = positions = positions.contiguous()
        if nodes is None:
            seen, not_seen = columns, columns > positions.unsqueeze(-1)  # [B, n, C']
        else:
            stored = nodes.columns
            seen, not_seen = _columns_of_trees(columns, nodes)
        masks: list[Tensor] = []
        for window in backend.shape.distinct_windows:
            hidden = not_seen
            if window is not None:
                hidden = not_seen | (seen.unsqueeze(-2) <= positions.unsqueeze(-1) - window)
            # Numbers, since from booleans every layer would make them anew.
            mask = torch.zeros(hidden.shape, dtype=backend.attention_dtype, device=device)
            mask = mask.masked_fill_(hidden, -math.inf)
            masks.append(mask.repeat(1, self.heads // self.kv_heads, 1).unsqueeze(1))
        rows = torch.arange(len(positions), device=device).unsqueeze(1)
        own = self.rotations[positions.flatten()]
        return CallPlaces(positions, stored, rows, self.rotations, own, masks)

    @without_cudnn
    def layers(self, h: Tensor, lo: int, hi: int, arena: Tensor, places: CallPlaces) -> Tensor:
        """Run layers lo … hi − 1 on h [B n, d], which is not changed; return [B n, d]."""
        parts, update = self.operations, None
        h = h.clone()
        for i in range(lo, hi):
            layer = self.stack[i]
            qkv = layer.qkv(parts.add_norm(h, update, layer.norm))
            q = parts.rotate(layer, qkv, places, arena[i])
            update = layer.out(self._attend(layer, q, arena[i], places))
            update = layer.down(
                parts.gate(layer.gate_up(parts.add_norm(h, update, layer.mlp_norm)))
            )
        return h if update is None else h.add_(update)

    def _attend(self, layer: Layer, q: Tensor, cache: Tensor, places: CallPlaces) -> Tensor:
        """Return the attention [B n, H D] of queries [B, H_kv, g n, D] to cache [rows, …]."""
        (batch, n), mask = places.positions.shape, places.masks[layer.mask_index]
        keys, values = cache[:batch, :, : mask.shape[3]].split(self.kv_heads, 1)
        out = F.scaled_dot_product_attention(q, keys, values, mask)
        # Not a view: some kernels return other strides than those of their inputs.
        out = out.reshape(batch, self.heads, n, -1).transpose(1, 2)
        return out.reshape(batch * n, -1).to(layer.dtype)


def _columns_of_trees(columns: Tensor, nodes: NodePlaces) -> tuple[Tensor, Tensor]:
    """Return the position of what each column holds, [B, C'], and whether the nodes do not attend
    to it, [B, n, C'] bool."""
    (_, n, num_nodes), lengths = nodes.ancestors.shape, nodes.text_lengths
    index = columns - lengths  # of the node, negative in the text
    of_text = index < 0
    positions = torch.where(of_text, columns, lengths + index // n)
    inside = index.clamp(0, num_nodes - 1).unsqueeze(1).expand(-1, n, -1)
    of_path = nodes.ancestors.gather(2, inside) & (index < num_nodes).unsqueeze(1)
    return positions, ~(of_text.unsqueeze(1) | of_path)
