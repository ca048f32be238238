"""Several drafts of one position: multi-draft speculative decoding.

With a model that takes token trees they share a slot in its cache, and a step of all of them is
one query. With others, drafts that agree so far share a query; one that parts from the others goes
on in its own slot (:meth:`hierspec.engine.sequences.LiveSequence.slot`), so that no two of a call
share one.

Sampled drafts are drawn one by one. A greedy request gets the tree of the likeliest continuations
instead: the best few of every depth go on, by the product of the drafter's probabilities, and of
all that was found the likeliest nodes are kept [the dynamic draft trees of EAGLE-2, Li et al.
2024]. Any draft will do there: the target's choice decides.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Sequence
from itertools import groupby

import torch

from hierspec.core.distributions import (
    DenseDistributions,
    Distributions,
    OneHotDistributions,
    draw,
)
from hierspec.core.proposals import Proposal
from hierspec.core.rng import Rng
from hierspec.lm.base import Query, takes_trees
from hierspec.lm.trees import Tree
from hierspec.sampling.scores import ScoreRows, distributions, scores_error

from .base import DraftCall, Drafts, proposal_of
from .model import Growing, ModelDrafter


class MultiDrafter(ModelDrafter):
    """A leaf that makes ``num_drafts`` drafts for every call.

    Where a request is greedy that is a tree of as many nodes at most, with any number of leaves;
    one draft, where more than the drafter's scores decides on it (a window, a race, processors that
    may do anything to a score).
    """

    def draft(self, calls: Sequence[DraftCall]) -> Drafts:
        self.forwards, self.seconds = 0, 0.0
        greedy = [self._grows_a_tree(call) for call in calls]
        if not any(greedy):
            return self._draft_sampled(calls)
        found: list[Proposal | None] = [None] * len(calls)
        for wanted, make in ((True, self._draft_likeliest), (False, self._draft_sampled)):
            at = [i for i, own in enumerate(greedy) if own is wanted]
            if at:
                for i, proposal in zip(at, make([calls[i] for i in at]).proposals, strict=True):
                    found[i] = proposal
        return Drafts([draft for draft in found if draft is not None], self.forwards, self.seconds)

    def _grows_a_tree(self, call: DraftCall) -> bool:
        params = call.job.params
        free = call.job.noise is None and self.node.window.signal is None
        return params.greedy and free and not params.logits_processors

    def _draft_likeliest(self, calls: Sequence[DraftCall]) -> Drafts:
        """Draft the likeliest continuations of each call, as drafts that share beginnings."""
        width = self.node.num_drafts
        trees = [_LikeliestTree(call, width) for call in calls]
        while going := [tree for tree in trees if tree.frontier]:
            drafts = [draft for tree in going for draft in tree.frontier]
            jobs = [probabilities_of(draft.job()) for draft in drafts]
            scores, rows = self._score(drafts, jobs)
            probabilities = torch.cat([row.dense(row.width) for row in rows])
            if not bool((probabilities.amax(-1) > 0.0).all()):  # NaN compares as false
                raise scores_error(jobs, scores, scores)
            at = 0
            for tree in going:
                own = probabilities[at : at + len(tree.frontier)]
                at += len(own)
                tree.grow(own)
        return Drafts(
            [tree.proposal(self.node.index) for tree in trees], self.forwards, self.seconds
        )

    def _draft_sampled(self, calls: Sequence[DraftCall]) -> Drafts:
        """Draw the drafts of each call one by one."""
        _, roots = self.rows([Growing(call) for call in calls])
        drafts: list[list[Growing]] = []
        for call, row in zip(calls, roots, strict=True):
            found = first_tokens(row, self.node.num_drafts, self.node.distinct, call.rng)
            drafts.append(
                [
                    Growing(call, number, [token], [own])
                    for number, (token, own) in enumerate(zip(*found, strict=True))
                ]
            )
        everyone = [draft for own in drafts for draft in own]
        self.grow(everyone, self.scoring_step(everyone))
        proposals = [[draft.proposal(self.node.index) for draft in own] for own in drafts]
        return Drafts(
            [dataclasses.replace(own[0], alternatives=tuple(own[1:])) for own in proposals],
            self.forwards,
            self.seconds,
        )

    def rows(self, drafts: Sequence[Growing]) -> tuple[torch.Tensor, list[Distributions]]:
        """See :meth:`ModelDrafter.rows`; equal drafts of a call are scored once."""
        asked: dict[tuple[int, tuple[int, ...]], int] = {}
        unique: list[Growing] = []
        at: list[int] = []
        for draft in drafts:
            key = (id(draft.call), tuple(draft.tokens))
            if key not in asked:
                asked[key] = len(unique)
                unique.append(draft)
            at.append(asked[key])
        scores, rows = self._score(unique, [draft.job() for draft in unique])
        return scores, [rows[i] for i in at]

    def _score(
        self, drafts: Sequence[Growing], jobs: Sequence[ScoreRows]
    ) -> tuple[torch.Tensor, list[Distributions]]:
        """Score drafts that differ, those of a call side by side: scores [n, V], distributions."""
        queries: list[Query] = []
        if takes_trees(self.model):
            for _, group in groupby(drafts, key=lambda draft: id(draft.call)):
                queries.append(self._tree_query(list(group)))
        else:
            for draft, job in zip(drafts, jobs, strict=True):
                queries.append(Query.for_rows(job, draft.call.slot(self.model, draft.number)))
        began = time.perf_counter()
        scores = self.model.score(queries)
        self._count_forward(began)
        return scores, distributions(jobs, scores)

    def _tree_query(self, drafts: Sequence[Growing]) -> Query:
        """Return a query for the last nodes of a tree: a call's drafts, all of one length."""
        call = drafts[0].call
        tree, _ = Tree.merge(draft.tokens for draft in drafts)
        query = Query.for_rows(call.job, call.slot(self.model, 0))
        if not tree:
            return query
        start = len(query.context) + len(tree) - len(drafts) + 1
        return dataclasses.replace(query, start=start, tree=tree)


