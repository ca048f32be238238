"""Rows of tabular models, interned: proposals hold ids into one store.

So outcomes are merged by comparing integers, and every model is asked once for a context.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from hierspec.core.nodes import Node
from hierspec.core.proposals import Proposal


class Rows:
    """A store in which equal rows have one id."""

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self.rows: list[np.ndarray] = []
        self.entropies: list[float] = []
        self._ids: dict[bytes, int] = {}
        self._matrix = np.zeros((0, vocab_size))

    def intern(self, row: np.ndarray) -> int:
        """The id of a row [V] float64."""
        key = row.tobytes()
        if key not in self._ids:
            self._ids[key] = len(self.rows)
            self.rows.append(row)
            mass = row[row > 0.0]
            self.entropies.append(float(-(mass * np.log(mass)).sum()))
        return self._ids[key]

    def matrix(self) -> np.ndarray:
        """All rows, [number of ids, V]."""
        if len(self._matrix) < len(self.rows):
            self._matrix = np.stack(self.rows)
        return self._matrix


@dataclass(frozen=True, slots=True)
class TableDistributions:
    """A proposal's rows, by id."""

    store: Rows
    ids: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def width(self) -> int:
        return self.store.vocab_size

    @staticmethod
    def merged(parts: Iterable[TableDistributions]) -> TableDistributions:
        parts = list(parts)
        return TableDistributions(parts[0].store, tuple(i for part in parts for i in part.ids))

    def rows(self, start: int, stop: int) -> TableDistributions:
        return TableDistributions(self.store, self.ids[start:stop])

    def dense(self, vocab_size: int) -> torch.Tensor:
        if len(self.ids) == 1:  # as is asked for most: not copied
            return torch.from_numpy(self.store.rows[self.ids[0]]).unsqueeze(0)
        return torch.from_numpy(self.store.matrix()[list(self.ids)])

    def prob(self, row: int, token: int) -> float:
        return float(self.store.rows[self.ids[row]][token])


def row_of(model: Any, context: tuple[int, ...]) -> np.ndarray:
    """A model's law [V], rid of what rounding its table left."""
    return normalised(np.ascontiguousarray(model.law(context), dtype=np.float64))


def normalised(rows: np.ndarray) -> np.ndarray:
    """Rows [..., V] scaled to sum to 1."""
    return rows / rows.sum(-1, keepdims=True)


class ModelRows:
    """What may follow a context, by every model of a hierarchy.

    Attributes:
        rows: the store that ids are of.
    """

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        self._laws: dict[tuple[Any, tuple[int, ...]], int] = {}

    def law(self, node: Node, context: tuple[int, ...]) -> int:
        """The id of the row of ``node``'s model after ``context``."""
        model: Any = node.model  # type: ignore[union-attr]
        context = context[max(len(context) - model.order, 0) :]
        key = (model, context)
        if key not in self._laws:
            self._laws[key] = self.rows.intern(row_of(model, context))
        return self._laws[key]

    def declines(self, node: Node, context: tuple[int, ...]) -> bool:
        """Whether a leaf's model leaves the token after ``context`` to the level above."""
        model: Any = node.model  # type: ignore[union-attr]
        if not getattr(model, "declines", False):
            return False
        return model.unsure_after(context[max(len(context) - model.order, 0) :])

    def tokens(
        self,
        node: Node,
        tokens: tuple[int, ...],
        ids: tuple[int, ...],
        own: tuple[int, ...],
        context: tuple[int, ...] = (),
    ) -> Proposal:
        """Tokens of ``node`` drawn from rows ``ids``; ``own`` are its model's, for its window.

        ``context`` is what stands before them, for what a draft model predicts of its tokens.
        Who wrote a token first does not bear on any law, so origins are left equal to owners.
        """
        whose = (node.index,) * len(tokens)
        match node.window.signal:  # type: ignore[union-attr]
            case None:
                signals = (math.nan,) * len(tokens)
            case "entropy":
                signals = tuple(self.rows.entropies[i] for i in own)
            case "confidence":
                rows = self.rows.rows
                signals = tuple(float(rows[i][x]) for i, x in zip(own, tokens, strict=True))
            case "acceptance":
                model: Any = node.model  # type: ignore[union-attr]
                signals = tuple(
                    model.predicted_acceptance(context + tokens[: i + 1])
                    for i in range(len(tokens))
                )
        return Proposal(tokens, TableDistributions(self.rows, ids), whose, whose, signals)  # type: ignore[arg-type]
