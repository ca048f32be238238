"""Several drafts of one position: multi-draft speculative decoding.

With a model that takes token trees they share a slot in its cache, and a step of all of them is
one query. With other models, drafts that agree so far share a query; one that differs from the
others goes on in its own slot (:meth:`hierspec.engine.sequences.LiveSequence.slot`), so that no two
of a call share one.

Sampled drafts are drawn one by one. A greedy request gets the tree of the likeliest continuations
instead: the best few of every depth go on, by the product of the drafter's probabilities, and of
all nodes that were scored the likeliest are kept [the dynamic draft trees of EAGLE-2, Li et al.
2024]. Any draft will do there: the target's choice decides.

A model that drafts on its device makes either there, with one wait for all. It cannot merge what
it has not read, so every draft has nodes of its own until the proposal is checked.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from itertools import groupby

import numpy as np
import torch

from hierspec.core.distributions import (
    DenseDistributions,
    Distributions,
    OneHotDistributions,
    checked_token,
    draw,
    locate_several,
)
from hierspec.core.proposals import Proposal
from hierspec.core.rng import Rng
from hierspec.lm.base import DeviceTreeModel, DeviceTrees, Query, TreeDepth, takes_trees
from hierspec.lm.trees import Tree
from hierspec.sampling.scores import ScoreRows, distributions, scores_error
from hierspec.utils.reads import Read, Reads, pick, sent

from .base import DraftCall, Drafts, draft_proposal, join_drafts
from .model import GrowingDraft, ModelDrafter, shared_sampler


class MultiDrafter(ModelDrafter):
    """A drafter that makes ``num_drafts`` drafts for every call.

    For a greedy request they are the paths to the leaves of one tree, of at most ``num_drafts``
    times the draft's length nodes in all; or a single draft where more than the drafter's scores
    decides on it (a window, a race, processors that may change scores in any way).
    """

    def draft(self, calls: Sequence[DraftCall]) -> Drafts:
        self.forwards, self.seconds = 0, 0.0
        proposals: dict[int, Proposal] = {}
        for as_tree, make in ((True, self._draft_likeliest), (False, self._draft_sampled)):
            indices = [i for i, call in enumerate(calls) if self._grows_tree(call) is as_tree]
            if indices:
                proposals |= zip(indices, make([calls[i] for i in indices]), strict=True)
        return Drafts([proposals[i] for i in range(len(calls))], self.forwards, self.seconds)

    def _grows_tree(self, call: DraftCall) -> bool:
        params = call.job.params
        free = call.job.noise is None and self.node.window.signal is None
        return params.greedy and free and not params.logits_processors

    def _draft_likeliest(self, calls: Sequence[DraftCall]) -> list[Proposal]:
        width = self.node.num_drafts
        trees = [_LikeliestTree(call, width) for call in calls]
        if found := self._trees_of_device([tree.call for tree in trees], sampled=False):
            for tree, depths in zip(trees, found.depths, strict=True):
                tree.add_depths(depths)
            return [tree.proposal(self.node.index) for tree in trees]
        drafts = [draft for tree in trees for draft in tree.drafts]

        def step(active: Sequence[int]) -> torch.Tensor:
            scores, rows = self.rows([drafts[i] for i in active])
            reads, best = Reads(), list[Read]()
            # The drafts of a tree end together, so those of each growing tree are side by side. Of
            # other requests' rows they may differ in width.
            for first in range(len(active) // width):
                tree_rows = DenseDistributions.merged(rows[first * width : (first + 1) * width])
                chances, tokens = tree_rows.probs.topk(min(width, tree_rows.width))
                best.append(reads.add(torch.stack([chances.double(), tokens.double()])))
            for i, read in zip(active[::width], best, strict=True):
                chances, tokens = read.look()
                if not (chances[:, 0] > 0.0).all():  # NaN compares as false, and is the largest
                    raise scores_error([drafts[i].next_job() for i in active], scores, scores)
                trees[i // width].add_depth(chances.tolist(), tokens.astype(int).tolist())
            return scores

        self.grow(drafts, step)
        return [tree.proposal(self.node.index) for tree in trees]

    def _draft_sampled(self, calls: Sequence[DraftCall]) -> list[Proposal]:
        index, width = self.node.index, self.node.num_drafts
        if found := self._trees_of_device(calls, sampled=True):
            return [
                join_drafts([draft_proposal(index, tokens, rows) for tokens, rows in drafts])
                for drafts in found.drafts
            ]
        _, roots = self.rows([GrowingDraft(call) for call in calls])
        drafts: list[list[GrowingDraft]] = []
        rngs = [call.rng for call in calls]
        all_drafts: list[GrowingDraft] = []
        firsts = first_tokens(roots, width, self.node.distinct, rngs)
        for call, (tokens, rows) in zip(calls, firsts, strict=True):
            pairs = enumerate(zip(tokens, rows, strict=True))
            drafts.append([GrowingDraft(call, i, [token], [row]) for i, (token, row) in pairs])
            all_drafts += drafts[-1]
            if self.device_model is not None and isinstance(rows[0], DenseDistributions):
                # A device has drawn on for drafts that a row without further tokens does not begin.
                all_drafts += [
                    GrowingDraft(call, i, tokens[:1], rows[:1]) for i in range(len(tokens), width)
                ]
        self.grow(all_drafts, self.scoring_step(all_drafts))
        return [join_drafts([draft.proposal(index) for draft in group]) for group in drafts]

    def _trees_of_device(self, calls: Sequence[DraftCall], sampled: bool) -> DeviceTrees | None:
        """Return trees made on the device, or ``None`` where only the host can make them."""
        model, width = self.device_model, self.node.num_drafts
        sampler = shared_sampler([call.job for call in calls])
        if not isinstance(model, DeviceTreeModel) or sampler is None:
            return None
        if sampler.greedy or sampler.races:
            return None  # a single draft
        counts = [call.limit for call in calls]
        uniforms = None
        if sampled:
            # Depth by depth, as the host takes them.
            uniforms = [
                np.reshape(call.rng.take(call.limit * width), (call.limit, width)) for call in calls
            ]
        drafts = [GrowingDraft(call) for call in calls]
        queries = [self._query(draft) for draft in drafts]
        return self.on_device(
            drafts,
            lambda: model.draft_trees(
                queries, counts, width, sampler, uniforms, self.node.distinct
            ),
        )

    def rows(self, drafts: Sequence[GrowingDraft]) -> tuple[torch.Tensor, list[Distributions]]:
        """See :meth:`ModelDrafter.rows`; equal drafts of a call are scored once."""
        keys = [(id(draft.call), tuple(draft.tokens)) for draft in drafts]
        unique: dict[tuple[int, tuple[int, ...]], GrowingDraft] = {}
        for key, draft in zip(keys, drafts, strict=True):
            unique.setdefault(key, draft)
        jobs, queries = self.next_queries([*unique.values()])
        began = time.perf_counter()
        scores = self.model.score(queries)
        self._count_forward(began)
        rows = distributions(jobs, scores)
        if len(unique) == len(drafts):
            return scores, rows
        places = {key: place for place, key in enumerate(unique)}
        indices = [places[key] for key in keys]
        return pick(scores, indices), [rows[i] for i in indices]

    def next_queries(self, drafts: Sequence[GrowingDraft]) -> tuple[list[ScoreRows], list[Query]]:
        """See :meth:`ModelDrafter.next_queries`; in a tree, the drafts of a call share a query."""
        if not takes_trees(self.model):
            return super().next_queries(drafts)
        groups = groupby(drafts, key=lambda draft: id(draft.call))
        queries = [self._tree_query(list(group)) for _, group in groups]
        return [draft.next_job() for draft in drafts], queries

    def _tree_query(self, drafts: Sequence[GrowingDraft]) -> Query:
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
        drafts: the best paths of the depth reached, ``width`` of them; equal ones where there are
            fewer paths.
    """

    def __init__(self, call: DraftCall, width: int) -> None:
        self.width = width
        self.call = dataclasses.replace(call, job=untruncated_job(call.job))
        self.drafts = [GrowingDraft(self.call, number) for number in range(width)]
        self._chances: dict[tuple[int, ...], float] = {(): 1.0}  # of every node, by its path

    def add_depth(self, values: list[list[float]], tokens: list[list[int]]) -> None:
        """Replace the drafts by the best of their continuations, given each one's likeliest."""
        children: dict[tuple[int, ...], float] = {}
        for draft, chances, ids in zip(self.drafts, values, tokens, strict=True):
            children |= self._add_children(tuple(draft.tokens), chances, ids)
        best = sorted(children, key=lambda path: -children[path])[: self.width]
        for number, draft in enumerate(self.drafts):
            draft.tokens[:] = best[min(number, len(best) - 1)]

    def add_depths(self, depths: Sequence[TreeDepth]) -> None:
        """Add what a device has found, which chose the best of every depth itself."""
        paths: dict[int, tuple[int, ...]] = {0: ()}
        for continuations, kept in depths:
            for number, (chances, tokens) in continuations.items():
                self._add_children(paths[number], chances, tokens)
            paths = {i: (*paths[parent], token) for i, (parent, token) in kept.items()}

    def _add_children(
        self, path: tuple[int, ...], chances: list[float], tokens: list[int]
    ) -> dict[tuple[int, ...], float]:
        children = {
            (*path, token): self._chances[path] * chance
            for chance, token in zip(chances, tokens, strict=True)
            if chance > 0.0
        }
        self._chances |= children
        return children

    def proposal(self, index: int) -> Proposal:
        """Return the likeliest nodes as drafts, one for each leaf; long and likely ones first."""
        order = sorted(self._chances, key=lambda path: (-self._chances[path], len(path)))
        kept = set(order[: 1 + self.width * self.call.limit])  # the text itself is among them
        inner = {path[:-1] for path in kept if path}
        leaves = [path for path in order if path in kept and path not in inner]
        # The first must be one of the longest: its signals and owners stand for all drafts.
        leaves.sort(key=lambda path: -len(path))
        return join_drafts(
            [draft_proposal(index, path, OneHotDistributions(path)) for path in leaves]
        )


