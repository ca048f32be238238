"""The nouns: what a level hands up, what a check returns, and what a generation emits.

A proposal carries its tokens *and* the law each was drawn from; that pairing is what every
exactness proof of this project needs (MATH §2). Everything here is immutable.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .laws import EMPTY, Laws, concatenate

if TYPE_CHECKING:
    from .hierarchy import Node


@dataclass(frozen=True, slots=True, eq=False)
class Proposal:
    """Tokens handed up by a node, in order, with everything the level above may ask of them.

    Attributes:
        tokens: n token ids.
        laws: n rows; row i is the law ``tokens[i]`` was drawn from, given everything before it.
        owners: n node indices: whose law row i is (parts of a concatenation differ).
        origins: n node indices: who wrote the token first.
        signals: n numbers for the owners' windows (see :mod:`hierspec.windows`); NaN where the
            owner's window reads none.
        parents: tree shape, parent index of each token (-1: the context), or ``None`` for a
            chain, which is all that today's rules verify.
        others: further drafts of the same place, in the order they were drawn; each law is given
            the drafts before it. Only a leaf hands up such, and only to a rule that takes them.
    """

    tokens: tuple[int, ...] = ()
    laws: Laws = EMPTY
    owners: tuple[int, ...] = ()
    origins: tuple[int, ...] = ()
    signals: tuple[float, ...] = ()
    parents: tuple[int, ...] | None = None
    others: tuple[Proposal, ...] = ()

    def __len__(self) -> int:
        return len(self.tokens)

    def __add__(self, other: Proposal) -> Proposal:
        if not self.tokens:
            return other
        return Proposal(
            self.tokens + other.tokens,
            concatenate([self.laws, other.laws]),
            self.owners + other.owners,
            self.origins + other.origins,
            self.signals + other.signals,
        )

    def truncated(self, n: int) -> Proposal:
        """The first ``n`` tokens: a cut by count, decided without looking at them."""
        if n >= len(self.tokens):
            return self
        return Proposal(
            self.tokens[:n],
            self.laws.rows(0, n),
            self.owners[:n],
            self.origins[:n],
            self.signals[:n],
        )


@dataclass(frozen=True, slots=True, eq=False)
class Verdict:
    """What a check decided.

    Attributes:
        num_accepted: τ, how many draft tokens were kept.
        emitted: the kept tokens, then the corrected or bonus token (absent where the node drops
            its bonus), each with its own full law of the verifying level.
        logprobs: log-probability of each emitted token under the *raw* (untempered) target, nats;
            empty unless asked for.
    """

    num_accepted: int
    emitted: Proposal
    logprobs: tuple[float, ...] = ()


# Requests: what a node asks of its interpreter. ``pending`` are the tokens of the round in
# progress that lie between the sequence's committed text and this request.


@dataclass(frozen=True, slots=True, eq=False)
class Propose:
    """Run a node and return ``(Proposal, states)``; at most ``limit`` tokens are of use."""

    node: Node
    pending: tuple[int, ...]
    limit: int
    states: States


@dataclass(frozen=True, slots=True, eq=False)
class Check:
    """Score ``draft`` with the node's model and verify it by the node's rule → ``Verdict``."""

    node: Node
    pending: tuple[int, ...]
    draft: Proposal


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """The law of a node's model after ``pending`` → ``Laws`` with one row."""

    node: Node
    pending: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Draw:
    """A token drawn from one row → token id."""

    node: Node
    law: Laws


Request = Propose | Check | Row | Draw
States = tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """One emitted token, as ``stream`` yields it.

    Attributes:
        token_id: its id.
        text: the text that became final with it; may be empty (half a character, or a possible
            beginning of a stop string) or hold several characters held back before.
        index: its place in the output, from 0.
        level: the name of the level that wrote it.
        logprob: of the raw target, nats; ``None`` unless asked for.
        sequence: which prompt of a batch it belongs to.
        finish_reason: ``None`` until the sequence's last event: ``"stop"``, ``"length"`` or
            ``"cancelled"``.
    """

    token_id: int
    text: str
    index: int
    level: str
    logprob: float | None = None
    sequence: int = 0
    finish_reason: str | None = None


def replaced(states: States, index: int, state: tuple[float, ...]) -> States:
    """``states`` with the entry of node ``index`` replaced."""
    return (*states[:index], state, *states[index + 1 :])
