"""What a trunk knows of each sequence, of a call in progress, and of the work it has done."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch


@dataclass(slots=True)
class Counters:
    """Work done since the trunk was made, per segment: passes over the weights, and tokens."""

    sizes: tuple[int, ...]
    calls: list[int] = field(init=False)
    tokens: list[int] = field(init=False)
    head_rows: int = 0

    def __post_init__(self) -> None:
        self.calls = [0] * len(self.sizes)
        self.tokens = [0] * len(self.sizes)

    @property
    def layer_calls(self) -> list[int]:
        """Calls of every layer, lowest first."""
        return [c for c, size in zip(self.calls, self.sizes, strict=True) for _ in range(size)]

    @property
    def layer_tokens(self) -> list[int]:
        """Tokens that went through every layer, lowest first."""
        return [t for t, size in zip(self.tokens, self.sizes, strict=True) for _ in range(size)]


@dataclass(slots=True, eq=False, weakref_slot=True)
class State:
    """A slot's cache. ``edges[s]`` [capacity, d] is the output of segment s, by position.

    ``row``: which row of the memory it is, where sequences share one (:mod:`hierspec.lm.arena`).
    """

    cache: Any
    capacity: int
    lengths: list[int]
    edges: list[torch.Tensor]
    row: int = 0


class Work(NamedTuple):
    """One query of a call: bring ``state`` to ``end`` tokens, then return rows from ``first``."""

    state: State
    held: list[int]
    first: int
    end: int
