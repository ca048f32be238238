"""Several drafts of one place in one call: what is asked for, and where each draft's rows are.

A model that takes trees is asked for a sequence's drafts in one slot, each shared beginning once.
Another has a query for each draft, in a slot of its own; equal drafts share one.
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

JobOf = Callable[[tuple[int, ...]], ScoreRows]  # how a draft's n + 1 rows are read


@dataclass(slots=True, eq=False)
class AlternativeRows:
    """Drafts of several sequences, and the rows that decide on them.

    Attributes:
        queries: what the model is asked.
        jobs: how the rows it gives are read; one for all nodes of a tree, where no row's reading
            depends on the path that ends there, else one for each draft.
        rows: of the jobs, among those of the queries; ``None``: the same.
        places: by sequence and draft, the number of its job and its n + 1 rows there.
    """

    queries: list[Query] = field(default_factory=list[Query])
    jobs: list[ScoreRows] = field(default_factory=list[ScoreRows])
    rows: list[int] | None = None
    places: list[list[tuple[int, Sequence[int]]]] = field(
        default_factory=list[list[tuple[int, Sequence[int]]]]
    )

    def add_tree(self, drafts: Sequence[Proposal], job_of: JobOf, slot: Slot) -> None:
        """Add a sequence's drafts as one tree."""
        root, tokens = job_of(()), list(dict.fromkeys(draft.tokens for draft in drafts))
        tree, paths = Tree.merge(tokens)
        query = Query.for_rows(root, slot, tree)
        nodes = {own: [0, *(1 + i for i in path)] for own, path in zip(tokens, paths, strict=True)}
        asked = sum(query.num_rows for query in self.queries)
        self.rows = [] if self.rows is None else self.rows
        if root.params.edits_scores or root.noise is not None:
            numbers = {own: len(self.jobs) + i for i, own in enumerate(tokens)}
            self.jobs += [job_of(own) for own in tokens]
            self.rows += [asked + node for own in tokens for node in nodes[own]]
            places = [(numbers[draft.tokens], range(len(draft) + 1)) for draft in drafts]
        else:
            self.jobs.append(dataclasses.replace(root, num_rows=query.num_rows))
            self.rows += range(asked, asked + query.num_rows)
            places = [(len(self.jobs) - 1, nodes[draft.tokens]) for draft in drafts]
        self.queries.append(query)
        self.places.append(list(places))

    def add_apart(
        self, drafts: Sequence[Proposal], job_of: JobOf, slot: Callable[[int], Slot]
    ) -> None:
        """Add a sequence's drafts, each in the slot of its number."""
        numbers: dict[tuple[int, ...], int] = {}
        for number, draft in enumerate(drafts):
            if draft.tokens not in numbers:
                numbers[draft.tokens] = len(self.jobs)
                self.jobs.append(job_of(draft.tokens))
                self.queries.append(Query.for_rows(self.jobs[-1], slot(number)))
        self.places.append([(numbers[draft.tokens], range(len(draft) + 1)) for draft in drafts])

    def distributions(self, p: Sequence[Distributions]) -> list[list[Distributions]]:
        """Select each draft's n + 1 rows from the distributions of all jobs."""
        return [[p[job].select(rows) for job, rows in own] for own in self.places]

    def scores(self, scores: torch.Tensor, sequence: int, draft: int) -> torch.Tensor:
        """Select one draft's rows [n + 1, V] from the scores of all jobs."""
        job, rows = self.places[sequence][draft]
        start = sum(job.num_rows for job in self.jobs[:job])
        return scores[[start + row for row in rows]]
