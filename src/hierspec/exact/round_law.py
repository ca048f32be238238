"""One round of the target against the target's own law: the induction step of the proof.

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
from .tables import next_token_law


class Continuation:
    """The target's own law of what follows a text, memoised by context.

    Args:
        model: with ``law(context)``, ``order`` and ``vocab_size``.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        self._rows: dict[tuple[tuple[int, ...], int], np.ndarray] = {}

    def row(self, context: tuple[int, ...]) -> np.ndarray:
        """Return the law of the token after ``context``, [V]."""
        return self._next_laws(context, 0)[0]

    def contexts(self, max_order: int) -> list[tuple[int, ...]]:
        """List the last ``max_order`` tokens of every text that the target can write.

        Whole texts where they are shorter, the empty one first.
        """
        found: dict[tuple[int, ...], None] = {(): None}
        waiting: list[tuple[int, ...]] = [()]
        for context in waiting:
            for token in np.flatnonzero(self.row(context)).tolist():
                after = last_tokens((*context, token), max_order)
                if after not in found:
                    found[after] = None
                    waiting.append(after)
        return waiting

    def distance(
        self, distributions: Iterable[tuple[int, np.ndarray]], context: tuple[int, ...], limit: int
    ) -> float:
        """Return the total variation between a round continued by the target, and the target.

        Of as many tokens as the round may emit: after them both are the target.

        Args:
            distributions: (m, [V^m]) of the texts of m tokens that the round may emit after
                ``context``.
            limit: tokens wanted; what a round emits beyond is thrown away.
        """
        V = self.model.vocab_size
        ended: dict[int, Any] = {}
        for m, law in distributions:
            kept = min(m, limit)
            ended[kept] = ended.get(kept, 0.0) + law.reshape(V**kept, -1).sum(-1)
        found, own = np.zeros(1), np.ones(1)
        for m in range(max(ended)):
            found = self._append_next(found, context, m) + ended.get(m + 1, 0.0)
            own = self._append_next(own, context, m)
        return float(np.abs(found - own).sum() / 2.0)

    def _append_next(self, law: np.ndarray, context: tuple[int, ...], m: int) -> np.ndarray:
        """Append the target's next token to a law of m tokens: [V^m] → [V^(m+1)]."""
        rows = self._next_laws(context, m)
        return (law.reshape(-1, len(rows), 1) * rows).ravel()

    def _next_laws(self, context: tuple[int, ...], m: int) -> np.ndarray:
        """Return the laws after ``context`` and each text of m tokens, if they differ: [., V]."""
        V, relevant = self.model.vocab_size, min(m, self.model.order)
        key = (last_tokens(context, self.model.order - relevant), relevant)
        if key not in self._rows:
            texts = (to_digits(n, relevant, V) for n in range(V**relevant))
            laws = [next_token_law(self.model, key[0] + text) for text in texts]
            self._rows[key] = np.stack(laws)
        return self._rows[key]


def by_length(outcomes: Iterable[Outcome], V: int) -> dict[tuple[int, Any], np.ndarray]:
    """Group a round's output: per number of tokens and window states after it, their law [V^m].

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
        out[key][from_digits(tokens, V)] += outcome.probability
    return out


def drop_states(
    distributions: Mapping[tuple[int, Any], np.ndarray],
) -> list[tuple[int, np.ndarray]]:
    """Return the laws of :func:`by_length`, whatever the states are afterwards."""
    return [(m, law) for (m, _), law in distributions.items()]


def last_tokens(text: tuple[int, ...], length: int) -> tuple[int, ...]:
    return text[max(len(text) - length, 0) :]


def to_digits(number: int, length: int, base: int) -> tuple[int, ...]:
    """Return the text of ``length`` tokens that has this number in base V."""
    return tuple(number // base ** (length - 1 - i) % base for i in range(length))


def from_digits(digits: tuple[int, ...], base: int) -> int:
    """Return the number of a text in base V."""
    out = 0
    for digit in digits:
        out = out * base + digit
    return out
