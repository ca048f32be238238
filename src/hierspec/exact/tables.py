"""Rows of tabular models, interned: proposals hold ids into one store.

So outcomes are merged by comparing integers, and every model is asked once for a context.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import ne
from typing import Any, Protocol

import numpy as np
import torch

from hierspec.core.nodes import LevelNode
from hierspec.core.proposals import Proposal, Verdict
from hierspec.errors import HierspecError
from hierspec.lm.base import Query
from hierspec.lm.tabular import TabularModel


class NextTokenTable(Protocol):
    """A level's model: a next-token distribution [V] for every last ``order`` tokens."""

    @property
    def order(self) -> int: ...
    def distribution(self, context: Sequence[int]) -> Any: ...


class PredictingTable(TabularModel):
    """A table with predictions of what is accepted of its drafts, for a window that reads them.

    Args:
        acceptance: under the table's keys, the predicted probability that each of the V next tokens
            is accepted; ``None``: it predicts nothing, and a window that asks it is refused.
    """

    def __init__(
        self,
        vocab: int,
        order: int,
        table: Mapping[Any, Sequence[float]],
        acceptance: Mapping[Any, Sequence[float]] | None = None,
    ) -> None:
        super().__init__(vocab, order, table)
        self._acceptance = None if acceptance is None else self._rows_of(acceptance, _rates)

    def predicted_acceptance(self, context: Sequence[int]) -> float:
        """Return the predicted probability that the last token of ``context`` is accepted.

        Raises:
            HierspecError: the model has no predictions.
        """
        if self._acceptance is None:
            raise HierspecError(
                f"{self.name} predicts no acceptance: give the model an 'acceptance' table, or "
                "the level another window"
            )
        *previous, token = context[-self.order - 1 :]
        return float(self._acceptance[self._row(previous)][token])

    def acceptance(self, queries: Sequence[Query]) -> list[float]:
        return [self.predicted_acceptance(query.context.tokens()) for query in queries]


def _rates(key: tuple[int, ...], values: Sequence[float], vocab: int) -> torch.Tensor:
    rates = torch.as_tensor(values, dtype=torch.float64)
    if rates.shape != (vocab,) or not bool(((rates >= 0) & (rates <= 1)).all()):
        name = f"the acceptance after {','.join(map(str, key))!r}"
        raise HierspecError(f"{name} must be {vocab} numbers between 0 and 1")
    return rates


class Rows:
    """A store in which equal rows have one id."""

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self.rows: list[np.ndarray] = []
        self.tensors: list[torch.Tensor] = []  # of the same rows, in the same memory
        self.entropies: list[float] = []
        self._ids: dict[bytes, int] = {}
        self._matrix = np.zeros((0, vocab_size))

    def intern(self, row: np.ndarray) -> int:
        """Return the id of a row [V] float64, which is stored unless it is there."""
        key = row.tobytes()
        if key not in self._ids:
            self._ids[key] = len(self.rows)
            self.rows.append(row)
            self.tensors.append(torch.from_numpy(row))
            mass = row[row > 0.0]
            self.entropies.append(float(-(mass * np.log(mass)).sum()))
        return self._ids[key]

    def is_changed(self) -> bool:
        """Whether anybody wrote into a row."""
        return any(map(ne, map(np.ndarray.tobytes, self.rows), self._ids))

    def matrix(self) -> np.ndarray:
        """Return all rows, [number of ids, V]."""
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
    def merged(parts: Sequence[Any]) -> TableDistributions:
        return TableDistributions(parts[0].store, tuple(i for part in parts for i in part.ids))

    def row(self, index: int) -> torch.Tensor:
        """Return one row, [V]; it is not to be written to."""
        return self.store.tensors[self.ids[index]]

    def rows(self, start: int, stop: int) -> TableDistributions:
        return TableDistributions(self.store, self.ids[start:stop])

    def select(self, rows: Sequence[int]) -> TableDistributions:
        return TableDistributions(self.store, tuple(self.ids[row] for row in rows))

    def dense(self, vocab_size: int) -> torch.Tensor:
        if len(self.ids) == 1:  # the usual case: not copied
            return self.row(0).unsqueeze(0)
        return torch.from_numpy(self.store.matrix()[list(self.ids)])

    def prob(self, row: int, token: int) -> float:
        return float(self.store.rows[self.ids[row]][token])


