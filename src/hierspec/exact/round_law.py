"""One round of the target against what the target would have written: the step of the proof.

Let every round, followed by the target's own law, have the target's own law, from every state that
a generation can be in. Then so has the whole text, by induction over rounds: what the last round
left is a state like any other, and given the text its future is the target's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from hierspec.errors import HierspecError

from .interpreter import Outcome
from .tables import row_of


class Continuation:
    """The target's own law of what follows a text, kept for the contexts asked about.

    Args:
        model: with ``law(context)``, ``order`` and ``vocab_size``.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        self._rows: dict[tuple[tuple[int, ...], int], np.ndarray] = {}

    def row(self, context: tuple[int, ...]) -> np.ndarray:
        """The law of the token after ``context``, [V]."""
        return self._after(context, 0)[0]

    def contexts(self, reach: int) -> list[tuple[int, ...]]:
        """Every ending, ``reach`` tokens long, of a text that the target can write.

        Whole texts where they are shorter, the empty one first.
        """
        found: dict[tuple[int, ...], None] = {(): None}
        waiting: list[tuple[int, ...]] = [()]
        for context in waiting:
            for token in np.flatnonzero(self.row(context)).tolist():
                after = ending((*context, token), reach)
                if after not in found:
                    found[after] = None
                    waiting.append(after)
        return waiting

    def distance(
        self, distributions: Iterable[tuple[int, np.ndarray]], context: tuple[int, ...], limit: int
    ) -> float:
        """Total variation between a round continued by the target, and the target alone.

        Of as many tokens as the round may emit: after them both are the target.

        Args:
            distributions: of the texts of m tokens that the round may emit after ``context``: (m,
            [V^m]). limit: tokens wanted; what a round emits beyond is thrown away.
        """
        V = self.model.vocab_size
        ended: dict[int, Any] = {}
        for m, law in distributions:
            kept = min(m, limit)
            ended[kept] = ended.get(kept, 0.0) + law.reshape(V**kept, -1).sum(-1)
        found, own = np.zeros(1), np.ones(1)
        for m in range(max(ended)):
            found = self._extended(found, context, m) + ended.get(m + 1, 0.0)
            own = self._extended(own, context, m)
        return float(np.abs(found - own).sum() / 2.0)

    def _extended(self, law: np.ndarray, context: tuple[int, ...], m: int) -> np.ndarray:
        """A law of m tokens after ``context``, [V^m], with the target's next one: [V^(m+1)]."""
        rows = self._after(context, m)
        return (law.reshape(-1, len(rows), 1) * rows).ravel()

    def _after(self, context: tuple[int, ...], m: int) -> np.ndarray:
        """Rows after ``context`` and each text of m tokens, as far as they matter: [., V]."""
        V, known = self.model.vocab_size, min(m, self.model.order)
        key = (ending(context, self.model.order - known), known)
        if key not in self._rows:
            texts = (digits(n, known, V) for n in range(V**known))
            self._rows[key] = np.stack([row_of(self.model, key[0] + text) for text in texts])
        return self._rows[key]


def by_length(outcomes: Iterable[Outcome], V: int) -> dict[tuple[int, Any], np.ndarray]:
    """What a round emits: per number of tokens and window states afterwards, their law [V^m].

    Raises:
        HierspecError: it may emit nothing, so that a text would never end.
    """
    out: dict[tuple[int, Any], np.ndarray] = {}
    for outcome in outcomes:
        verdict, after = outcome.value
        tokens = verdict.emitted.tokens
        if not tokens:
            raise HierspecError("a round of the target emitted nothing")
        key = (len(tokens), after)
        if key not in out:
            out[key] = np.zeros(V ** len(tokens))
        out[key][number(tokens, V)] += outcome.probability
    return out


def lengths(distributions: Mapping[tuple[int, Any], np.ndarray]) -> list[tuple[int, np.ndarray]]:
    """The same, whatever the states are afterwards."""
    return [(m, law) for (m, _), law in distributions.items()]


def ending(text: tuple[int, ...], length: int) -> tuple[int, ...]:
    """The last ``length`` tokens."""
    return text[max(len(text) - length, 0) :]


def digits(number: int, length: int, base: int) -> tuple[int, ...]:
    """A text of ``length`` tokens from its number in base V."""
    return tuple(number // base ** (length - 1 - i) % base for i in range(length))


def number(digits: tuple[int, ...], base: int) -> int:
    """The number of a text in base V."""
    out = 0
    for digit in digits:
        out = out * base + digit
    return out
