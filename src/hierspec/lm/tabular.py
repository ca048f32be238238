"""Language models that are tables: exact, tiny, and part of the library.

The next token's distribution depends on the last ``order`` tokens only, and is listed in a table.
Certificates enumerate such models, tests and docs run on them, and with :meth:`TabularModel.score`
the whole engine runs them like any other model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import torch

from hierspec.errors import HierspecError

from .base import Query, UncachedModel

KINDS = ("random", "peaked", "zeros")
_TOLERANCE = 1e-9


class TabularModel(UncachedModel):
    """A next-token distribution for every last ``order`` tokens (fewer at the start of the text).

    Args:
        vocab: V, the number of tokens.
        order: how many last tokens count; 0: one distribution for all positions.
        table: V probabilities for each key: ``""``, ``"0"``, ``"0,1"`` (oldest token first), or
            tuples of ints. Every key of length 0 … order must be there.
        acceptance: under the same keys, the predicted probability that each of the V next tokens is
            accepted, for a window that reads it; ``None``: no predictions.

    Raises:
        HierspecError: a distribution is missing, too long, negative, or does not sum to 1 within
            1e-9; or a prediction is no probability.
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
        acceptance: Mapping[Any, Sequence[float]] | None = None,
    ) -> None:
        if vocab < 1 or order < 0:
            raise HierspecError(
                f"vocab must be positive and order at least 0; got {vocab}, {order}"
            )
        rows = {_key(key): row for key, row in table.items()}
        keys = _contexts(vocab, order)
        _validate_keys(rows, keys, order)
        self.name = name
        self.vocab_size = vocab
        self.order = order
        self.max_length = max_length
        self._index = {key: i for i, key in enumerate(keys)}
        self._probs = torch.stack([_distribution(key, rows[key], vocab) for key in keys])
        self._scores = self._probs.log()
        self._acceptance: torch.Tensor | None = None
        if acceptance is not None:
            rates = {_key(key): values for key, values in acceptance.items()}
            _validate_keys(rates, keys, order)
            self._acceptance = torch.stack([_rates(key, rates[key], vocab) for key in keys])

    def distribution(self, context: Sequence[int]) -> torch.Tensor:
        """Return the next token's distribution after ``context``, float64 [V]: do not change it."""
        return self._probs[self._row(context)]

    def table(self) -> dict[str, list[float]]:
        """Return the distributions by string keys, as the constructor and JSON cases take them."""
        return {",".join(map(str, key)): self._probs[i].tolist() for key, i in self._index.items()}

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


def _rates(key: tuple[int, ...], values: Sequence[float], vocab: int) -> torch.Tensor:
    rates = torch.as_tensor(values, dtype=torch.float64)
    if rates.shape != (vocab,) or not bool(((rates >= 0) & (rates <= 1)).all()):
        name = f"the acceptance after {','.join(map(str, key))!r}"
        raise HierspecError(f"{name} must be {vocab} numbers between 0 and 1")
    return rates


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