def untruncated_job(job: ScoreRows) -> ScoreRows:
    """Return a greedy job at temperature 1, whose scores are edited but not truncated."""
    params = dataclasses.replace(job.params, temperature=1.0, top_k=None, top_p=None, min_p=None)
    return dataclasses.replace(job, params=params, temperature=None)


FirstTokens = tuple[list[int], list[Distributions]]


def first_tokens(
    roots: Sequence[Distributions], num_drafts: int, distinct: bool, rngs: Sequence[Rng]
) -> list[FirstTokens]:
    """Draw the first tokens of each call's drafts, from one row each; return for each call these,
    and what each was drawn from given those before.

    Distinct tokens are drawn from the distribution without those drawn already; there are fewer
    than ``num_drafts`` where it runs out of tokens. A one-hot row gives one token: the same token
    again could not be kept.
    """
    found: dict[int, FirstTokens] = {}
    far: list[int] = []
    for i, (row, rng) in enumerate(zip(roots, rngs, strict=True)):
        if isinstance(row, OneHotDistributions):
            found[i] = list(row.ids), [row]
        elif row.row(0).device.type != "cpu":
            far.append(i)
        elif distinct:
            found[i] = _distinct_tokens(row, num_drafts, rng)
        else:
            rows = row.dense(row.width).expand(num_drafts, -1)
            found[i] = draw(rows, rng.take(num_drafts)), [row] * num_drafts
    if far:
        far_roots, far_rngs = [roots[i] for i in far], [rngs[i] for i in far]
        found |= zip(far, _draw_far(far_roots, num_drafts, distinct, far_rngs), strict=True)
    return [found[i] for i in range(len(roots))]


