"""Answers to the requests of rounds: drafts, checks and rows, in one call for all sequences."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch

from hierspec.core.distributions import Distributions, draw_each, on_host
from hierspec.core.nodes import Draft, walk
from hierspec.core.proposals import Proposal, States, Verdict
from hierspec.core.requests import Check, Draw, Propose, Row
from hierspec.drafters.base import DraftCall, Drafter, DraftsOn
from hierspec.lm.base import (
    ModelDraft,
    ModelLevelNode,
    ModelVerify,
    Query,
    ScoringNode,
    takes_trees,
)
from hierspec.sampling.scores import (
    ScoredTokens,
    ScoreRows,
    compute_signals,
    distributions,
    logprobs,
    top_logprobs,
)
from hierspec.utils.reads import Reads, pick
from hierspec.verifiers.acceptance import drawn_row
from hierspec.verifiers.multi_draft import verify_drafts
from hierspec.verifiers.verify import start_batch

from .alternatives import AlternativeRows
from .observers import Checks, Observers
from .sequences import Task

_NOTHING = nullcontext()


class Responder:
    """Answers the requests of rounds in progress.

    Attributes:
        checks: what the last answer has verified; ``None`` if it was no check.
    """

    def __init__(self, root: ModelVerify, vocab_size: int, observers: Observers) -> None:
        self._root, self._vocab_size, self._observers = root.index, vocab_size, observers
        self._graphs = root.model.graphs  # they outlive a generation
        self.checks: Checks | None = None

    def answer(self, tasks: list[Task]) -> list[Any]:
        """Answer requests of one kind and group → answers as :meth:`.Observer.on_answer` lists."""
        self.checks = None
        match tasks[0].request:
            case Propose():
                return self._draft(tasks)
            case Check(node):
                return self._check(node, tasks)
            case Row(node):
                return self._rows(node, tasks)
            case Draw():
                requests = [task.request for task in tasks]
                rows = [drawn_row(draw) for draw in requests if isinstance(draw, Draw)]
                return draw_each(rows, [task.sequence.rng for task in tasks])

    def _draft(self, tasks: list[Task]) -> list[tuple[Proposal, States]]:
        group = tasks[0].group
        assert group.drafter is not None
        calls: list[DraftCall] = []
        states: list[States] = []
        for task in tasks:
            request = task.request
            assert isinstance(request, Propose)
            node = request.node
            assert isinstance(node, Draft)
            limit = min(node.budget, request.limit)
            calls.append(self._draft_call(node, task, request.pending, limit, request.states))
            states.append(request.states)
        drafts, forwards, seconds = group.drafter.draft(calls)
        self._observers.notify("on_forward", group.index, forwards, seconds)
        return [(draft or Proposal(), own) for draft, own in zip(drafts, states, strict=True)]

    def _draft_call(
        self,
        node: ModelDraft,
        task: Task,
        pending: tuple[int, ...],
        limit: int,
        states: States,
    ) -> DraftCall:
        job, sequence = self._job(node, task, pending, 1), task.sequence
        return DraftCall(job, limit, node.budget, states[node.index], sequence.rng, sequence.slot)

    def _check(self, node: ModelVerify, tasks: list[Task]) -> list[Verdict]:
        """Check all drafts in one call → verdicts, with signals and log-probabilities."""
        drafts: list[Proposal] = []
        jobs: list[ScoreRows] = []
        queries: list[Query] = []
        asks_for_all = True
        for task in tasks:
            request = task.request
            assert isinstance(request, Check)
            draft = request.draft
            if draft.alternatives:
                return self._check_alternatives(node, tasks)
            drafts.append(draft)
            job = self._job(node, task, request.pending + draft.tokens, len(draft) + 1)
            query = Query.for_rows(job, task.sequence.slot(node.model))
            if draft.tokens and not node.bonus and node.index != self._root:
                # Nobody reads the row after the last token, which need not go through the model:
                # if a smaller exit drafted it, nor through the layers they share. (A target's
                # states of all its tokens may be read by what drafts for it.)
                context = job.context.first(len(job.context) - 1)
                query = dataclasses.replace(query, context=context)
                asks_for_all = False
            jobs.append(job)
            queries.append(query)
        reads, rows = Reads(), None if asks_for_all else _rows_of(jobs, queries)
        with self._drafting_on(node, tasks, drafts):
            scores, p = self._score(node, jobs, queries, rows, reads)
        # Tensor.split is Python code, and takes longer than all greedy decisions together.
        sizes = [job.num_rows for job in jobs]
        parts = scores.split_with_sizes(sizes) if len(jobs) > 1 else [scores]
        began = time.perf_counter()
        # Ids past the target's vocabulary have no probability, so they must not be ranked either.
        ranked = [part[:, : self._vocab_size] for part in parts] if node.rule.reads_scores else None
        rngs = [task.sequence.rng for task in tasks]
        next_tokens, finish = start_batch(
            node.rule, drafts, p, rngs, ranked, node.bonus, node.index, self._graphs, reads
        )
        counts = (
            task.sequence.num_logprobs if node.index == self._root else None for task in tasks
        )
        scored = [
            part
            if own is None
            else ScoredTokens(part, draft.tokens, own, reads, node.window.signal, count)
            for part, draft, own, count in zip(parts, drafts, next_tokens, counts, strict=True)
        ]
        verdicts = finish()
        checks = Checks(node, tasks, drafts, p, verdicts, time.perf_counter() - began)
        return self._complete_verdicts(checks, scored)

    def _drafting_on(
        self, node: ModelVerify, tasks: list[Task], drafts: Sequence[Proposal]
    ) -> AbstractContextManager[None]:
        """Let a drafter that can do so draft on while the target checks what it drafted."""
        calls: list[DraftCall] = []
        drafter: Drafter | None = None
        for task, draft in zip(tasks, drafts, strict=True):
            sequence, leaf = task.sequence, task.sequence.root.below
            if node.index != self._root or not isinstance(leaf, Draft) or leaf.drafter is None:
                continue
            group = task.node_infos[leaf.index].group
            drafter = group.drafter if group is not None else None
            # The next round's verification adds a token of its own.
            usable = sequence.num_remaining_tokens - len(draft) - 1
            room = task.node_infos[node.index].room(len(sequence.tokens) + len(draft))
            limit = min(leaf.budget, usable, room)
            if draft.tokens and limit > 0:
                calls.append(self._draft_call(leaf, task, draft.tokens, limit, sequence.states))
        if not calls or not isinstance(drafter, DraftsOn):
            return _NOTHING
        return drafter.drafting_on(calls, node.model, partial(self._observers.notify, "on_forward"))

    def _check_alternatives(self, node: ModelVerify, tasks: list[Task]) -> list[Verdict]:
        alternatives, drafts = AlternativeRows(), list[tuple[Proposal, ...]]()
        as_trees = self._checks_trees(node)
        for task in tasks:
            request = task.request
            assert isinstance(request, Check)
            several = request.draft.drafts

            def make_job(
                tokens: tuple[int, ...], task: Task = task, request: Check = request
            ) -> ScoreRows:
                return self._job(node, task, request.pending + tokens, len(tokens) + 1)

            if as_trees:
                alternatives.add_tree(several, make_job, task.sequence.slot(node.model))
            else:
                # A greedy tree may have more leaves than a leaf's drafts have slots.
                leaves = (one for one in walk(request.node.below) if isinstance(one, Draft))
                several = several[: max((leaf.num_drafts for leaf in leaves), default=1)]
                slot = partial(task.sequence.slot, node.model)
                alternatives.add_in_separate_slots(several, make_job, slot)
            drafts.append(several)
        scores, p = self._score(node, alternatives.jobs, alternatives.queries, alternatives.rows)
        began = time.perf_counter()
        checked = _on_host(drafts, alternatives.distributions(p))
        choices = [
            verify_drafts(
                node.rule,
                [draft for draft, _ in pairs],
                [rows for _, rows in pairs],
                task.sequence.rng,
                node.bonus,
                node.index,
            )
            for task, pairs in zip(tasks, checked, strict=True)
        ]
        seconds = time.perf_counter() - began
        chosen = [pairs[number] for pairs, (_, number) in zip(checked, choices, strict=True)]
        checks = Checks(
            node,
            tasks,
            [draft for draft, _ in chosen],
            [rows for _, rows in chosen],
            [verdict for verdict, _ in choices],
            seconds,
            checked,
        )
        parts = [alternatives.scores(scores, i, number) for i, (_, number) in enumerate(choices)]
        return self._complete_verdicts(checks, parts)

    def _complete_verdicts(
        self, checks: Checks, scored: Sequence[torch.Tensor | ScoredTokens]
    ) -> list[Verdict]:
        """Add signals and log-probabilities to verdicts, from each draft's scores [n + 1, V]."""
        node = checks.node
        signal, is_root = node.window.signal, node.index == self._root
        verdicts: list[Verdict] = []
        for task, verdict, scores in zip(checks.tasks, checks.verdicts, scored, strict=True):
            emitted, n = verdict.emitted, len(verdict.emitted)
            if signal is not None:
                if isinstance(scores, ScoredTokens):
                    values = scores.signals(signal, verdict.num_accepted, n)
                else:
                    values = compute_signals(scores[:n], emitted.tokens, signal)
                emitted = dataclasses.replace(emitted, signals=tuple(values))
                verdict = dataclasses.replace(verdict, emitted=emitted)
            task.sequence.target_calls += is_root
            if is_root and task.sequence.num_logprobs is not None:
                if isinstance(scores, ScoredTokens):
                    values, best = scores.logprobs(verdict.num_accepted, n), scores.best(n)
                    verdict = dataclasses.replace(
                        verdict, logprobs=tuple(values), top_logprobs=tuple(best)
                    )
                else:
                    verdict = with_logprobs(task, verdict, scores[:n])
            verdicts.append(verdict)
        self.checks = checks
        return verdicts

    def _rows(self, node: ScoringNode, tasks: list[Task]) -> list[Distributions]:
        jobs: list[ScoreRows] = []
        queries: list[Query] = []
        for task in tasks:
            assert isinstance(task.request, Row)
            jobs.append(self._job(node, task, task.request.pending, 1))
            queries.append(Query.for_rows(jobs[-1], task.sequence.slot(node.model)))
        scores, rows = self._score(node, jobs, queries)
        if node.index == self._root:
            for task, job, row in zip(tasks, jobs, torch.split(scores, 1), strict=True):
                task.sequence.target_calls += 1
                if task.sequence.num_logprobs is not None:
                    task.row_scores[job.context.pending] = row
        return rows

    def _job(
        self, node: ModelLevelNode, task: Task, pending: tuple[int, ...], num_rows: int
    ) -> ScoreRows:
        sequence = task.sequence
        params, context = sequence.params, sequence.context(pending)
        return ScoreRows(
            params=params,
            temperature=None if params.greedy else node.temperature,
            context=context,
            start=len(context) + 1 - num_rows,
            num_rows=num_rows,
            prompt_length=sequence.prompt_length,
            vocab_size=self._vocab_size,
            history=sequence.history,
            model=node.name,
            noise=sequence.noise,
            partial=task.node_infos[node.index].partial,
            end_ids=sequence.end_ids,
        )

    def _score(
        self,
        node: ScoringNode,
        jobs: list[ScoreRows],
        queries: list[Query],
        rows: list[int] | None = None,
        reads: Reads | None = None,
    ) -> tuple[torch.Tensor, list[Distributions]]:
        """Call a node's model → scores [Σ num_rows, V], and each job's distributions.

        ``rows``: for each row of the jobs, its row among those of the queries; ``None``: the same.
        """
        began = time.perf_counter()
        scores = node.model.score(queries)
        self._observers.notify("on_forward", node.index, 1, time.perf_counter() - began)
        if rows is not None:
            scores = pick(scores, rows)
        return scores, distributions(jobs, scores, reads)

    def _checks_trees(self, node: ModelVerify) -> bool:
        """Return whether several drafts are checked as a tree in one slot of the node's model.

        They are not where a drafter that takes no trees reads the model's states draft by draft.
        """
        owner = node.model.cache_owner
        return takes_trees(node.model) and all(
            takes_trees(leaf.model) or leaf.model.cache_owner is not owner
            for leaf in walk(node.below)
            if isinstance(leaf, Draft) and leaf.num_drafts > 1
        )


