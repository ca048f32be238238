"""Predicted output: a text that the answer is expected to repeat for the most part is the draft.

A caller who has a file edited knows most of what comes back. While the output follows the
prediction, what comes next there is proposed; where it has left it, the prediction is joined again
at the place, nearest to where the output should be, that the last tokens lead to. [OpenAI's
``prediction``; the look-up is that of :mod:`hierspec.drafters.prompt_lookup`]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from hierspec.core.context import Context

from .base import LookUp

_GRAMS = (8, 4, 2)  # last tokens that lead back into the prediction; longer ones are tried first


@dataclass(slots=True)
class Predicted:
    """One sequence's prediction.

    Attributes:
        tokens: of the prediction; none: nothing is proposed.
        start: length of the prompt.
        at: the place in ``tokens`` that the output's first ``seen`` tokens have reached, or where
            they would be.
        following: whether they led there.
    """

    tokens: list[int] = field(default_factory=list[int])
    start: int = 0
    at: int = 0
    seen: int = 0
    following: bool = True
    ends: dict[tuple[int, ...], list[int]] | None = None

    def expect(self, tokens: Sequence[int], start: int) -> None:
        """Predict an output that begins after ``start`` tokens."""
        self.tokens, self.start = list(tokens), start

    def place(self, output: Sequence[int]) -> int | None:
        """Where in the prediction the output goes on; ``None``: it has left it."""
        for token in output[self.seen :]:
            same = self.following and self.at < len(self.tokens) and self.tokens[self.at] == token
            self.at, self.following = self.at + 1, same
        self.seen = len(output)
        if self.following:
            return self.at
        for n in _GRAMS:
            found = self._index().get(tuple(output[-n:]), ()) if len(output) >= n else ()
            if found:
                self.at = min(found, key=lambda end: abs(end - self.at))
                self.following = True
                return self.at
        return None

    def _index(self) -> dict[tuple[int, ...], list[int]]:
        """Every n-gram of the prediction, and where it ends."""
        if self.ends is None:
            self.ends = {}
            for n in _GRAMS:
                for end in range(n, len(self.tokens) + 1):
                    self.ends.setdefault(tuple(self.tokens[end - n : end]), []).append(end)
        return self.ends


@dataclass(frozen=True, slots=True)
class Prediction(LookUp):
    """A drafter without a model. Its slots are told what to expect (:meth:`Predicted.expect`)."""

    name: str = "prediction"

    def open(self) -> Predicted:
        """A place for one sequence, which predicts nothing yet."""
        return Predicted()

    def close(self, slot: Predicted) -> None:
        """Give its memory back."""
        slot.tokens, slot.ends = [], None

    def propose(self, context: Context, limit: int, slot: Predicted) -> tuple[int, ...]:
        """Up to ``limit`` tokens of the prediction; ``()`` where the output has left it."""
        if limit <= 0 or not slot.tokens or context.pending:
            return ()
        at = slot.place(context.tokens(slot.start))
        return () if at is None else tuple(slot.tokens[at : at + limit])
