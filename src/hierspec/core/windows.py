"""Windows: when a level stops gathering tokens and hands up what it holds.

A window is a stateless policy over an explicit, hashable state. A level asks ``stops`` after
every step (a token for a drafter, a round for a verifying level) and the token that made it stop
is always kept in it: dropping a token because of its own value is lossy, stopping after it is not
(MATH §2). A drafter passes the signals of its draft so far, a verifying level those of its latest
round. ``observe`` sees the verdict of the level above and returns the next state.

A window reads one number per token, its ``signal``: ``signals`` has one for each token, NaN if the
window reads none. Two are taken from *untempered* scores, so that they work for greedy decoding
too: ``"entropy"`` of the level's own row, in nats, and ``"confidence"``, the probability that row
gives the token. ``"acceptance"`` is what the draft model itself predicts: how likely the level
above keeps the token, given that it kept those before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

# Tolerance, in nats, of comparing an entropy with a running mean of entropies: whether n equal
# numbers add up to n times the number is chance, and no decision may depend on it.
MEAN_ROUNDING = 1e-9

State = tuple[float, ...]
Signal = Literal["entropy", "confidence", "acceptance"]


class StatelessWindow:
    """A window without memory; hashable, as all are.

    Attributes:
        signal: the number that it reads of each token, if any.
        fixed_length: whether it never stops before the budget.
    """

    __slots__ = ()
    signal: ClassVar[Signal | None]
    fixed_length: ClassVar[bool] = False

    def init(self) -> State:
        return ()

    def stops(self, signals: Sequence[float], state: State) -> bool:
        return False

    def observe(self, state: State, signals: Sequence[float], num_accepted: int) -> State:
        return state


@dataclass(frozen=True, slots=True)
class FixedWindow(StatelessWindow):
    """Hand up at the budget, never before it: ``num_speculative_tokens`` is the whole rule."""

    kind: ClassVar[str] = "fixed"
    signal: ClassVar[Signal | None] = None
    fixed_length: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class EntropyWindow:
    """Stop after the first token whose row has entropy above a threshold.

    With ``threshold=None`` the threshold is a running mean, over the sequence so far, of the
    entropies of this level's own rows at the tokens that the level above rejected; it starts at
    0, so that drafts are one token long until something was rejected. [P5 §3.1, Algorithm 1;
    MATH §2]
    """

    threshold: float | None = None
    kind: ClassVar[str] = "entropy"
    signal: ClassVar[Signal | None] = "entropy"
    fixed_length: ClassVar[bool] = False

    def init(self) -> State:
        return (0.0, 0.0)  # sum of entropies at rejected tokens, how many

    def threshold_after(self, state: State) -> float:
        if self.threshold is not None:
            return self.threshold
        total, count = state
        return total / count if count else 0.0

    def stops(self, signals: Sequence[float], state: State) -> bool:
        threshold = self.threshold_after(state)
        if self.threshold is None:
            threshold += MEAN_ROUNDING
        return any(value > threshold for value in signals)

    def observe(self, state: State, signals: Sequence[float], num_accepted: int) -> State:
        if self.threshold is not None or num_accepted >= len(signals):
            return state
        return (state[0] + signals[num_accepted], state[1] + 1.0)


@dataclass(frozen=True, slots=True)
class ConfidenceWindow(StatelessWindow):
    """Stop after the first token to which this level's own row gives less than ``floor``."""

    floor: float = 0.4
    kind: ClassVar[str] = "confidence"
    signal: ClassVar[Signal | None] = "confidence"

    def stops(self, signals: Sequence[float], state: State) -> bool:
        return any(value < self.floor for value in signals)


@dataclass(frozen=True, slots=True)
class WatchingWindow(StatelessWindow):
    """Read a signal, for whoever measures it, and never stop before the budget."""

    signal: Signal  # pyright: ignore[reportIncompatibleVariableOverride]


class Counts(NamedTuple):
    """How a level's drafts fared at the level above.

    Attributes:
        drafts: how many non-empty ones were verified.
        drafted: how many tokens they held.
        accepted: how many of those tokens were accepted.
        rejected: how many drafts were not accepted whole.
    """

    drafts: float = 0.0
    drafted: float = 0.0
    accepted: float = 0.0
    rejected: float = 0.0


@dataclass(frozen=True, slots=True)
class Counting:
    """A window that stops as ``inner`` does, and counts what the level above accepted in its state.

    A controller reads the counts between rounds (:mod:`hierspec.engine.control`). They never make a
    draft stop, so no outcome of a round affects that round.
    """

    inner: Window = FixedWindow()

    @property
    def signal(self) -> Signal | None:
        return self.inner.signal

    @property
    def fixed_length(self) -> bool:
        return self.inner.fixed_length

    def init(self) -> State:
        return (*Counts(), *self.inner.init())

    def stops(self, signals: Sequence[float], state: State) -> bool:
        return self.inner.stops(signals, state[len(Counts()) :])

    def observe(self, state: State, signals: Sequence[float], num_accepted: int) -> State:
        drafts, drafted, accepted, rejected = self.counts(state)
        n = len(signals)
        counts = (drafts + 1.0, drafted + n, accepted + num_accepted, rejected + (num_accepted < n))
        return (*counts, *self.inner.observe(state[len(counts) :], signals, num_accepted))

    def counts(self, state: State) -> Counts:
        return Counts(*state[: len(Counts())])

    def clear_counts(self, state: State) -> State:
        """Return the state with its counts at zero; what ``inner`` remembers stays."""
        return (*Counts(), *state[len(Counts()) :])


Window = StatelessWindow | EntropyWindow | Counting
