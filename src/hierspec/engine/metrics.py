"""Counters of a run, per level and in total, named as in vLLM (docs/math.md §0)."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from hierspec.core.proposals import Proposal, Verdict
from hierspec.core.requests import Check, Row
from hierspec.lm.trees import Tree

from .observers import Checks, Observer
from .results import LevelStats
from .sequences import LiveSequence, Task


class Metrics(Observer):
    """Counters of one run, by node index.

    Drafts of a sequence that has ``level_stats`` are counted there as well.
    """

    def __init__(self, names: Mapping[int, str]) -> None:
        self._names = dict(names)
        self.reset()

    def reset(self) -> None:
        """Forget what was counted so far (the prefill, for one)."""
        self.levels = {index: LevelStats(name) for index, name in self._names.items()}

    def on_forward(self, index: int, calls: int, seconds: float) -> None:
        self.levels[index].calls += calls
        self.levels[index].forward_seconds += seconds

    def on_verify(self, checks: Checks) -> None:
        self.levels[checks.node.index].verify_seconds += checks.seconds
        for task, chosen, verdict in zip(checks.tasks, checks.drafts, checks.verdicts, strict=True):
            request = task.request
            assert isinstance(request, Check)
            num_others = 0
            if request.draft.alternatives:
                tree, _ = Tree.merge(draft.tokens for draft in request.draft.drafts)
                num_others = len(tree) - len(chosen)
            for levels in (self.levels, task.sequence.level_stats):
                if levels:
                    _count_owners(levels, chosen, verdict.num_accepted)
                    if num_others:
                        levels[chosen.owners[0]].num_draft_tokens += num_others

    def on_answer(
        self, tasks: Sequence[Task], answers: Sequence[Any], began: float, seconds: float
    ) -> None:
        self.levels[tasks[0].request.node.index].seconds += seconds


class Paces(Observer):
    """Measures the pace of sequences that run alone: others share their calls."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._began = self._target_seconds = 0.0
        self._drafted = self._started = False

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
        pace = sequences[0].pace
        pace.rounds.append(seconds)
        pace.num_tokens += len(verdicts[0].emitted)
        if self._drafted:
            pace.checks.append(self._target_seconds)
        else:
            pace.plain.append(seconds)


def _count_owners(levels: Mapping[int, LevelStats], draft: Proposal, num_accepted: int) -> None:
    start, owners = 0, draft.owners
    while start < len(owners):
        end = start + 1
        while end < len(owners) and owners[end] == owners[start]:
            end += 1
        accepted = min(max(num_accepted - start, 0), end - start)
        levels[owners[start]].count_draft(end - start, accepted, start)
        start = end
