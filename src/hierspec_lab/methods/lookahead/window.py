"""Lookahead decoding: the target writes its own n-grams, and checks them. [Fu et al. 2024]

A *window* of guesses follows the text: ``ngram_size`` − 1 rows of ``window_size`` columns,
each row one Jacobi iteration older than the next. A column is a trajectory: its guesses of one
iteration after another follow each other in the text. Every call of the target computes, beside the
check of known n-grams, the next guess of every column; a column's guesses from the oldest to this
one are an n-gram, which joins the pool. [Fu et al. 2024, Algorithm 2, Figure 3]

A guess of the oldest row comes after the guesses left of it; every other one after its column's
older ones. So the window is a token tree: its oldest row is a path, and the rest of each column
is a branch from its token there. Known n-grams that begin with the text's last token are further
paths. One forward scores all of it, under the tree's mask.

As in their code, the window advances by one position a call, however many tokens were accepted,
guesses begin as tokens of the text drawn at random, the pool keeps ``max_candidates`` n-grams for
each first token, the latest ones, and n-grams of the text itself join it. Two things differ: a
column of the window is checked like any other path, so that its guesses may be accepted; and the
rule is recursive rejection over one-hot drafts, which is their sampling rule (Algorithm 4) with
trees.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from hierspec.core.distributions import Distributions, OneHotDistributions, likeliest
from hierspec.core.proposals import Proposal
from hierspec.drafters.base import CheckedDraft, DraftCall, LookUp, LookUpDraft
from hierspec.errors import HierspecError

Gram = tuple[int, ...]


@dataclass(slots=True)
class LookaheadSlot:
    """What is kept of one sequence.

    Attributes:
        grams: first token → what followed it, ``ngram_size`` − 1 tokens each, the latest last.
        rows: the window, oldest row first; column c of row r is a guess r + c positions after
            the text's last token, which is column 0 of the oldest row.
        paths: of the latest call, the tokens from the text to each column's newest guess.
        indexed: how much of the text is in ``grams``.
    """

    grams: dict[int, list[Gram]] = field(default_factory=dict[int, list[Gram]])
    rows: list[list[int]] = field(default_factory=list[list[int]])
    paths: list[Gram] = field(default_factory=list[Gram])
    indexed: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Lookahead(LookUp):
    """A drafter without a model of its own, directly below the target.

    Attributes:
        ngram_size: tokens of an n-gram, its first one included (their N), at least 2.
        window_size: columns of the window (their W).
        max_candidates: n-grams checked in a call, and kept for each first token (their G).
    """

    ngram_size: int = 5
    window_size: int = 7
    max_candidates: int = 7
    name: str = "lookahead"

    def __post_init__(self) -> None:
        if self.ngram_size < 2 or self.window_size < 1 or self.max_candidates < 1:
            raise HierspecError(
                "lookahead needs n-grams of at least 2 tokens, a window of at least 1 column and "
                f"at least 1 candidate, got {self.ngram_size}, {self.window_size} and "
                f"{self.max_candidates}"
            )

    @property
    def depth(self) -> int:
        """How far beyond the text the window reaches, in tokens."""
        return self.window_size + self.ngram_size - 3

    def open(self) -> LookaheadSlot:
        return LookaheadSlot()

    def close(self, slot: LookaheadSlot) -> None:
        slot.grams.clear()
        slot.rows, slot.paths, slot.indexed = [], [], 0

    def drafts(self, call: DraftCall, slot: LookaheadSlot) -> list[LookUpDraft]:
        """Return the window's columns, longest path first, then the candidates, latest first.

        Where a call's limit is less than the window's depth, there is no window in it.
        """
        text = call.job.context.with_source().tokens()
        self._index(text, slot)
        slot.paths = self._paths(text, slot) if call.limit >= self.depth else []
        candidates = [gram[: call.limit] for gram in reversed(slot.grams.get(text[-1], []))]
        unique = dict.fromkeys((*reversed(slot.paths), *candidates))
        longest_first = sorted(filter(None, unique), key=len, reverse=True)
        return [(path, OneHotDistributions(path)) for path in longest_first]

    def learn_from(
        self,
        text: Sequence[int],
        draft: Proposal,
        p: Distributions,
        num_accepted: int,
        checked: Sequence[CheckedDraft],
        slot: LookaheadSlot,
    ) -> None:
        """Move the window on by one iteration, and keep the n-grams that it has completed."""
        choices: dict[Gram, int] = {}
        for alternative, rows in checked:
            choices |= {alternative.tokens[:i]: token for i, token in enumerate(likeliest(rows))}
        if not slot.paths or not all(path in choices for path in slot.paths):
            return
        rows, new = slot.rows, [choices[path] for path in slot.paths]
        slot.paths = []
        if len(rows) < self.ngram_size - 1:
            # The text advances by one position, and no row is old enough to be dropped.
            slot.rows = [row[1:] for row in (*rows, new)]
            return
        for column in zip(*rows, new, strict=True):
            self._keep(column, slot)
        slot.rows = [*rows[1:], new]

    def _paths(self, text: Sequence[int], slot: LookaheadSlot) -> list[Gram]:
        """Return the path from the text to each column's newest guess, left to right."""
        if not slot.rows:
            # Every call until the window is full costs a column.
            slot.rows = [random.Random(len(text)).choices(text, k=self.depth + 1)]
        oldest, *newer = slot.rows
        oldest[0] = text[-1]
        return [
            (*oldest[1 : column + 1], *(row[column] for row in newer))
            for column in range(len(oldest))
        ]

    def _index(self, text: Sequence[int], slot: LookaheadSlot) -> None:
        """Add the text's new n-grams."""
        n = self.ngram_size
        for end in range(max(slot.indexed + 1, n), len(text) + 1):
            self._keep(tuple(text[end - n : end]), slot)
        slot.indexed = len(text)

    def _keep(self, gram: Gram, slot: LookaheadSlot) -> None:
        first, rest = gram[0], gram[1:]
        grams = slot.grams.setdefault(first, [])
        if rest in grams:
            grams.remove(rest)
        grams.append(rest)
        del grams[: -self.max_candidates]
