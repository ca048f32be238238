"""Observers of a runtime: counters, traces, drafters that learn, and measurements.

They are added by :meth:`hierspec.engine.runtime.Runtime.observe`, and decide nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hierspec.core.distributions import Distributions
from hierspec.core.proposals import Proposal, Verdict
from hierspec.drafters.base import CheckedDraft, Learner
from hierspec.lm.base import ModelVerify

from .sequences import LiveSequence, Task


@dataclass(slots=True, eq=False)
class Checks:
    """Drafts verified in one call, sequence by sequence.

    Attributes:
        node: the node that verified; where sequences have different plans, the first one's.
        drafts: of each sequence, the draft that its verdict is about; of several, the chosen one.
        p: the verifier's distributions at each draft's n positions, and after it.
        seconds: of verifying, without the forward.
        alternatives: where some sequence had several drafts: of each sequence all of them, each
            with its ``p``.
    """

    node: ModelVerify
    tasks: Sequence[Task]
    drafts: Sequence[Proposal]
    p: Sequence[Distributions]
    verdicts: Sequence[Verdict]
    seconds: float
    alternatives: Sequence[Sequence[CheckedDraft]] | None = None

    @property
    def checked_drafts(self) -> Sequence[Sequence[CheckedDraft]]:
        """Of each sequence all drafts that were verified, each with its ``p``."""
        if self.alternatives is not None:
            return self.alternatives
        return [[pair] for pair in zip(self.drafts, self.p, strict=True)]


class Observer:
    """The base of observers: every method does nothing. Times are in seconds."""

    def on_round_begin(self, sequences: Sequence[LiveSequence]) -> None:
        """Handle the start of a round of the target."""

    def on_forward(self, index: int, calls: int, seconds: float) -> None:
        """Handle ``calls`` forwards of the model of node ``index``, ``seconds`` in all."""

    def on_verify(self, checks: Checks) -> None:
        """Handle verified drafts; nothing is committed yet."""

    def on_answer(
        self, tasks: Sequence[Task], answers: Sequence[Any], began: float, seconds: float
    ) -> None:
        """Handle the answers to requests that shared a call.

        Args:
            tasks: their requests are still ``task.request``.
            answers: ``(Proposal, states)`` of a leaf's draft, ``Verdict`` of a check,
                ``Distributions`` of a row, a token id of a draw.
            began: by ``time.perf_counter``.
        """

    def on_round_end(self, sequences: Sequence[LiveSequence], verdicts: Sequence[Verdict]) -> None:
        """Handle the end of a round, before its verdicts are committed."""


class Training(Observer):
    """Lets drafters learn from what the target verified.

    Args:
        root: index of the target's node.
    """

    def __init__(self, root: int, learners: Sequence[Learner]) -> None:
        self._root, self._learners = root, learners

    def on_verify(self, checks: Checks) -> None:
        if checks.node.index != self._root:
            return
        for task, draft, p, verdict, drafts in zip(
            checks.tasks,
            checks.drafts,
            checks.p,
            checks.verdicts,
            checks.checked_drafts,
            strict=True,
        ):
            for learner in self._learners:
                slot = task.sequence.slot(learner)
                text = task.sequence.tokens
                learner.learn_from(text, draft, p, verdict.num_accepted, drafts, slot)
