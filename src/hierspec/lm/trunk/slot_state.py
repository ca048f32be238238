"""What a sequence's slot has cached of a trunk, segment by segment, and what a call asks of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from hierspec.lm.backend import Span
from hierspec.lm.trees import Branches


@dataclass(slots=True, eq=False, weakref_slot=True)
class SlotState:
    """What a slot has cached, by segment; an exit reads the edge of its topmost one.

    Attributes:
        cache: the backend's, for ``capacity`` tokens.
        lengths: how many leading tokens have been through each segment, nodes of ``branches`` that
            are stored behind the text included.
        edges: per segment its output by position, [capacity, d].
        row: its row of the arena (:mod:`hierspec.lm.trunk.arena`), where sequences share one.
        branches: the nodes of a token tree that are stored behind the held tokens.
        drafted: how many leading tokens have keys and values in ``cache``: the target's or, past
            ``lengths[-1]``, those of a draft (:mod:`hierspec.lm.trunk.self_draft`).
    """

    cache: Any
    capacity: int
    lengths: list[int]
    edges: list[torch.Tensor]
    row: int = 0
    drafted: int = 0
    branches: Branches | None = None

    def rewind(self, length: int) -> None:
        """Forget all but the first ``length`` tokens."""
        self.lengths = [min(n, length) for n in self.lengths]
        self.drafted = min(self.drafted, length)
        self.branches = None


class Work(NamedTuple):
    """One query of a call: bring ``state`` to ``end`` tokens, then return rows from ``first``.

    With a tree, ``held`` and ``end`` count its nodes, and ``rows`` says where those asked for are.
    """

    state: SlotState
    held: list[int]
    first: int
    end: int
    rows: list[int] | None = None

    def edge(self, index: int) -> torch.Tensor:
        """The hidden states asked for, of a segment."""
        return self.asked(self.state.edges[index])

    def asked(self, h: torch.Tensor, since: int = 0) -> torch.Tensor:
        """Those asked for of the hidden states ``h`` of what is stored from ``since`` on."""
        if self.rows is None:
            return h[self.first - since : self.end - since]
        return h[[row - since for row in self.rows]]

    def span(self, start: int, end: int) -> Span:
        """Its tokens stored from ``start`` on, up to ``end``."""
        branches = self.state.branches
        if branches is not None and end <= branches.base:
            branches = None
        return Span(self.state.cache, start, end - start, branches)
