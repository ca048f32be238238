"""The lean forward's layers, in the part of Python that TorchScript compiles.

With matrices of width 192 the arithmetic of a layer takes less time than Python's calls of it.
Compiled as one function, a stack of layers is a fifth to a third faster; where TorchScript is
missing or refuses, the same code runs uncompiled, with the same bits.

Shapes: N packed tokens, d hidden, H query and H_kv key/value heads of D dimensions, C capacity.
"""

# No `from __future__ import annotations`: TorchScript reads them as objects.
import contextlib
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hierspec.utils.quiet import no_warnings

from .linear import prepack, prepacking_works


class Matrix(nn.Module):
    """``x [n, in] → x @ weight.T + bias [n, out]``, in oneDNN's layout where it works."""

    bias: Tensor | None

    def __init__(self, weight: Tensor, bias: Tensor | None = None):
        super().__init__()
        self.is_packed = weight.device.type == "cpu" and prepacking_works(weight.dtype)
        self.weight = prepack(weight) if self.is_packed else weight
        self.bias = bias
        self.num_out, self.num_weights = weight.size(0), weight.numel()

    @torch.jit.unused
    def dense(self) -> Tensor:
        """Return the weight [out, in] as it was given; a copy where it is packed."""
        return self.weight.to_dense() if self.is_packed else self.weight

    def forward(self, x: Tensor) -> Tensor:
        if self.is_packed:
            return torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")
        return F.linear(x, self.weight, self.bias)


class Norm(nn.Module):
    """RMSNorm of the last dimension, in five elementary operations, then ``dtype``.

    x / √(mean x² + ε) = x / hypot(|x|, √(dε)) · √d; ``weight`` comes with √d in it.
    """

    def __init__(self, weight: Tensor, size: int, eps: float, dtype: torch.dtype):
        super().__init__()
        self.weight = weight * size**0.5
        self.eps = torch.full((), (size * eps) ** 0.5, dtype=weight.dtype, device=weight.device)
        self.dtype = dtype

    def forward(self, x: Tensor) -> Tensor:
        norm = torch.linalg.vector_norm(x, 2.0, [-1], True).hypot_(self.eps)
        return torch.div(x, norm).mul_(self.weight).to(self.dtype)


class Layer(nn.Module):
    """One transformer layer. ``mask_index`` is the place of its mask among those of a call."""

    def __init__(
        self,
        norm: Norm,
        qkv: Matrix,
        qk_norm: Norm | None,
        out: Matrix,
        mlp_norm: Norm,
        gate_up: Matrix,
        down: Matrix,
        heads: int,
        kv_heads: int,
        attention_dtype: torch.dtype,
        mask_index: int,
    ):
        super().__init__()
        self.norm, self.qkv, self.qk_norm, self.out = norm, qkv, qk_norm, out
        self.mlp_norm, self.gate_up, self.down = mlp_norm, gate_up, down
        self.heads, self.kv_heads, self.mask_index = heads, kv_heads, mask_index
        self.dtype, self.attention_dtype = norm.dtype, attention_dtype
        self.exact = norm.weight.dtype

    def forward(
        self,
        h: Tensor,
        rotation: Tensor,
        caches: list[Tensor],
        starts: list[int],
        counts: list[int],
        firsts: list[list[int]],
        masks: list[list[Tensor | None]],
    ) -> Tensor:
        """Run the layer on h [N, d], in place, and return h; see :meth:`add_attention`."""
        return self.add_mlp(self.add_attention(h, rotation, caches, starts, counts, firsts, masks))

    def add_attention(
        self,
        h: Tensor,
        rotation: Tensor,
        caches: list[Tensor],
        starts: list[int],
        counts: list[int],
        firsts: list[list[int]],
        masks: list[list[Tensor | None]],
    ) -> Tensor:
        """Add the attention's output to h, in place, and return h.

        Arguments as in :meth:`Stack.forward`; ``caches`` are this layer's, [1, 2 H_kv, C, D] each.
        There are N rotations; rows of h beyond them are padding, which attends to nothing.
        """
        qkv = self.qkv(self.norm(h))
        total = rotation.size(0)
        x = self.rotate(qkv, rotation)
        q = x.narrow(1, 0, self.heads)
        kv = x.narrow(1, self.heads, 2 * self.kv_heads)
        first, mask = firsts[self.mask_index], masks[self.mask_index]
        if len(caches) == 1:
            out = self.attend(q, kv, caches[0], starts[0], first[0], mask[0])
        else:
            parts: list[Tensor] = []
            row = 0
            for i in range(len(caches)):
                n = counts[i]
                own, new = q.narrow(2, row, n), kv.narrow(2, row, n)
                parts.append(self.attend(own, new, caches[i], starts[i], first[i], mask[i]))
                row += n
            out = torch.cat(parts, 1)
        out = out.reshape(total, -1).to(self.dtype)
        if qkv.size(0) != total:
            out = F.pad(out, [0, 0, 0, qkv.size(0) - total])
        return h.add_(self.out(out))

    @torch.jit.export
    def finish(self, h: Tensor, attended: Tensor) -> Tensor:
        """Add the projection of ``attended`` and the MLP's output to h, in place, and return h."""
        return self.add_mlp(h.add_(self.out(attended)))

    def add_mlp(self, h: Tensor) -> Tensor:
        """Add the MLP's output to h, in place, and return h."""
        gate_up = self.gate_up(self.mlp_norm(h)).chunk(2, 1)
        return h.add_(self.down(F.silu(gate_up[0]).mul_(gate_up[1])))

    def rotate(self, qkv: Tensor, rotation: Tensor) -> Tensor:
        """Return queries, keys and values of the first N rows, rotated, [1, H + 2 H_kv, N, D]."""
        total, rotated = rotation.size(0), self.heads + self.kv_heads
        x = qkv.narrow(0, 0, total).to(self.exact).view(total, rotated + self.kv_heads, -1)
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


