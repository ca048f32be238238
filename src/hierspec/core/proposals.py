"""What a level hands up, and what a check decides.

A proposal carries its tokens *and* the distribution each was drawn from; that pairing is what every
exactness proof of this project needs (MATH §2). Everything here is immutable.
"""

from __future__ import annotations

from dataclasses import dataclass

from .distributions import EMPTY, Distributions, concatenate

TokenLogprobs = tuple[tuple[int, float], ...]  # pairs (token id, log-probability in nats)


@dataclass(frozen=True, slots=True, eq=False)
class Proposal:
    """Tokens handed up by a node, in order, with everything that the level above may need.

    Attributes:
        tokens: n token ids.
        distributions: n rows; ``tokens[i]`` was drawn from row i, given everything before it.
        owners: n node indices: the node whose distribution row i is (parts of a concatenation
            differ).
        origins: n node indices: the node that wrote the token first.
        signals: n numbers for the owners' windows (see :mod:`hierspec.core.windows`); NaN where the
            owner's window reads none.
        alternatives: further drafts from the same position, in the order they were drawn, each
            given the drafts before it. Only a leaf makes them, and only for a multi-draft rule.
    """

    tokens: tuple[int, ...] = ()
    distributions: Distributions = EMPTY
    owners: tuple[int, ...] = ()
    origins: tuple[int, ...] = ()
    signals: tuple[float, ...] = ()
    alternatives: tuple[Proposal, ...] = ()

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def drafts(self) -> tuple[Proposal, ...]:
        return (self, *self.alternatives)

    def __add__(self, other: Proposal) -> Proposal:
        if not self.tokens:
            return other
        return Proposal(
            self.tokens + other.tokens,
            concatenate([self.distributions, other.distributions]),
            self.owners + other.owners,
            self.origins + other.origins,
            self.signals + other.signals,
        )

    def truncated(self, n: int) -> Proposal:
        """Return the first ``n`` tokens: a cut by count, decided without looking at them."""
        if n >= len(self.tokens):
            return self
        return Proposal(
            self.tokens[:n],
            self.distributions.rows(0, n),
            self.owners[:n],
            self.origins[:n],
            self.signals[:n],
        )


@dataclass(frozen=True, slots=True, eq=False)
class Verdict:
    """What a check decided.

    Attributes:
        num_accepted: τ, how many draft tokens were accepted.
        emitted: the accepted tokens, then the recovered or bonus token (absent where the node drops
            its bonus), each with its own full distribution of the verifying level.
        logprobs: log-probability of each emitted token under the *raw* (untempered) target, nats;
            empty unless requested.
        top_logprobs: at each emitted token's position, the likeliest tokens and their
            log-probabilities, best first; as many as were requested.
    """

    num_accepted: int
    emitted: Proposal
    logprobs: tuple[float, ...] = ()
    top_logprobs: tuple[TokenLogprobs, ...] = ()


States = tuple[tuple[float, ...], ...]
