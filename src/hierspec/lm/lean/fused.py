"""What a layer does between its matrix products in calls of fixed shape: in Triton, or by torch.

A small kernel takes a GPU longer to start than to run. In torch's operations a layer has some
twenty of them beside its products and attention; fused, it has four: two norms, each with the
addition before it, the rotation, which writes the cache, and the activation.
"""

from __future__ import annotations

import warnings
from functools import cache
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from hierspec.errors import HierspecWarning, first_line

from .layers import Layer, Norm


class CallPlaces(NamedTuple):
    """Where the tokens of a call are, for all its layers.

    Attributes:
        positions: [B, n] int64, in their texts.
        columns: [B, n] of the arena, where they are stored; by position, but for nodes of trees.
        rows: [B, 1] of the arena.
        rotations: by position, [L, 1, D / 2] complex.
        own: those of the tokens, [B n, 1, D / 2].
        masks: for each window, what is added to the products of queries and keys: 0, or −∞ where a
            row does not attend; [B, 1, g n, C'] with g query heads for a key head.
    """

    positions: Tensor
    columns: Tensor
    rows: Tensor
    rotations: Tensor
    own: Tensor
    masks: list[Tensor]


class NodePlaces(NamedTuple):
    """Where n nodes of each of B token trees are, which are all of one depth.

    A tree has n nodes at every depth, stored behind its text depth by depth.

    Attributes:
        text_lengths: [B, 1].
        columns: [B, n].
        ancestors: [B, n, N] bool: to which of a tree's first N nodes each attends, itself included.
    """

    text_lengths: Tensor
    columns: Tensor
    ancestors: Tensor


class Operations:
    """The parts of a layer between its matrix products, by torch's operations, on any device."""

    def add_norm(self, h: Tensor, update: Tensor | None, norm: Norm) -> Tensor:
        """Add ``update`` to h [N, d], in place, and return the norm of h."""
        return norm(h if update is None else h.add_(update))

    def rotate(self, layer: Layer, qkv: Tensor, places: CallPlaces, cache: Tensor) -> Tensor:
        """Write keys and values of qkv [B n, (H + 2 H_kv) D] to cache [rows, 2 H_kv, C, D].

        Return the queries, [B, H_kv, g n, D]: query heads that share keys are rows of one head.
        """
        batch, n = places.positions.shape
        qkv = layer.rotate(qkv, places.own)
        qkv = qkv[0].unflatten(1, (batch, n)).transpose(0, 1)  # [B, H + 2 H_kv, n, D]
        new = qkv[:, layer.heads :].transpose(1, 2)
        cache.transpose(1, 2).index_put_((places.rows, places.columns), new)
        return qkv[:, : layer.heads].reshape(batch, layer.kv_heads, -1, qkv.shape[3])

    def gate(self, gate_up: Tensor) -> Tensor:
        """Return silu(gate) · up [N, I] of gate and up [N, 2 I], side by side."""
        gate, up = gate_up.chunk(2, 1)
        return F.silu(gate).mul_(up)


def has_triton(device: torch.device) -> bool:
    """Return whether kernels written in Triton run on a device."""
    return device.type == "cuda" and _triton_is_installed()


@cache
def _triton_is_installed() -> bool:
    """Return whether Triton is here, and works: it compiles its own launcher in C first."""
    if find_spec("triton") is None:
        return False
    try:
        from triton.runtime import driver

        active: Any = driver.active
        _ = active.utils
    except Exception as error:  # no compiler, no headers of Python, no driver, …
        warnings.warn(
            f"Triton does not run here ({first_line(error)}), so torch's operations do: install "
            "gcc and Python's headers",
            HierspecWarning,
            stacklevel=3,
        )
        return False
    return True
