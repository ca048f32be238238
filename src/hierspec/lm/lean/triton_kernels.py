"""Kernels for GPUs, in Triton: the parts of a layer between its products, and products in few bits.

Everything is computed in float32 (float64 for float64 models) and rounded once, when it is stored.
Shapes: N = B n rows, d hidden, H query and H_kv key/value heads of D dimensions.
"""

# Triton knows a kernel's constants by their annotations.
# pyright: reportInvalidTypeForm=false

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from .fused import CallPlaces, Operations
from .layers import Layer, Norm

triton: Any = import_module("triton")  # not everywhere, and without types
tl: Any = import_module("triton.language")

_GROUP = 32  # inputs of one 4-bit grid: see `hierspec.lm.native.formats`
_HALF_GROUP = tl.constexpr(_GROUP // 2)
_MIN_ROWS = 16  # of a product on tensor cores


@triton.jit
def _add_norm(
    h,
    update,
    weight,
    eps,
    out,
    width,
    has_update: tl.constexpr,
    block: tl.constexpr,
):
    """A program a row: h += update, out = h / √(|h|² + eps²) · weight."""
    start = tl.program_id(0).to(tl.int64) * width
    column = tl.arange(0, block)
    inside = column < width
    x = tl.load(h + start + column, mask=inside, other=0.0)
    if has_update:
        x += tl.load(update + start + column, mask=inside, other=0.0).to(x.dtype)
        tl.store(h + start + column, x, mask=inside)
    least = tl.load(eps)
    x = x / tl.sqrt(tl.sum(x * x, 0) + least * least)
    x *= tl.load(weight + column, mask=inside, other=0.0)
    tl.store(out + start + column, x.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _rotate(
    qkv,
    rotations,
    positions,
    columns,
    norm_weight,
    norm_eps,
    queries,
    cache,
    n,
    heads,
    kv_heads,
    size,
    row_stride,
    head_stride,
    column_stride,
    has_norm: tl.constexpr,
    block: tl.constexpr,
):
    """A program a token and head: rotate its pairs, then store a query, a key or a value."""
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    sequence, j = token // n, token % n
    pair = tl.arange(0, block)
    inside = pair < size // 2
    start = qkv + token * (heads + 2 * kv_heads) * size + head * size
    exact = rotations.dtype.element_ty
    even = tl.load(start + 2 * pair, mask=inside, other=0.0).to(exact)
    odd = tl.load(start + 2 * pair + 1, mask=inside, other=0.0).to(exact)
    position = tl.load(positions + token)
    if head < heads + kv_heads:
        if has_norm:
            least = tl.load(norm_eps)
            norm = tl.sqrt(tl.sum(even * even + odd * odd, 0) + least * least)
            own = norm_weight + head * size + 2 * pair
            even = even / norm * tl.load(own, mask=inside, other=0.0)
            odd = odd / norm * tl.load(own + 1, mask=inside, other=0.0)
        turn = rotations + position * size + 2 * pair
        cos = tl.load(turn, mask=inside, other=0.0)
        sin = tl.load(turn + 1, mask=inside, other=0.0)
        turned = even * cos - odd * sin
        odd = even * sin + odd * cos
        even = turned
    if head < heads:
        # Heads that share keys follow each other: [B, H, n, D] is [B, H_kv, g n, D].
        goal = queries + ((sequence * heads + head) * n + j) * size + 2 * pair
        tl.store(goal, even.to(queries.dtype.element_ty), mask=inside)
        tl.store(goal + 1, odd.to(queries.dtype.element_ty), mask=inside)
    else:
        goal = cache + sequence * row_stride + (head - heads) * head_stride
        goal += tl.load(columns + token) * column_stride + 2 * pair
        tl.store(goal, even.to(cache.dtype.element_ty), mask=inside)
        tl.store(goal + 1, odd.to(cache.dtype.element_ty), mask=inside)


@triton.jit
def _gate(gate_up, out, width, exact: tl.constexpr, block: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * block + tl.arange(0, block)
    inside = column < width
    gate = tl.load(gate_up + row * 2 * width + column, mask=inside, other=0.0).to(exact)
    up = tl.load(gate_up + row * 2 * width + width + column, mask=inside, other=0.0).to(exact)
    gated = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(out + row * width + column, gated.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _product_8(
    x,
    codes,
    scale,
    bias,
    out,
    num_rows,
    num_out,
    width: tl.constexpr,
    has_bias: tl.constexpr,
    operand: tl.constexpr,
    rows: tl.constexpr,
    outs: tl.constexpr,
    inner: tl.constexpr,
):
    """A program for ``outs`` outputs of ``rows`` rows: x @ (codes · scale).T + bias."""
    row = tl.program_id(1) * rows + tl.arange(0, rows)
    column = tl.program_id(0) * outs + tl.arange(0, outs)
    in_rows, in_columns = row < num_rows, column < num_out
    total = tl.zeros((rows, outs), tl.float32)
    x_rows = x + row.to(tl.int64)[:, None] * width
    code_rows = codes + column.to(tl.int64)[None, :] * width
    for start in range(0, width, inner):
        k = start + tl.arange(0, inner)
        a = tl.load(x_rows + k[None, :], mask=in_rows[:, None] & (k < width)[None, :], other=0.0)
        b_mask = in_columns[None, :] & (k < width)[:, None]
        b = tl.load(code_rows + k[:, None], mask=b_mask, other=0)
        total += tl.dot(a.to(operand), b.to(operand), input_precision="ieee")
    total *= tl.load(scale + column, mask=in_columns, other=0.0)[None, :]
    if has_bias:
        total += tl.load(bias + column, mask=in_columns, other=0.0)[None, :]
    goal = out + row.to(tl.int64)[:, None] * num_out + column[None, :]
    tl.store(goal, total.to(out.dtype.element_ty), mask=in_rows[:, None] & in_columns[None, :])


@triton.jit
def _product_4(
    x,
    codes,
    grid,
    bias,
    out,
    num_rows,
    num_out,
    width: tl.constexpr,
    num_bytes: tl.constexpr,
    has_bias: tl.constexpr,
    operand: tl.constexpr,
    rows: tl.constexpr,
    outs: tl.constexpr,
    inner: tl.constexpr,
):
    """As :func:`_product_8`; a byte has the codes of two inputs that are half a group apart."""
    row = tl.program_id(1) * rows + tl.arange(0, rows)
    column = tl.program_id(0) * outs + tl.arange(0, outs)
    in_rows, in_columns = row < num_rows, column < num_out
    total = tl.zeros((rows, outs), tl.float32)
    x_rows = x + row.to(tl.int64)[:, None] * width
    code_rows = codes + column.to(tl.int64)[None, :] * num_bytes
    grid_rows = grid + column.to(tl.int64)[None, :] * (num_bytes // _HALF_GROUP * 2)
    for start in range(0, num_bytes, inner):
        byte = start + tl.arange(0, inner)
        group = byte // _HALF_GROUP
        low = byte + group * _HALF_GROUP
        high = low + _HALF_GROUP
        b_mask = in_columns[None, :] & (byte < num_bytes)[:, None]
        pairs = tl.load(code_rows + byte[:, None], mask=b_mask, other=0)
        step = tl.load(grid_rows + group[:, None] * 2, mask=b_mask, other=0.0).to(tl.float32)
        least = tl.load(grid_rows + group[:, None] * 2 + 1, mask=b_mask, other=0.0).to(tl.float32)
        a = tl.load(
            x_rows + low[None, :], mask=in_rows[:, None] & (low < width)[None, :], other=0.0
        )
        b = (pairs & 15).to(tl.float32) * step + least
        total += tl.dot(a.to(operand), b.to(operand), input_precision="ieee")
        a = tl.load(
            x_rows + high[None, :], mask=in_rows[:, None] & (high < width)[None, :], other=0.0
        )
        b = (pairs >> 4).to(tl.float32) * step + least
        total += tl.dot(a.to(operand), b.to(operand), input_precision="ieee")
    if has_bias:
        total += tl.load(bias + column, mask=in_columns, other=0.0)[None, :]
    goal = out + row.to(tl.int64)[:, None] * num_out + column[None, :]
    tl.store(goal, total.to(out.dtype.element_ty), mask=in_rows[:, None] & in_columns[None, :])


class TritonOperations(Operations):
    """:class:`~hierspec.lm.lean.fused.Operations` by the kernels above."""

    def add_norm(self, h: Tensor, update: Tensor | None, norm: Norm) -> Tensor:
        num, width = h.shape
        out = torch.empty_like(h, dtype=norm.dtype)
        with _on_device_of(h):
            _add_norm[(num,)](
                h,
                h if update is None else update,
                norm.weight,
                norm.eps,
                out,
                width,
                has_update=update is not None,
                block=triton.next_power_of_2(width),
            )
        return out

    def rotate(self, layer: Layer, qkv: Tensor, places: CallPlaces, cache: Tensor) -> Tensor:
        (batch, n), heads, kv_heads = places.positions.shape, layer.heads, layer.kv_heads
        size, norm = cache.shape[3], layer.qk_norm
        queries = torch.empty(
            (batch, kv_heads, heads // kv_heads * n, size), dtype=cache.dtype, device=qkv.device
        )
        rotations = torch.view_as_real(places.rotations)
        with _on_device_of(qkv):
            _rotate[(batch * n, heads + 2 * kv_heads)](
                qkv,
                rotations,
                places.positions,
                places.columns,
                rotations if norm is None else norm.weight,
                rotations if norm is None else norm.eps,
                queries,
                cache,
                n,
                heads,
                kv_heads,
                size,
                *cache.stride()[:3],
                has_norm=norm is not None,
                block=triton.next_power_of_2(size // 2),
            )
        return queries

    def gate(self, gate_up: Tensor) -> Tensor:
        num, width = len(gate_up), gate_up.shape[1] // 2
        out = gate_up.new_empty(num, width)
        block = min(1024, triton.next_power_of_2(width))
        exact = tl.float64 if gate_up.dtype == torch.float64 else tl.float32
        with _on_device_of(gate_up):
            _gate[(num, triton.cdiv(width, block))](gate_up, out, width, exact=exact, block=block)
        return out


def product(x: Tensor, codes: Tensor, grid: Tensor, bias: Tensor | None) -> Tensor:
    """Return x [N, in] @ weights.T + bias, [N, out].

    Args:
        codes: int8 [out, in]; or two of 4 bits a byte, uint8 [out, groups, 16].
        grid: each output's scale, float32 [out]; in 4 bits each group's step and lowest value,
            float16 [out, groups, 2].
        bias: float32 [out].
    """
    (num, width), num_out = x.shape, len(codes)
    kernel: Any = _product_8
    options: dict[str, Any] = {"inner": 128}
    if codes.dtype == torch.uint8:
        kernel, options = _product_4, {"inner": 64, "num_bytes": codes[0].numel()}
    rows = _MIN_ROWS if num <= _MIN_ROWS else 2 * _MIN_ROWS
    # Small matrices need many programs to use all of the device's memory bandwidth.
    outs = 16 if num_out <= 4096 else 32
    out = x.new_empty(num, num_out)
    with _on_device_of(x):
        kernel[(triton.cdiv(num_out, outs), triton.cdiv(num, rows))](
            x,
            codes,
            grid,
            grid if bias is None else bias,
            out,
            num,
            num_out,
            width=width,
            has_bias=bias is not None,
            operand=_operand(x),
            rows=rows,
            outs=outs,
            **options,
        )
    return out


def _operand(x: Tensor) -> Any:
    """Return the type that products are made of: x's, but the interpreter has no bfloat16 there."""
    narrow = {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}
    knobs = getattr(triton, "knobs", None)  # since 3.4
    is_interpreted = knobs.runtime.interpret if knobs else os.environ.get("TRITON_INTERPRET") == "1"
    return tl.float32 if is_interpreted else narrow.get(x.dtype, tl.float32)


def _on_device_of(tensor: Tensor) -> AbstractContextManager[None]:
    """Triton launches on the current device, whatever its arguments are on."""
    return torch.cuda.device_of(tensor)
