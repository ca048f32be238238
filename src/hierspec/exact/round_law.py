"""One round of the hierarchy compared with the target alone: the induction step of the proof.

Suppose that, from every state that a generation can be in, one round continued by the target alone
has the law of the target alone. Then the whole text has it too, by induction over rounds: the state
after a round is one of these states, and what follows it has the target's law, given the text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from hierspec.errors import HierspecError
from hierspec.verifiers.formulas import total_variation

from .interpreter import Outcome
from .tables import next_token_distribution


class Continuation:
    """The law of texts that the target alone writes after a context, memoised by context.

    Args:
        model: with ``distribution(context)``, ``order`` and ``vocab_size``.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        self._rows: dict[tuple[tuple[int, ...], int], np.ndarray] = {}

    def row(self, context: tuple[int, ...]) -> np.ndarray:
        """Return the distribution of the token after ``context``, [V]."""
        return self._next_rows(context, 0)[0]

    def contexts(self, max_order: int) -> list[tuple[int, ...]]:
        """List the last ``max_order`` tokens (of shorter texts, all) of every text of the target.

        The empty text is the first.
        """
        contexts: dict[tuple[int, ...], None] = {(): None}
        waiting: list[tuple[int, ...]] = [()]
        for context in waiting:
            for token in np.flatnonzero(self.row(context)).tolist():
                next_context = last_tokens((*context, token), max_order)
                if next_context not in contexts:
                    contexts[next_context] = None
                    waiting.append(next_context)
        return waiting

    def distance(
        self, distributions: Iterable[tuple[int, np.ndarray]], context: tuple[int, ...], limit: int
    ) -> float:
        """Return the total variation distance of a round continued by the target from the target.

        The laws compared are of as many tokens as the round may emit: later ones are the target's.

        Args:
            distributions: (m, [V^m]) of the texts of m tokens that the round may emit after
                ``context``.
            limit: of tokens; the round's further tokens are dropped.
        """
        V = self.model.vocab_size
        ended: dict[int, Any] = {}
        for m, law in distributions:
            kept = min(m, limit)
            ended[kept] = ended.get(kept, 0.0) + law.reshape(V**kept, -1).sum(-1)
        round_law, target_law = np.zeros(1), np.ones(1)
        for m in range(max(ended)):
            round_law = self._append_next(round_law, context, m) + ended.get(m + 1, 0.0)
            target_law = self._append_next(target_law, context, m)
        return float(total_variation(round_law, target_law))

    def _append_next(self, law: np.ndarray, context: tuple[int, ...], m: int) -> np.ndarray:
        """Append the target's next token to a law of m tokens: [V^m] → [V^(m+1)]."""
        rows = self._next_rows(context, m)
        return (law.reshape(-1, len(rows), 1) * rows).ravel()

    def _next_rows(self, context: tuple[int, ...], m: int) -> np.ndarray:
        """Return the distributions after ``context`` and each text of m tokens: [V^r, V].

        r ≤ m is how many of these tokens matter.
        """
        V, relevant = self.model.vocab_size, min(m, self.model.order)
        key = (last_tokens(context, self.model.order - relevant), relevant)
        if key not in self._rows:
            texts = (to_digits(n, relevant, V) for n in range(V**relevant))
            rows = [next_token_distribution(self.model, key[0] + text) for text in texts]
            self._rows[key] = np.stack(rows)
        return self._rows[key]


def by_length(outcomes: Iterable[Outcome], V: int) -> dict[tuple[int, Any], np.ndarray]:
    """Return the laws of a round's texts [V^m], by their length m and the window states after it.

    Raises:
        HierspecError: it may emit nothing, so that a text would never end.
    """
    laws: dict[tuple[int, Any], np.ndarray] = {}
    for outcome in outcomes:
        verdict, next_states = outcome.value
        tokens = verdict.emitted.tokens
        if not tokens:
            raise HierspecError("a round of the target emitted nothing")
        key = (len(tokens), next_states)
        if key not in laws:
            laws[key] = np.zeros(V ** len(tokens))
        laws[key][from_digits(tokens, V)] += outcome.probability
    return laws


def drop_states(
    distributions: Mapping[tuple[int, Any], np.ndarray],
) -> list[tuple[int, np.ndarray]]:
    """Return the laws of :func:`by_length` without the states."""
    return [(m, law) for (m, _), law in distributions.items()]


def last_tokens(text: tuple[int, ...], length: int) -> tuple[int, ...]:
    return text[max(len(text) - length, 0) :]


def to_digits(number: int, length: int, base: int) -> tuple[int, ...]:
    """Return the text of ``length`` tokens that has this number in base V."""
    return tuple(number // base ** (length - 1 - i) % base for i in range(length))


def from_digits(digits: tuple[int, ...], base: int) -> int:
    """Return the number of a text in base V."""
    number = 0
    for digit in digits:
        number = number * base + digit
    return number