def _rows_of(jobs: Sequence[ScoreRows], queries: Sequence[Query]) -> list[int]:
    """Return for each row of the jobs its row among those of the queries; a last row that nobody
    reads may be missing."""
    rows, first = list[int](), 0
    for job, query in zip(jobs, queries, strict=True):
        last = first + query.num_rows - 1
        rows += [min(first + row, last) for row in range(job.num_rows)]
        first = last + 1
    return rows


def _on_host(
    drafts: Sequence[tuple[Proposal, ...]], rows: Sequence[Sequence[Distributions]]
) -> list[list[tuple[Proposal, Distributions]]]:
    """Pair drafts with their rows, where the host can read both: a rule for several drafts reads
    them number by number, so an accelerator's are brought over together."""
    flat = [draft for several in drafts for draft in several]
    checked_rows = [own for several in rows for own in several]
    moved = iter(on_host([*checked_rows, *(draft.distributions for draft in flat)]))
    near_rows = [next(moved) for _ in checked_rows]
    near = [
        draft if own is draft.distributions else dataclasses.replace(draft, distributions=own)
        for draft, own in zip(flat, moved, strict=True)
    ]
    pairs = iter(zip(near, near_rows, strict=True))
    return [[next(pairs) for _ in several] for several in drafts]


def with_logprobs(task: Task, verdict: Verdict, rows: torch.Tensor) -> Verdict:
    """Add log-probabilities of the next emitted tokens that have none, from raw scores [R, V]."""
    start = len(verdict.logprobs)
    tokens = verdict.emitted.tokens[start : start + len(rows)]
    values = (*verdict.logprobs, *logprobs(rows, tokens))
    verdict = dataclasses.replace(verdict, logprobs=values)
    k = task.sequence.num_logprobs
    if not k:
        return verdict
    best = (*verdict.top_logprobs, *top_logprobs(rows, k))
    return dataclasses.replace(verdict, top_logprobs=best)
