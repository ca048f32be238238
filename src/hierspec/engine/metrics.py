"""Counters of a run, per level and in total, named as in vLLM (docs/math.md §0)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict
from weakref import WeakKeyDictionary

from hierspec.core.proposals import Proposal, Verdict
from hierspec.core.requests import Check, Row
from hierspec.lm.trees import Tree

from .observers import Checks, Observer
from .sequences import LiveSequence, Task


class LevelStatsDict(TypedDict):
    """A level's :class:`LevelStats` as Python users and ``generate --json`` have them."""

    name: str
    calls: int
    num_drafts: int
    num_draft_tokens: int
    num_accepted_tokens: int
    acceptance_rate: float
    num_accepted_tokens_per_pos: list[int]
    seconds: float
    forward_seconds: float
    verify_seconds: float


@dataclass(slots=True)
class LevelStats:
    """Counters of one level. Tokens are accepted by the level above.

    Attributes:
        calls: forwards of its model (a batch of sequences is one call).
        num_drafts: verified drafts: one for each run of this level's tokens in a proposal; several
            drafts from one position count as one.
        num_draft_tokens: of all drafts, alternatives included; a prefix that several drafts
            share is verified once and counts once.
        accepted_per_pos: how often the token at each draft position was accepted.
        forward_seconds: inside the model's forward.
        verify_seconds: of applying its verification rule, without its forward.
        seconds: of forward, distributions, draws and verification together.
    """

    name: str
    calls: int = 0
    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    accepted_per_pos: list[int] = field(default_factory=list[int])
    forward_seconds: float = 0.0
    verify_seconds: float = 0.0
    seconds: float = 0.0

    def count_draft(self, drafted: int, accepted: int, offset: int) -> None:
        """Count a verified draft of this level that began at position ``offset`` of its round."""
        self.num_drafts += 1
        self.num_draft_tokens += drafted
        self.num_accepted_tokens += accepted
        self.accepted_per_pos += [0] * (offset + drafted - len(self.accepted_per_pos))
        for i in range(offset, offset + accepted):
            self.accepted_per_pos[i] += 1

    @property
    def acceptance_rate(self) -> float:
        """Accepted tokens over drafted tokens; 0 where nothing was drafted."""
        return self.num_accepted_tokens / self.num_draft_tokens if self.num_draft_tokens else 0.0

    def to_dict(self) -> LevelStatsDict:
        return {
            "name": self.name,
            "calls": self.calls,
            "num_drafts": self.num_drafts,
            "num_draft_tokens": self.num_draft_tokens,
            "num_accepted_tokens": self.num_accepted_tokens,
            "acceptance_rate": self.acceptance_rate,
            "num_accepted_tokens_per_pos": list(self.accepted_per_pos),
            "seconds": self.seconds,
            "forward_seconds": self.forward_seconds,
            "verify_seconds": self.verify_seconds,
        }


class Metrics(Observer):
    """Counters of one run: the levels by node index, and the rounds of the target.

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
            _count_owners(self.levels, chosen, verdict.num_accepted)
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


class SequenceMetrics(Observer):
    """Counters of drafts for every followed sequence.

    Args:
        names: of the levels below the target, by node index, smallest level first.
    """

    def __init__(self, names: Mapping[int, str]) -> None:
        self._names = dict(names)
        # By weak references: a sequence that is gone is forgotten in any case.
        self._stats = WeakKeyDictionary[LiveSequence, dict[int, LevelStats]]()
        # (tokens drafted, tokens accepted) of each level when round_counts was last called
        self._previous = WeakKeyDictionary[LiveSequence, dict[int, tuple[int, int]]]()

    def follow(self, sequence: LiveSequence) -> None:
        """Count a sequence's drafts from now on."""
        self._stats[sequence] = {index: LevelStats(name) for index, name in self._names.items()}
        self._previous[sequence] = {}

    def forget(self, sequence: LiveSequence) -> tuple[LevelStats, ...]:
        """Stop counting a sequence → its counters, smallest level first; empty if not followed."""
        self._previous.pop(sequence, None)
        return tuple(self._stats.pop(sequence, {}).values())

    def round_counts(self, sequence: LiveSequence) -> tuple[tuple[str, int, int], ...]:
        """Return (level, tokens drafted, accepted) since the last call, smallest level first."""
        previous, out = self._previous[sequence], list[tuple[str, int, int]]()
        for index, stats in self._stats[sequence].items():
            drafted, accepted = previous.get(index, (0, 0))
            previous[index] = (stats.num_draft_tokens, stats.num_accepted_tokens)
            if stats.num_draft_tokens > drafted:
                new = stats.num_draft_tokens - drafted, stats.num_accepted_tokens - accepted
                out.append((stats.name, *new))
        return tuple(out)

    def on_verify(self, checks: Checks) -> None:
        for task, chosen, verdict in zip(checks.tasks, checks.drafts, checks.verdicts, strict=True):
            levels = self._stats.get(task.sequence)
            if levels is not None:
                _count_owners(levels, chosen, verdict.num_accepted)


def _count_owners(levels: Mapping[int, LevelStats], draft: Proposal, num_accepted: int) -> None:
    start, owners = 0, draft.owners
    while start < len(owners):
        end = start + 1
        while end < len(owners) and owners[end] == owners[start]:
            end += 1
        accepted = min(max(num_accepted - start, 0), end - start)
        levels[owners[start]].count_draft(end - start, accepted, start)
        start = end
