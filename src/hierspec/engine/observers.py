"""Observers of a runtime: counters, traces and measurements; and drafters that learn.

Observers are added by :meth:`hierspec.engine.runtime.Runtime.observe`, and decide nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from hierspec.core.distributions import Distributions
from hierspec.core.proposals import Proposal, Verdict
from hierspec.drafters.base import CheckedDraft, Learner
from hierspec.lm.base import ModelVerify

from .sequences import LiveSequence, Task

log = logging.getLogger(__name__)


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


ObserverMethod = Literal["on_round_begin", "on_forward", "on_verify", "on_answer", "on_round_end"]


class Observers:
    """Several observers, each told of what it handles.

    Args:
        log_errors: whether an observer's error is logged; else it is raised.
    """

    def __init__(self, log_errors: bool = False) -> None:
        self._handlers: dict[str, list[Callable[..., None]]] = {}
        self._log_errors = log_errors

    def add(self, observer: Observer) -> None:
        for event in get_args(ObserverMethod):
            if getattr(type(observer), event) is not getattr(Observer, event):
                self._handlers.setdefault(event, []).append(getattr(observer, event))

    def notify(self, event: ObserverMethod, *args: Any) -> None:
        for handle in self._handlers.get(event, ()):
            try:
                handle(*args)
            except Exception:
                if not self._log_errors:
                    raise
                log.exception("an observer failed")


def learn_from_check(task: Task, learners: Sequence[Learner]) -> None:
    """Let drafters learn from the target's check in a round whose tokens are not committed yet.

    Not earlier, so that a call that fails can be repeated: what was learnt cannot be taken back.
    """
    if task.checked is None or not learners:
        return
    task.sequence.num_learnt += 1
    checks, i = task.checked
    text, verdict = task.sequence.tokens, checks.verdicts[i]
    for learner in learners:
        slot = task.sequence.slot(learner)
        learner.learn_from(
            text,
            checks.drafts[i],
            checks.p[i],
            verdict.num_accepted,
            checks.checked_drafts[i],
            slot,
        )
