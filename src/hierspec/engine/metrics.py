"""Counters of a run, per level and in total, named as in vLLM (docs/math.md §0)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hierspec.core.proposals import Proposal, Verdict
from hierspec.core.requests import Check, Row
from hierspec.lm.trees import Tree

from .observers import Checks, Observer
from .results import LevelStats
from .sequences import LiveSequence, Task


class Metrics(Observer):
    """Counters of one run: the levels by node index, and the rounds of the target.

    Drafts of a sequence that has ``level_stats`` are counted there as well.

    Args:
        names: of the nodes, by index.
        root: index of the target's node.
    """

    def __init__(self, names: Mapping[int, str], root: int) -> None:
        self._names, self._root = dict(names), root
        self.reset()

    def reset(self) -> None:
        """Forget what was counted so far (the prefill, for one)."""
        self.levels = {index: LevelStats(name) for index, name in self._names.items()}
        self.target_calls = self.emitted = 0

    @property
    def forward_seconds(self) -> float:
        return sum(stats.forward_seconds for stats in self.levels.values())

    def on_forward(self, index: int, calls: int, seconds: float) -> None:
        self.levels[index].calls += calls
        self.levels[index].forward_seconds += seconds

    def on_verify(self, checks: Checks) -> None:
        self.levels[checks.node.index].verify_seconds += checks.seconds
        for task, chosen, verdict in zip(checks.tasks, checks.drafts, checks.verdicts, strict=True):
            for levels in (self.levels, task.sequence.level_stats):
                if levels:
                    _count_owners(levels, chosen, verdict.num_accepted)
            request = task.request
            assert isinstance(request, Check)
            if request.draft.alternatives:
                tree, _ = Tree.merge(draft.tokens for draft in request.draft.drafts)
                self.levels[chosen.owners[0]].num_draft_tokens += len(tree) - len(chosen)

    def on_answer(
        self, tasks: Sequence[Task], answers: Sequence[Any], began: float, seconds: float
    ) -> None:
        request = tasks[0].request
        index = request.node.index
        self.levels[index].seconds += seconds
        self.target_calls += index == self._root and type(request) in (Check, Row)

    def on_round_end(self, sequences: Sequence[LiveSequence], verdicts: Sequence[Verdict]) -> None:
        self.emitted += sum(len(verdict.emitted) for verdict in verdicts)


def _count_owners(levels: Mapping[int, LevelStats], draft: Proposal, num_accepted: int) -> None:
    start, owners = 0, draft.owners
    while start < len(owners):
        end = start + 1
        while end < len(owners) and owners[end] == owners[start]:
            end += 1
        accepted = min(max(num_accepted - start, 0), end - start)
        levels[owners[start]].count_draft(end - start, accepted, start)
        start = end