class Stack(nn.Module):
    """A model's layers."""

    def __init__(self, layers: list[Layer]):
        super().__init__()
        self.layers = nn.ModuleList(layers)
        first = layers[0]
        matrices = (first.qkv, first.out, first.gate_up, first.down)
        self.weights_per_layer = sum(matrix.num_weights for matrix in matrices)

    def forward(
        self,
        h: Tensor,
        rows: int,
        lo: int,
        hi: int,
        rotation: Tensor,
        storages: list[Tensor],
        starts: list[int],
        counts: list[int],
        firsts: list[list[int]],
        masks: list[list[Tensor | None]],
    ) -> Tensor:
        """Run layers lo … hi − 1 on h [N, d], which is not changed, padded to ``rows`` rows.

        Returns [N, d]. Per span: its storage [layers, 1, 2 H_kv, C, D], first position and number
        of tokens; per mask index and span: the first position attended to, and the mask from there.
        """
        num = h.size(0)
        h = F.pad(h, [0, 0, 0, rows - num])  # a copy in any case
        for i, layer in enumerate(self.layers):
            if lo <= i and i < hi:
                caches = [storage.select(0, i) for storage in storages]
                h = layer(h, rotation, caches, starts, counts, firsts, masks)
        return h.narrow(0, 0, num)


def compile_stack(stack: Stack) -> Any:
    """Compile a stack into one TorchScript function; return ``None`` where that fails."""
    with no_warnings():
        with contextlib.suppress(Exception):  # private, so it may be gone tomorrow
            from torch.jit._recursive import create_script_module

            return create_script_module(stack, _methods)
        with contextlib.suppress(Exception):  # it raises many kinds, and nothing depends on it
            return torch.jit.script(stack)
    return None


_PARSED: dict[type[nn.Module], list[Any]] = {}


def _methods(module: nn.Module) -> list[Any]:
    """Return a module's parsed methods; its class is parsed once, not once per layer and model.

    That takes two thirds of the time from compiling. Methods are kept unbound: a bound one would
    keep the first model of its kind.
    """
    from torch.jit._recursive import infer_methods_to_compile

    kind = type(module)
    if kind not in _PARSED:
        _PARSED[kind] = [
            method._replace(original_method=method.original_method.__func__)
            for method in infer_methods_to_compile(module)
        ]
    return _PARSED[kind]
