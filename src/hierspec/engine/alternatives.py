"""Several drafts from one position in one call: its queries, and which rows are each draft's.

A model that takes trees gets a sequence's drafts in one slot, and scores each shared prefix once.
Any other model gets a query for each draft, in a slot of its own; equal drafts share one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from hierspec.core.distributions import Distributions
from hierspec.core.proposals import Proposal
from hierspec.lm.base import Query, Slot
from hierspec.lm.trees import Tree
from hierspec.sampling.scores import ScoreRows
from hierspec.utils.reads import pick

MakeJob = Callable[[tuple[int, ...]], ScoreRows]  # a draft's n tokens → its n + 1 rows


@dataclass(slots=True, eq=False)
class AlternativeRows:
    """Drafts of several sequences, and the rows of scores that verify them.

    Attributes:
        jobs: how scores become distributions: one job for all nodes of a tree, or one for each
            draft where a row's distribution depends on the draft that leads to it.
        rows: for each row of the jobs, its row among those of the queries; ``None``: the same.
        locations: by sequence and draft, the index of its job and its n + 1 rows there.
    """

    queries: list[Query] = field(default_factory=list[Query])
    jobs: list[ScoreRows] = field(default_factory=list[ScoreRows])
    rows: list[int] | None = None
    locations: list[list[tuple[int, Sequence[int]]]] = field(
        default_factory=list[list[tuple[int, Sequence[int]]]]
    )

    def add_tree(self, drafts: Sequence[Proposal], make_job: MakeJob, slot: Slot) -> None:
        root, distinct = make_job(()), list(dict.fromkeys(draft.tokens for draft in drafts))
        tree, paths = Tree.merge(distinct)
        query = Query.for_rows(root, slot, tree)
        tree_rows = {
            tokens: [0, *(1 + node for node in path)]
            for tokens, path in zip(distinct, paths, strict=True)
        }
        first_row = sum(query.num_rows for query in self.queries)
        self.rows = [] if self.rows is None else self.rows
        if root.params.edits_scores or root.noise is not None:
            jobs = {tokens: len(self.jobs) + i for i, tokens in enumerate(distinct)}
            self.jobs += [make_job(tokens) for tokens in distinct]
            self.rows += [first_row + row for tokens in distinct for row in tree_rows[tokens]]
            locations = [(jobs[draft.tokens], range(len(draft) + 1)) for draft in drafts]
        else:
            self.jobs.append(dataclasses.replace(root, num_rows=query.num_rows))
            self.rows += range(first_row, first_row + query.num_rows)
            locations = [(len(self.jobs) - 1, tree_rows[draft.tokens]) for draft in drafts]
        self.queries.append(query)
        self.locations.append(list(locations))

    def add_in_separate_slots(
        self, drafts: Sequence[Proposal], make_job: MakeJob, slot: Callable[[int], Slot]
    ) -> None:
        """Add a sequence's drafts, draft i in ``slot(i)``."""
        jobs: dict[tuple[int, ...], int] = {}
        for i, draft in enumerate(drafts):
            if draft.tokens not in jobs:
                jobs[draft.tokens] = len(self.jobs)
                self.jobs.append(make_job(draft.tokens))
                self.queries.append(Query.for_rows(self.jobs[-1], slot(i)))
        self.locations.append([(jobs[draft.tokens], range(len(draft) + 1)) for draft in drafts])

    def distributions(self, p: Sequence[Distributions]) -> list[list[Distributions]]:
        """Select each draft's n + 1 rows from the distributions of all jobs."""
        return [[p[job].select(rows) for job, rows in drafts] for drafts in self.locations]

    def scores(self, scores: torch.Tensor, sequence: int, draft: int) -> torch.Tensor:
        """Select one draft's rows [n + 1, V] from the scores of all jobs."""
        job, rows = self.locations[sequence][draft]
        start = sum(job.num_rows for job in self.jobs[:job])
        return pick(scores, [start + row for row in rows])
