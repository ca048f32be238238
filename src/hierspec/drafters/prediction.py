"""Predicted output: a text that the answer is expected to repeat for the most part is the draft.

A caller who has a file edited knows most of what comes back. While the output follows the
prediction, what comes next there is proposed; where it has left the prediction, it is matched again
at the occurrence of its last tokens that is nearest to where the output should be. [OpenAI's
``prediction``; the look-up is that of :mod:`hierspec.drafters.prompt_lookup`]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from hierspec.core.context import Context

from .base import LookUp

_GRAM_LENGTHS = (8, 4, 2)  # last tokens looked for in the prediction, the longest first


@dataclass(slots=True)
class PredictionSlot:
    """One sequence's prediction.

    Attributes:
        tokens: of the prediction; without any, nothing is proposed.
        start: length of the prompt.
        position: in ``tokens``, after the output's first ``num_read`` tokens; or an estimate.
        following: whether the output agrees with the prediction up to there.
        ends: every n-gram of the prediction → where it ends; ``None`` until it is needed.
    """

    tokens: list[int] = field(default_factory=list[int])
    start: int = 0
    position: int = 0
    num_read: int = 0
    following: bool = True
    ends: dict[tuple[int, ...], list[int]] | None = None

    def expect(self, tokens: Sequence[int], start: int) -> None:
        self.tokens, self.start = list(tokens), start

    def next_position(self, output: Sequence[int]) -> int | None:
        """Return where in the prediction the output goes on; ``None`` where it has left it."""
        for token in output[self.num_read :]:
            expected = self.tokens[self.position : self.position + 1]
            self.following = self.following and expected == [token]
            self.position += 1
        self.num_read = len(output)
        if self.following:
            return self.position
        for n in _GRAM_LENGTHS:
            ends = self._index().get(tuple(output[-n:]), ()) if len(output) >= n else ()
            if ends:
                self.position = min(ends, key=lambda end: abs(end - self.position))
                self.following = True
                return self.position
        return None

    def _index(self) -> dict[tuple[int, ...], list[int]]:
        if self.ends is None:
            self.ends = {}
            for n in _GRAM_LENGTHS:
                for end in range(n, len(self.tokens) + 1):
                    self.ends.setdefault(tuple(self.tokens[end - n : end]), []).append(end)
        return self.ends


@dataclass(frozen=True, slots=True)
class Prediction(LookUp):
    """A drafter without a model. Each slot gets its prediction by :meth:`PredictionSlot.expect`."""

    name: str = "prediction"

    def open(self) -> PredictionSlot:
        return PredictionSlot()

    def close(self, slot: PredictionSlot) -> None:
        slot.tokens, slot.ends = [], None

    def propose(self, context: Context, limit: int, slot: PredictionSlot) -> tuple[int, ...]:
        if limit <= 0 or not slot.tokens or context.pending:
            return ()
        start = slot.next_position(context.tokens(slot.start))
        return () if start is None else tuple(slot.tokens[start : start + limit])
