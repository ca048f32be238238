"""Windows: when a level stops gathering tokens and hands up what it holds.

A window is a stateless policy over an explicit, hashable state. A level asks ``stops`` after
every step (a token for a drafter, a round for a verifying level) and the token that made it stop
is always kept: dropping a token because of its own value is lossy, stopping after it is not
(MATH §2). ``observe`` sees the verdict of the level above and returns the next state.

A window reads one number per token, its ``signal``, taken from *untempered* scores, so that it
works for greedy decoding too: ``"entropy"`` of the level's own row, in nats, or ``"confidence"``,
the probability that row gives the token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

State = tuple[float, ...]
Signal = Literal["entropy", "confidence"]


@dataclass(frozen=True, slots=True)
class FixedWindow:
    """Hand up at the budget, never before it: ``num_speculative_tokens`` is the whole rule."""

    signal: ClassVar[Signal | None] = None
    fixed_length: ClassVar[bool] = True

    def init(self) -> State:
        return ()

    def stops(self, signals: Sequence[float], state: State) -> bool:
        return False

    def observe(self, state: State, signals: Sequence[float], num_accepted: int) -> State:
        return state


@dataclass(frozen=True, slots=True)
class EntropyWindow:
    """Stop after the first token whose row has entropy above a threshold.

    With ``threshold=None`` the threshold is a running mean, over the sequence so far, of the
    entropies of this level's own rows at the tokens that the level above rejected; it starts at
    0, so that drafts are one token long until something was rejected. [P5 §3.1, Algorithm 1;
    MATH §2]

    Attributes:
        threshold: nats; ``None`` for the running one.
    """

    threshold: float | None = None
    signal: ClassVar[Signal | None] = "entropy"
    fixed_length: ClassVar[bool] = False

    def init(self) -> State:
        return (0.0, 0.0)  # sum of entropies at rejected tokens, how many

    def limit(self, state: State) -> float:
        """The threshold in force, in nats."""
        if self.threshold is not None:
            return self.threshold
        total, count = state
        return total / count if count else 0.0

    def stops(self, signals: Sequence[float], state: State) -> bool:
        limit = self.limit(state)
        return any(value > limit for value in signals)

    def observe(self, state: State, signals: Sequence[float], num_accepted: int) -> State:
        if self.threshold is not None or num_accepted >= len(signals):
            return state
        return (state[0] + signals[num_accepted], state[1] + 1.0)


@dataclass(frozen=True, slots=True)
class ConfidenceWindow:
    """Stop after the first token to which this level's own row gives less than ``floor``."""

    floor: float = 0.4
    signal: ClassVar[Signal | None] = "confidence"
    fixed_length: ClassVar[bool] = False

    def init(self) -> State:
        return ()

    def stops(self, signals: Sequence[float], state: State) -> bool:
        return any(value < self.floor for value in signals)

    def observe(self, state: State, signals: Sequence[float], num_accepted: int) -> State:
        return state


Window = FixedWindow | EntropyWindow | ConfidenceWindow
