"""Interned laws: what proposals of the exact interpreter are made of.

A proposal's laws are ids into one store, so outcomes are merged by comparing integers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch


class Rows:
    """Interned laws: equal rows have one id, so that outcomes compare by integers."""

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self.rows: list[np.ndarray] = []
        self.entropies: list[float] = []
        self._ids: dict[bytes, int] = {}
        self._matrix = np.zeros((0, vocab_size))

    def intern(self, row: np.ndarray) -> int:
        """The id of a law [V] float64."""
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
class TableLaws:
    """Rows of a proposal, by id."""

    store: Rows
    ids: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def width(self) -> int:
        return self.store.vocab_size

    @staticmethod
    def merged(parts: Iterable[TableLaws]) -> TableLaws:
        parts = list(parts)
        return TableLaws(parts[0].store, tuple(i for part in parts for i in part.ids))

    def rows(self, start: int, stop: int) -> TableLaws:
        return TableLaws(self.store, self.ids[start:stop])

    def dense(self, vocab_size: int) -> torch.Tensor:
        return torch.from_numpy(self.store.matrix()[list(self.ids)])

    def prob(self, row: int, token: int) -> float:
        return float(self.store.rows[self.ids[row]][token])


def row_of(model: Any, context: tuple[int, ...]) -> np.ndarray:
    """A model's law [V], rid of what rounding its table left."""
    return normalised(np.ascontiguousarray(model.law(context), dtype=np.float64))


def normalised(rows: np.ndarray) -> np.ndarray:
    """Rows [..., V] scaled to sum to 1."""
    return rows / rows.sum(-1, keepdims=True)
