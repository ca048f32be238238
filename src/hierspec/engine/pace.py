"""Whether a text's drafts pay, by the clock of its own rounds: nothing is decoded twice."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any
from weakref import WeakKeyDictionary

from hierspec.core.proposals import Verdict
from hierspec.core.requests import Check, Row

from .observers import Observer
from .sequences import LiveSequence, Task

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
        of how much is gained. ``None``: there were no drafts, or too few rounds."""
        if not self.checks or len(self.rounds) < _MIN_ROUNDS:
            return None
        plain = self.plain if len(self.plain) >= _MIN_PLAIN_ROUNDS else self.checks
        longest = _LONGEST * median(self.rounds)
        # Means of both: on a busy machine the median of either is far below its mean.
        seconds, without = (
            sum(min(one, longest) for one in times) for times in (self.rounds, plain)
        )
        return (seconds / self.num_tokens) / (without / len(plain))


class Paces(Observer):
    """Measures the rounds of sequences that run alone: others share their calls.

    Args:
        root: index of the target's node.
    """

    def __init__(self, root: int) -> None:
        self._root, self._paces = root, WeakKeyDictionary[LiveSequence, Pace]()
        self._began = self._target_seconds = 0.0
        self._drafted = self._started = False

    def slowdown(self, sequence: LiveSequence) -> float | None:
        pace = self._paces.get(sequence)
        return None if pace is None else pace.slowdown

    def on_round_begin(self, sequences: Sequence[LiveSequence]) -> None:
        first = sequences[0]
        self._started = len(sequences) == 1 and len(first.tokens) > first.prompt_length
        self._target_seconds, self._drafted = 0.0, False
        self._began = time.perf_counter()

    def on_answer(
        self, tasks: Sequence[Task], answers: Sequence[Any], began: float, seconds: float
    ) -> None:
        request = tasks[0].request
        if isinstance(request, Check | Row) and request.node.index == self._root:
            self._target_seconds += seconds
            self._drafted |= isinstance(request, Check) and len(request.draft) > 0

    def on_round_end(self, sequences: Sequence[LiveSequence], verdicts: Sequence[Verdict]) -> None:
        if not self._started or not sequences:  # it failed
            return
        seconds = time.perf_counter() - self._began
        pace = self._paces.setdefault(sequences[0], Pace())
        pace.rounds.append(seconds)
        pace.num_tokens += len(verdicts[0].emitted)
        if self._drafted:
            pace.checks.append(self._target_seconds)
        else:
            pace.plain.append(seconds)