def _distinct_tokens(row: Distributions, num_drafts: int, rng: Rng) -> FirstTokens:
    tokens: list[int] = []
    distributions: list[Distributions] = []
    probs = row.dense(row.width)[0].double()
    while len(tokens) < num_drafts and (total := float(probs.sum())) != 0.0:
        probs = probs / total  # NaN, which `draw` refuses, where the row was no distribution
        token = draw(probs.unsqueeze(0), rng.take(1))[0]
        tokens.append(token)
        distributions.append(DenseDistributions(probs.unsqueeze(0)))
        probs = probs.clone()
        probs[token] = 0.0
    return tokens, distributions


def _draw_far(
    roots: Sequence[Distributions], num_drafts: int, distinct: bool, rngs: Sequence[Rng]
) -> list[FirstTokens]:
    """Draw as :func:`first_tokens` from rows on an accelerator, with one wait.

    Each draft takes a uniform, also where the row runs out of tokens.
    """
    width = max(row.width for row in roots)
    probs = torch.cat([row.dense(width) for row in roots])
    uniforms = np.stack([rng.take(num_drafts) for rng in rngs])
    numbers, laws = locate_several(probs, sent(uniforms, torch.float64, probs.device), distinct)
    out: list[FirstTokens] = []
    for b, (root, drafts) in enumerate(zip(roots, numbers.tolist(), strict=True)):
        num = next((i for i, (total, *_) in enumerate(drafts) if total == 0.0), num_drafts)
        tokens = [checked_token(token, mass) for _, token, mass in drafts[:num]]
        rows: list[Distributions] = [root] * num
        if distinct:
            rows = [DenseDistributions(laws[b, i : i + 1]) for i in range(num)]
        out.append((tokens, rows))
    return out
