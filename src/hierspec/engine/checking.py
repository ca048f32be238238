"""How a level checks, for the runtime: several drafts of a place at once, and what verdicts leave.

A verdict feeds the counters and is handed up with the signals that the level's window reads and,
from the target, with the log-probabilities that a caller asked for.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from hierspec.core.distributions import Distributions
from hierspec.core.nodes import Verify
from hierspec.core.proposals import Proposal, Verdict
from hierspec.sampling.scores import logprobs, signals
from hierspec.verifiers.multi_draft import alternatives, verify_drafts

from .metrics import Metrics

if TYPE_CHECKING:
    from .sequences import Task

# (tasks, drafts, slot numbers) → scores [n, V], the laws of each draft, how many rows each has
Score = Callable[
    [list["Task"], list[tuple[int, ...]], list[int]],
    tuple[torch.Tensor, list[Distributions], list[int]],
]


def check_several(
    node: Verify, group: Sequence[Task], drafts: Sequence[Proposal], score: Score, metrics: Metrics
) -> tuple[list[Verdict], list[torch.Tensor], list[Proposal]]:
    """All drafts of all sequences in one call → verdicts; rows and draft they chose.

    Args:
        drafts: one proposal a task, its further drafts as ``others``.
        score: rows at every place of a draft and after it; each has a slot of its own.
        metrics: drafts that were not chosen and the time of verifying are added.
    """
    rows: list[tuple[Task, tuple[int, ...], int]] = []
    places: list[list[int]] = []  # per task and draft, its query; equal drafts share one
    for task, draft in zip(group, drafts, strict=True):
        mine: dict[tuple[int, ...], int] = {}
        for number, one in enumerate(alternatives(draft)):
            if one.tokens not in mine:
                mine[one.tokens] = len(rows)
                rows.append((task, one.tokens, number))
        places.append([mine[one.tokens] for one in alternatives(draft)])
    scores, p, counts = score([r[0] for r in rows], [r[1] for r in rows], [r[2] for r in rows])
    split = scores.split(counts)
    verdicts, parts, chosen = [], [], []
    began = time.perf_counter()
    for task, draft, at in zip(group, drafts, places, strict=True):
        several = alternatives(draft)
        found = verify_drafts(node, several, [p[i] for i in at], task.sequence.rng)
        verdicts.append(found.verdict)
        parts.append(split[at[found.draft]])
        chosen.append(several[found.draft])
        for j, other in enumerate(several):
            if j != found.draft:
                metrics.levels[other.owners[0]].num_draft_tokens += len(other)
    metrics.levels[node.index].verify_seconds += time.perf_counter() - began
    return verdicts, parts, chosen


def finished(
    node: Verify,
    group: Sequence[Task],
    drafts: Sequence[Proposal],
    verdicts: Sequence[Verdict],
    parts: Sequence[torch.Tensor],
    metrics: Metrics,
    is_root: bool,
) -> list[Verdict]:
    """Verdicts counted, with their signals and log-probabilities from the rows ``parts``.

    Args:
        drafts: those that the verdicts are about.
        parts: per draft, its scores [len + 1, V].
        is_root: whether ``node`` is the target.
    """
    out = []
    metrics.target_calls += is_root
    for task, draft, verdict, part in zip(group, drafts, verdicts, parts, strict=True):
        count(draft, verdict, metrics)
        task.sequence.target_calls += is_root
        emitted = verdict.emitted
        if node.window.signal is not None:
            values = tuple(signals(part[: len(emitted)], emitted.tokens, node.window.signal))
            emitted = dataclasses.replace(emitted, signals=values)
            verdict = dataclasses.replace(verdict, emitted=emitted)
        if is_root and task.sequence.want_logprobs:
            values = tuple(logprobs(part[: len(emitted)], emitted.tokens))
            verdict = dataclasses.replace(verdict, logprobs=values)
        out.append(verdict)
    return out


def keep_raw(group: Sequence[Task], scores: torch.Tensor) -> None:
    """Note the target's scores [n, V], one row a task, for :func:`completed` to read."""
    for task, row in zip(group, scores.split(1), strict=True):
        if task.sequence.want_logprobs:
            request: Any = task.request
            task.raw[request.pending] = row


def completed(task: Task) -> Verdict:
    """A finished round's verdict, with log-probabilities also of tokens drawn after its check."""
    verdict = task.verdict
    assert verdict is not None
    tokens, known = verdict.emitted.tokens, verdict.logprobs
    if not task.sequence.want_logprobs or len(known) == len(tokens):
        return verdict
    rows = torch.cat([task.raw[tokens[:i]] for i in range(len(known), len(tokens))])
    more = logprobs(rows, tokens[len(known) :])
    return dataclasses.replace(verdict, logprobs=(*known, *more))


def count(draft: Proposal, verdict: Verdict, metrics: Metrics) -> None:
    """Whose tokens were drafted and kept; parts of a concatenation are counted apart."""
    start = 0
    while start < len(draft):
        end = start + 1
        while end < len(draft) and draft.owners[end] == draft.owners[start]:
            end += 1
        kept = min(max(verdict.num_accepted - start, 0), end - start)
        metrics.levels[draft.owners[start]].observe(end - start, kept, start)
        start = end
