"""What the engine asks of a language model: scores for positions, and nothing else.

A model never sees the hierarchy. It is handed contexts and says, for the positions asked,
how it scores the next token. What it has cached is its own business: a :class:`Slot` knows
which tokens it holds, so a caller never feeds, rewinds or patches a cache. It states the whole
context, and the slot works out what is missing (design principle 5).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import torch

from hierspec.core.context import Context

if TYPE_CHECKING:
    from hierspec.core.distributions import Distributions
    from hierspec.sampling.sampler import Sampler


@dataclass(slots=True)
class Slot:
    """One sequence's place in one model's cache: the tokens held, and the model's own state.

    ``held`` are the tokens whose keys and values (or other state) are cached, in order. The first
    ``agreed`` of them are known to equal the sequence's committed tokens, which never change, so
    that :meth:`overlap` compares only the few that follow.
    """

    held: list[int] = field(default_factory=list)
    agreed: int = 0
    state: Any = None

    def overlap(self, context: Context, at_most: int) -> int:
        """How many leading tokens of ``context`` are held already, capped at ``at_most``."""
        n = self.agreed
        limit = min(len(self.held), len(context), at_most)
        if n > limit:
            return limit
        for token in context.tokens(n)[: limit - n]:
            if self.held[n] != token:
                break
            n += 1
        self.agreed = max(self.agreed, min(n, len(context.committed)))
        return n


@dataclass(frozen=True, slots=True)
class Query:
    """Scores wanted: for the next token after ``context[:start]``, … , after all of ``context``.

    That is ``len(context) - start + 1`` rows. A draft step asks with ``start == len(context)``
    (one row); the check of n draft tokens asks with ``start == len(context) - n`` (n + 1 rows).
    ``start`` is at least 1.
    """

    slot: Slot
    context: Context
    start: int

    @property
    def num_rows(self) -> int:
        return len(self.context) - self.start + 1


class Drafted(NamedTuple):
    """What a model drafted on its own, sequence by sequence.

    Attributes:
        tokens: each draft's token ids.
        distributions: the laws they were drawn from, as many rows each.
        calls: forwards made.
        pick_seconds: of the time taken, what went to reading laws and picking tokens; 0 where the
            device does both.
        signals: what the reading's window reads, a number a token; only of a model that drafts
            on its device.
    """

    tokens: list[list[int]]
    distributions: list[Distributions]
    calls: int
    pick_seconds: float
    signals: list[list[float]] | None = None


@runtime_checkable
class LanguageModel(Protocol):
    """Anything that can score positions: a transformer, an early exit of one, a table.

    Attributes:
        name: for messages and metrics.
        vocab_size: V, the number of token ids it scores (a padded embedding counts its padding).
        max_length: the longest context it can take, in tokens.
        device: where its scores live.
    """

    name: str
    vocab_size: int
    max_length: int
    device: torch.device

    def open(self) -> Slot:
        """A fresh, empty slot for one sequence."""
        ...

    def close(self, slot: Slot) -> None:
        """Give a slot's memory back."""
        ...

    def score(self, queries: Sequence[Query]) -> torch.Tensor:
        """Raw scores (logits; no temperature) of all rows asked, packed query after query.

        Returns a tensor [Σ num_rows, V], float32 (float64 for float64 models). Slots are brought
        up to date on the way: rewound to what they share with the context, then fed what is
        missing. Queries of one call may differ in length; a slot appears at most once.
        """
        ...


@runtime_checkable
class Drafter(Protocol):
    """A language model that can draft several tokens without being asked for each.

    For drafts whose lengths are known beforehand, of requests that share one reading of the scores.
    """

    def draft(
        self,
        queries: Sequence[Query],
        counts: Sequence[int],
        steps: int,
        sampler: Sampler,
        uniforms: Sequence[Sequence[float]],
    ) -> Drafted:
        """Draft ``counts[b]`` ≥ 1 tokens after the context of query b, all side by side.

        The same as asking :meth:`LanguageModel.score` for a row, picking a token and asking again
        with that token in the context.

        Args:
            queries: B queries for one row each (``start == len(context)``).
            steps: how many the level drafts as a rule, at least ``max(counts)``; a device may run
                that many and cut.
            uniforms: for each query as many as its count, spent in order; none where greedy.

        Raises:
            NoDistributionError: some row of scores has NaN or forbids every token.
        """
        ...
