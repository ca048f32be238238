"""Whether a text's drafts pay, by the clock of its own rounds: nothing is decoded twice."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median

_MIN_ROUNDS, _MIN_PLAIN_ROUNDS = 8, 3
_LONGEST = 4.0  # medians; what takes longer is the machine's, not the drafts'


@dataclass(slots=True)
class Pace:
    """Seconds of one text's rounds after the one that prefilled its prompt.

    Attributes:
        num_tokens: that these rounds wrote.
        rounds: of each, all of it.
        plain: of each round in which there was nothing to check: what a token takes without drafts.
        checks: of the target's calls in the other rounds. A token takes less without drafts, since
            they had more to score.
    """

    num_tokens: int = 0
    rounds: list[float] = field(default_factory=list[float])
    plain: list[float] = field(default_factory=list[float])
    checks: list[float] = field(default_factory=list[float])

    @property
    def slowdown(self) -> float | None:
        """How many times as long as without drafts a token took, at least; below 1 nothing is said
        of how much is gained. ``None``: no drafts, too few rounds, or too coarse a clock."""
        if not self.checks or len(self.rounds) < _MIN_ROUNDS:
            return None
        plain = self.plain if len(self.plain) >= _MIN_PLAIN_ROUNDS else self.checks
        longest = _LONGEST * median(self.rounds)
        # Means of both: on a busy machine the median of either is far below its mean.
        seconds, without = (
            sum(min(one, longest) for one in times) for times in (self.rounds, plain)
        )
        return (seconds / self.num_tokens) / (without / len(plain)) if without else None
