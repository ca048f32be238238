"""Training-time test: the network unrolled over its own outputs [Li et al. 2025, §3.2].

In step 0 every row reads the target's features. In step j a row reads the output of step j − 1 at
the row before, as in the j-th step of a draft, and attends to what the cache holds then: keys of
step 0 up to j rows back, and one key of each later step. All rows are unrolled side by side,
teacher-forced by the text.

Shapes: B texts of T rows (padded), d hidden, H query and H_kv key/value heads of S dimensions.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from hierspec.lm.lean.shape import rotations

from .network import Eagle3Network


class UnrolledStep(NamedTuple):
    """One step of all rows that take part in it.

    Attributes:
        rows: their indices among the B · T rows, ascending.
        scores: over the draft vocabulary, [rows, D].
    """

    rows: Tensor
    scores: Tensor


def unroll(
    network: Eagle3Network, features: Tensor, embedded: Tensor, is_predicted: Tensor, depth: int
) -> Iterator[UnrolledStep]:
    """Yield steps 0 … depth − 1.

    Args:
        features: of the target at tokens x_0 … x_{T-1}, [B, T, 3 d].
        embedded: embeddings of x_1 … x_T, [B, T, d].
        is_predicted: which rows t are to predict x_{t+2}, bool [B, T].
    """
    batch, length, _ = embedded.shape
    angles = rotations(network.config.llama, length)[:, None]
    cos, sin = angles.real, angles.imag  # [T, 1, S / 2] of every position
    # [B, T, d]; where products are made in bfloat16, the residual stream is not.
    hidden = network.fc(features).to(embedded.dtype)
    q, k, v = _qkv(network, embedded, hidden)
    first = (_rotate(k, cos, sin), v)
    later: list[tuple[Tensor, Tensor]] = []
    rows = is_predicted.flatten().nonzero().squeeze(1)
    position = torch.arange(length).repeat(batch)  # of a row in its text
    attended = _attend(_rotate(q, cos, sin), first, later)
    hidden = hidden.flatten(0, 1)[rows]
    for step in range(depth):
        output = _output(network, hidden, attended.flatten(0, 1)[rows])
        yield UnrolledStep(rows, network.lm_head(network.norm(output)))
        if step + 1 == depth:
            return
        # Rows go on if the next row of the same text predicts as well.
        next_predicted = is_predicted.flatten()[(rows + 1).clamp(max=len(position) - 1)]
        goes_on = (position[rows] + 1 < length) & next_predicted
        rows, hidden = rows[goes_on] + 1, output[goes_on]
        q, k, v = _qkv(network, embedded.flatten(0, 1)[rows], hidden)
        q, k, v = (_spread(x, rows, batch, length) for x in (q, k, v))
        # Relative to the new rows, keys and values of earlier steps are one row further back.
        later = [(_shift_back(k_step), _shift_back(v_step)) for k_step, v_step in later]
        later.append((_rotate(k, cos, sin), v))
        attended = _attend(_rotate(q, cos, sin), first, later)


def _qkv(network: Eagle3Network, embedded: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries [N, H, S], keys and values [N, H_kv, S] of embeddings and hidden states
    [N, d], not rotated."""
    layer, attention = network.midlayer, network.midlayer.self_attn
    x = torch.cat((layer.input_layernorm(embedded), layer.hidden_norm(hidden)), -1)
    heads = (-1, network.config.head_dim)
    q, k, v = attention.q_proj(x), attention.k_proj(x), attention.v_proj(x)
    return q.unflatten(-1, heads), k.unflatten(-1, heads), v.unflatten(-1, heads)


def _output(network: Eagle3Network, hidden: Tensor, attended: Tensor) -> Tensor:
    """Return the layer's output for hidden states [N, d] and their attention [N, H · S]."""
    layer, mlp = network.midlayer, network.midlayer.mlp
    if network.config.norm_before_residual:
        hidden = layer.hidden_norm(hidden)
    hidden = hidden + layer.self_attn.o_proj(attended)
    x = layer.post_attention_layernorm(hidden)
    return hidden + mlp.down_proj(F.silu(mlp.gate_proj(x)) * mlp.up_proj(x))


def _attend(q: Tensor, first: tuple[Tensor, Tensor], later: list[tuple[Tensor, Tensor]]) -> Tensor:
    """Compute attention of q [B, T, H, S] to keys and values [B, T, H_kv, S] → [B, T, H · S].

    A row attends to the rows of ``first`` up to ``len(later)`` rows before itself, and to its own
    row of each of ``later``.
    """
    groups = q.shape[2] // first[0].shape[2]
    keys, values = (x.transpose(1, 2).repeat_interleave(groups, 1) for x in first)
    queries = q.transpose(1, 2) * q.shape[-1] ** -0.5  # [B, H, T, S]
    length = q.shape[1]
    scores = queries @ keys.transpose(2, 3) + _mask(length, len(later))
    later_keys = [k.transpose(1, 2).repeat_interleave(groups, 1) for k, _ in later]
    later_scores = [(queries * k).sum(-1, keepdim=True) for k in later_keys]
    weights = torch.cat([scores, *later_scores], -1).softmax(-1)
    out = weights[..., :length] @ values
    for i, (_, v) in enumerate(later):
        out = out + weights[..., length + i, None] * v.transpose(1, 2).repeat_interleave(groups, 1)
    return out.transpose(1, 2).flatten(2)


@lru_cache(maxsize=64)
def _mask(length: int, lag: int) -> Tensor:
    return torch.full((length, length), float("-inf")).triu(1 - lag)


def _spread(x: Tensor, rows: Tensor, batch: int, length: int) -> Tensor:
    """Place [rows, …] in [B, T, …], zeros where no row takes part."""
    out = x.new_zeros(batch * length, *x.shape[1:])
    return out.index_copy(0, rows, x).unflatten(0, (batch, length))


def _shift_back(x: Tensor) -> Tensor:
    """Shift [B, T, …] by one row: row t of the result is row t − 1."""
    return F.pad(x[:, :-1], (0, 0, 0, 0, 1, 0))


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate [B, T, heads, S]; dimension j turns together with j + S / 2."""
    low, high = x.chunk(2, -1)
    return torch.cat((low * cos - high * sin, high * cos + low * sin), -1)
