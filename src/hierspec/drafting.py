"""A leaf's draft of fixed length, left to its model: the runtime asks once instead of a token.

Possible where nothing on the way depends on the tokens: no window reads them, and all sequences
read their scores alike. The tokens, their laws and the uniforms spent are those of the way token
by token.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .hierarchy import Draft
from .lm.base import Query
from .metrics import LevelStats
from .readings import NoLawError, Reading
from .sampling import Job, reading_of, unusable
from .types import Proposal, States

if TYPE_CHECKING:
    from .sequences import Task


def shared_reading(jobs: Sequence[Job]) -> Reading | None:
    """How all jobs read their scores at every place of a draft; ``None`` where they differ."""
    if any(job.params.logit_bias or job.params.needs_history for job in jobs):
        return None
    first = reading_of(jobs[0])
    return first if all(reading_of(job) == first for job in jobs[1:]) else None


def draft_ahead(
    node: Draft, group: Sequence[Task], jobs: Sequence[Job], reading: Reading, stats: LevelStats
) -> list[tuple[Proposal, States]]:
    """Each task's draft, up to its own limit.

    Args:
        node: a leaf whose model is a :class:`~hierspec.lm.base.Drafter`.
        jobs: how each task's first row is read; ``reading`` is what they share.

    Raises:
        ValueError: scores that are no law.
    """
    requests: list[Any] = [task.request for task in group]
    counts = [min(node.budget, request.limit) for request in requests]
    dice = [task.sequence.dice for task in group]
    uniforms = [() if reading.greedy else own.take(n) for own, n in zip(dice, counts, strict=True)]
    queries = [
        Query(task.sequence.slot(node.model), job.context, job.start)
        for task, job in zip(group, jobs, strict=True)
    ]
    began = time.perf_counter()
    try:
        found = node.model.draft(queries, counts, node.budget, reading, uniforms)
    except NoLawError as error:
        if error.scores is None:
            text = f"{node.name} produced scores that are no law; try --dtype float32"
            raise ValueError(text) from None
        raise unusable(jobs[: len(error.scores)], error.scores, error.scores) from None
    stats.forward_seconds += time.perf_counter() - began - found.pick_seconds
    stats.calls += found.calls
    out = []
    for request, tokens, laws in zip(requests, found.tokens, found.laws, strict=True):
        n = len(tokens)
        whose = (node.index,) * n
        proposal = Proposal(tuple(tokens), laws, whose, whose, (math.nan,) * n)
        out.append((proposal, request.states))
    return out
