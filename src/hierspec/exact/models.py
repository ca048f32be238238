"""The models of a hierarchy as the exact interpreter asks them: rows by id, tokens with rows."""

from __future__ import annotations

import math
from typing import Any

from ..hierarchy import Node
from ..types import Proposal
from .rows import Rows, TableLaws, row_of


class Models:
    """Asks every model once for what may follow a context.

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

    def tokens(
        self, node: Node, tokens: tuple[int, ...], ids: tuple[int, ...], own: tuple[int, ...]
    ) -> Proposal:
        """Tokens of ``node`` with laws ``ids``; ``own`` are its model's rows, for its window.

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
        return Proposal(tokens, TableLaws(self.rows, ids), whose, whose, signals)  # type: ignore[arg-type]