def row_ids(draft: Proposal) -> tuple[int, ...]:
    """Return the ids of the rows that a draft's tokens were drawn from."""
    if not draft.tokens:
        return ()
    assert isinstance(draft.distributions, TableDistributions)
    return draft.distributions.ids


def next_token_distribution(model: NextTokenTable, context: tuple[int, ...]) -> np.ndarray:
    """Return a model's distribution [V], normalised again after the rounding of its table."""
    return normalise(np.ascontiguousarray(model.distribution(context), dtype=np.float64))


def normalise(rows: np.ndarray) -> np.ndarray:
    """Scale rows [..., V] to sum to 1."""
    return rows / rows.sum(-1, keepdims=True)


class ModelRows:
    """Ids of the next-token distributions of every model of a hierarchy, by context.

    Attributes:
        rows: the store that the ids refer to.
    """

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        self._row_ids: dict[tuple[NextTokenTable, tuple[int, ...]], int] = {}
        self._verdicts: dict[Any, Verdict] = {}

    def row_id(
        self, node: LevelNode[NextTokenTable, NextTokenTable], context: tuple[int, ...]
    ) -> int:
        """Return the id of the row of ``node``'s model after ``context``."""
        model = node.model
        context = context[max(len(context) - model.order, 0) :]
        key = (model, context)
        if key not in self._row_ids:
            self._row_ids[key] = self.rows.intern(next_token_distribution(model, context))
        return self._row_ids[key]

    def declines(self, node: LevelNode, context: tuple[int, ...]) -> bool:
        """Return whether a leaf's model leaves the token after ``context`` to the level above."""
        model, order = node.model, node.model.order
        if not getattr(model, "declines", False):
            return False
        return model.is_unsure_after(context[max(len(context) - order, 0) :])

    def proposal(
        self,
        node: LevelNode,
        tokens: tuple[int, ...],
        ids: tuple[int, ...],
        model_ids: tuple[int, ...],
        context: tuple[int, ...] = (),
    ) -> Proposal:
        """Build the proposal of tokens of ``node`` that were drawn from rows ``ids``.

        ``model_ids`` are the rows of its model, for its window; ``context`` is the text before the
        tokens, for a window on predicted acceptance. No law depends on which node wrote a token
        first, so origins are equal to owners.
        """
        owners = (node.index,) * len(tokens)
        match node.window.signal:
            case None:
                signals = (math.nan,) * len(tokens)
            case "entropy":
                signals = tuple(self.rows.entropies[i] for i in model_ids)
            case "confidence":
                rows = self.rows.rows
                signals = tuple(float(rows[i][x]) for i, x in zip(model_ids, tokens, strict=True))
            case "acceptance":
                model = node.model
                signals = tuple(
                    model.predicted_acceptance(context + tokens[: i + 1])
                    for i in range(len(tokens))
                )
        return Proposal(tokens, TableDistributions(self.rows, ids), owners, owners, signals)

    def verdict(
        self,
        node: LevelNode,
        tau: int,
        tokens: tuple[int, ...],
        ids: tuple[int, ...],
        model_ids: tuple[int, ...],
    ) -> Verdict:
        """Return the verdict that keeps τ tokens and emits ``tokens``; equal ones are one object.

        ``ids`` are the rows that it reports (see :meth:`proposal`).
        """
        key = (node, tau, tokens, ids, model_ids)
        if key not in self._verdicts:
            self._verdicts[key] = Verdict(tau, self.proposal(node, tokens, ids, model_ids))
        return self._verdicts[key]
