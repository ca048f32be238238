"""Where the tokens of a call of fixed shape are: positions, rotations and masks of attention."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


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
