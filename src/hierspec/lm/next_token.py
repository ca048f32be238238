"""The base of drafters that users write: a distribution of the next token, and nothing cached."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from hierspec.errors import HierspecError
from hierspec.utils import plugins

from .base import Query, UncachedModel

_TOLERANCE = 1e-3  # of a sum, which may come from half precision


class NextTokenModel(UncachedModel):
    """A model that is asked for one distribution at a time; a subclass has :meth:`probabilities`.

    What it drafts is drawn from that distribution, at the level's or the request's temperature. It
    may verify a level below it, too.

    Attributes:
        name: for messages; a registered method's name where it has none.
        vocab_size: V of the target; set before it is first asked.
    """

    name: str = ""
    vocab_size: int = 0
    partial = True  # any token may have probability 0

    def probabilities(self, tokens: Sequence[int]) -> Any:
        """Return the probabilities [V] of the token after ``tokens``: a tensor, array or list.

        They depend on ``tokens`` alone.
        """
        name = type(self).__name__
        raise HierspecError(f"{name} has no method probabilities(tokens): write it")

    def score(self, queries: Sequence[Query]) -> torch.Tensor:
        """Return log-probabilities, float64 [Σ num_rows, V].

        Raises:
            HierspecError: :meth:`probabilities` returned something else than a distribution.
        """
        rows: list[torch.Tensor] = []
        for query in queries:
            tokens = query.context.tokens()
            rows += [self._row(tokens[:end]) for end in range(query.start, len(tokens) + 1)]
        return torch.stack(rows).log()

    def _row(self, tokens: Sequence[int]) -> torch.Tensor:
        given = self.probabilities(tokens)
        try:
            row = torch.as_tensor(given, dtype=torch.float64, device="cpu")
        except (TypeError, ValueError, RuntimeError):
            row = torch.empty(0)
        if row.shape != (self.vocab_size,):
            size = list(row.shape) if row.numel() else type(given).__name__
            problem = f"must be {self.vocab_size} numbers, not {size}"
        elif not bool((row >= 0.0).all()):
            problem = "hold a negative number or NaN"
        elif not abs(float(row.sum()) - 1.0) <= _TOLERANCE:
            problem = f"sum to {float(row.sum()):.6g}, not 1"
        else:
            return row
        place = plugins.where(type(self).probabilities)
        raise HierspecError(f"{place}: the probabilities of {self.name or 'a drafter'} {problem}")
