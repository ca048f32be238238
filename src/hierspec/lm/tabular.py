"""Language models that are tables: exact, tiny, and part of the library.

The next token's distribution depends on the last ``order`` tokens only, and is listed in a table.
Certificates enumerate such models, tests and docs run on them, and with :meth:`TabularModel.score`
the whole engine runs them like any other model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any

import torch

from hierspec.errors import HierspecError

from .base import Query, UncachedModel

KINDS = ("random", "peaked", "zeros")
_TOLERANCE = 1e-9
# key, row, V → the row as float64 [V]
ReadRow = Callable[[tuple[int, ...], Sequence[float], int], torch.Tensor]


class TabularModel(UncachedModel):
    """A next-token distribution for every last ``order`` tokens (fewer at the start of the text).

    Args:
        vocab: V, the number of tokens.
        order: how many last tokens count; 0: one distribution for all positions.
        table: V probabilities for each key: ``""``, ``"0"``, ``"0,1"`` (oldest token first), or
            tuples of ints. Every key of length 0 … order must be there.

    Raises:
        HierspecError: a distribution is missing, too long, negative, or does not sum to 1 within
            1e-9.
    """

    trees = True

    def __init__(
        self,
        vocab: int,
        order: int,
        table: Mapping[Any, Sequence[float]],
        *,
        name: str = "table",
        max_length: int = 1 << 30,
    ) -> None:
        if vocab < 1 or order < 0:
            raise HierspecError(
                f"vocab must be positive and order at least 0; got {vocab}, {order}"
            )
        self.name = name
        self.vocab_size = vocab
        self.order = order
        self.max_length = max_length
        self._index = {key: i for i, key in enumerate(_contexts(vocab, order))}
        self._probs = self._rows_of(table, _distribution)
        self._scores = self._probs.log()

    def _rows_of(self, table: Mapping[Any, Sequence[float]], read: ReadRow) -> torch.Tensor:
        """Return the rows of a table with every key, [contexts, V]."""
        rows = {_key(key): row for key, row in table.items()}
        _validate_keys(rows, list(self._index), self.order)
        return torch.stack([read(key, rows[key], self.vocab_size) for key in self._index])

    def distribution(self, context: Sequence[int]) -> torch.Tensor:
        """Return the next token's distribution after ``context``, float64 [V]: do not change it."""
        return self._probs[self._row(context)]

    def table(self) -> dict[str, list[float]]:
        """Return the distributions by string keys, as the constructor and JSON cases take them."""
        return {",".join(map(str, key)): self._probs[i].tolist() for key, i in self._index.items()}

    def score(self, queries: Sequence[Query]) -> torch.Tensor:
        """Return log-probabilities, float64 [Σ num_rows, V]; −inf where a token has probability 0.

        Unlike a transformer, a table also scores the empty context (``start`` 0).
        """
        rows: list[int] = []
        for query in queries:
            length = len(query.context)
            first = max(0, min(query.start, length) - self.order)
            tokens = query.context.tokens(first)
            for end in range(query.start, length + 1):
                rows.append(self._row(tokens[: end - first]))
            if query.tree is not None:
                paths = query.tree.paths()[max(query.start - length - 1, 0) :]
                rows += [self._row([*tokens, *path]) for path in paths]
        return self._scores[rows]

    @classmethod
    def random(
        cls,
        vocab: int,
        order: int,
        generator: torch.Generator,
        kind: str = "random",
        *,
        name: str = "table",
    ) -> TabularModel:
        """Draw a model from a family.

        ``random``: distributions uniform on the simplex; ``peaked``: most mass on one token;
        ``zeros``: about a third of the entries exactly 0.
        """
        if kind not in KINDS:
            raise HierspecError(f"kind must be one of {', '.join(KINDS)}; got {kind!r}")
        table = {key: _draw(vocab, generator, kind) for key in _contexts(vocab, order)}
        return cls(vocab, order, table, name=name)

    def _row(self, context: Sequence[int]) -> int:
        key = tuple(context[max(0, len(context) - self.order) :]) if self.order else ()
        try:
            return self._index[key]
        except KeyError:
            raise HierspecError(
                f"{self.name} knows tokens 0 … {self.vocab_size - 1}; the context has {list(key)}"
            ) from None


def _contexts(vocab: int, order: int) -> list[tuple[int, ...]]:
    return [key for n in range(order + 1) for key in product(range(vocab), repeat=n)]


def _validate_keys(
    table: Mapping[tuple[int, ...], Any], keys: Sequence[tuple[int, ...]], order: int
) -> None:
    if missing := [key for key in keys if key not in table]:
        raise HierspecError(
            f"the table lacks {len(missing)} of {len(keys)} keys: {_first_five(missing)} "
            f"(order {order} needs every context of up to {order} tokens)"
        )
    if extra := sorted(set(table) - set(keys)):
        raise HierspecError(
            f"the table has keys that no context of order {order} meets: {_first_five(extra)}"
        )


def _first_five(keys: Sequence[tuple[int, ...]]) -> str:
    names = [repr(",".join(map(str, key))) for key in keys[:5]]
    return ", ".join(names + ["…"] * (len(keys) > 5))


def _key(key: Any) -> tuple[int, ...]:
    if not isinstance(key, str):
        return tuple(key)
    try:
        return tuple(int(part) for part in key.split(",")) if key else ()
    except ValueError:
        raise HierspecError(
            f"table keys are token ids separated by commas, like '0,1'; got {key!r}"
        ) from None


def _distribution(key: tuple[int, ...], values: Sequence[float], vocab: int) -> torch.Tensor:
    probs = torch.as_tensor(values, dtype=torch.float64)
    name = f"the distribution after {','.join(map(str, key))!r}"
    if probs.shape != (vocab,):
        raise HierspecError(f"{name} must have {vocab} probabilities, got {probs.numel()}")
    if not bool((probs >= 0).all()):
        raise HierspecError(f"{name} has a negative or undefined probability")
    total = float(probs.sum())
    if not abs(total - 1.0) <= _TOLERANCE:
        raise HierspecError(f"{name} sums to {total:.12g}, not 1")
    return probs


def _draw(vocab: int, generator: torch.Generator, kind: str) -> list[float]:
    uniform = torch.rand(vocab, generator=generator, dtype=torch.float64)
    weights = -torch.log1p(-uniform) + 1e-12
    if kind == "peaked":
        weights = weights**6 + 1e-6
    if kind == "zeros":
        keep = torch.rand(vocab, generator=generator, dtype=torch.float64) > 1 / 3
        keep[int(torch.randint(vocab, (1,), generator=generator))] = True
        weights = weights * keep
    return (weights / weights.sum()).tolist()