class _LikeliestTree:
    """A tree of the likeliest continuations in the making.

    Attributes:
        frontier: the drafts that are extended next; none, once the tree is deep enough.
    """

    def __init__(self, call: DraftCall, width: int) -> None:
        self.call, self.width = call, width
        self.frontier: list[Growing] = [Growing(call)]
        self._chances: dict[tuple[int, ...], float] = {(): 1.0}  # of every node, by its path

    def grow(self, rows: torch.Tensor) -> None:
        """Add the best children of the frontier, given the rows [n, V] after each."""
        found: list[tuple[float, tuple[int, ...]]] = []
        values, tokens = rows.topk(min(self.width, rows.shape[1]))
        best_of = zip(self.frontier, values.tolist(), tokens.tolist(), strict=True)
        for draft, chances, likeliest in best_of:
            path = tuple(draft.tokens)
            for value, token in zip(chances, likeliest, strict=True):
                if value > 0.0:
                    found.append((self._chances[path] * value, (*path, token)))
        self._chances |= {path: chance for chance, path in found}
        best = sorted(found, key=lambda scored: -scored[0])[: self.width]
        deep = len(best[0][1]) == self.call.limit
        self.frontier = [
            Growing(self.call, number, list(path))
            for number, (_, path) in enumerate([] if deep else best)
        ]

    def proposal(self, index: int) -> Proposal:
        """Return the likeliest nodes as drafts, one for each leaf; long and likely ones first."""
        order = sorted(self._chances, key=lambda path: (-self._chances[path], len(path)))
        kept = set(order[: 1 + self.width * self.call.limit])  # the text itself is among them
        inner = {path[:-1] for path in kept if path}
        leaves = [path for path in order if path in kept and path not in inner]
        # The first must be a longest: its signals and owners are used for whichever is chosen.
        leaves.sort(key=lambda path: -len(path))
        first, *others = [
            proposal_of(index, path, OneHotDistributions(path), [math.nan] * len(path))
            for path in leaves
        ]
        return dataclasses.replace(first, alternatives=tuple(others))


def probabilities_of(job: ScoreRows) -> ScoreRows:
    """Return a greedy job with temperature 1: its scores are edited, but not cut to the best."""
    params = dataclasses.replace(job.params, temperature=1.0, top_k=None, top_p=None, min_p=None)
    return dataclasses.replace(job, params=params, temperature=None)


def first_tokens(
    row: Distributions, num_drafts: int, distinct: bool, rng: Rng
) -> tuple[list[int], list[Distributions]]:
    """Draw the drafts' first tokens; return them, and what each was drawn from given those before.

    Distinct tokens are drawn from the distribution without those drawn already; there are fewer
    than ``num_drafts`` where it runs out of tokens. A one-hot row is asked once: the same token
    again could not be kept.
    """
    if isinstance(row, OneHotDistributions):
        return list(row.ids), [row]
    if not distinct:
        rows = row.dense(row.width).expand(num_drafts, -1)
        return draw(rows, rng.take(num_drafts)), [row] * num_drafts
    tokens: list[int] = []
    distributions: list[Distributions] = []
    left = row.dense(row.width)[0].double()
    while len(tokens) < num_drafts and (total := float(left.sum())) != 0.0:
        left = left / total  # of NaN, which drawing refuses, where the row was no distribution
        token = draw(left.unsqueeze(0), rng.take(1))[0]
        tokens.append(token)
        distributions.append(DenseDistributions(left.unsqueeze(0)))
        left = left.clone()
        left[token] = 0.0
    return tokens, distributions
