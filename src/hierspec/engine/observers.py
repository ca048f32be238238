"""Observers: whoever wants to know what happens in a runtime, while it happens.

Counters, traces, drafters that learn and measurements are all observers
(:meth:`hierspec.engine.runtime.Runtime.observe`). They see everything and decide nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hierspec.core.distributions import Distributions
from hierspec.core.nodes import Verify
from hierspec.core.proposals import Proposal, Verdict
from hierspec.drafters.base import CheckedDraft, LookUp

from .sequences import LiveSequence, Task


@dataclass(slots=True, eq=False)
class Checks:
    """Drafts verified in one call, sequence by sequence.

    Attributes:
        node: that verified; of sequences with plans of their own, the first one's.
        drafts: those that the verdicts are about: of several drafts of one place, the chosen ones.
        p: the verifier's distributions at every place of each draft, and after it.
        seconds: of verifying, without the forward.
        several: of each sequence all drafts that were checked, and ``p`` along each, where some
            sequence had more than one.
    """

    node: Verify
    tasks: Sequence[Task]
    drafts: Sequence[Proposal]
    p: Sequence[Distributions]
    verdicts: Sequence[Verdict]
    seconds: float
    several: Sequence[Sequence[CheckedDraft]] | None = None

    @property
    def every(self) -> Sequence[Sequence[CheckedDraft]]:
        """Of each sequence all drafts that were checked, and the verifier's rows along each."""
        if self.several is not None:
            return self.several
        return [[pair] for pair in zip(self.drafts, self.p, strict=True)]


class Observer:
    """The base of observers: every method does nothing. Times are in seconds."""

    def round_began(self, sequences: Sequence[LiveSequence]) -> None:
        """See a round of the target begin."""

    def forwarded(self, index: int, calls: int, seconds: float) -> None:
        """See that the model of node ``index`` was called ``calls`` times, ``seconds`` in all."""

    def verified(self, checks: Checks) -> None:
        """See drafts verified; nothing is committed yet."""

    def answered(
        self, tasks: Sequence[Task], answers: Sequence[Any], began: float, seconds: float
    ) -> None:
        """See requests answered that share a call: ``task.request`` of each.

        Args:
            answers: ``(Proposal, states)`` of a leaf's draft, ``Verdict`` of a check,
                ``Distributions`` of a row, a token id of a draw.
            began: by ``time.perf_counter``.
        """

    def round_ended(self, sequences: Sequence[LiveSequence], verdicts: Sequence[Verdict]) -> None:
        """See a round end; its verdicts are the caller's to commit."""


class Teaching(Observer):
    """Lets look-ups learn from what the target verifies.

    Args:
        root: index of the target's node.
    """

    def __init__(self, root: int, look_ups: Sequence[LookUp]) -> None:
        self._root, self._look_ups = root, look_ups

    def verified(self, checks: Checks) -> None:
        if checks.node.index != self._root:
            return
        for task, draft, p, verdict, every in zip(
            checks.tasks, checks.drafts, checks.p, checks.verdicts, checks.every, strict=True
        ):
            for look_up in self._look_ups:
                slot = task.sequence.slot(look_up)
                text = task.sequence.tokens
                look_up.learn_from(text, draft, p, verdict.num_accepted, every, slot)
