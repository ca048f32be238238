"""The interpreter for real models: many sequences at once, one forward per level and step.

It runs every live sequence's round as a stack of coroutines, collects what they wait for, and
answers the lowest waiting level first: so drafters run together, middle levels meet, and one
target call serves everybody. Rows are ragged; sequences may join or leave between rounds, and each
may follow a plan of its own (:mod:`hierspec.engine.control`).
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Generator, Hashable, Mapping
from collections.abc import Sequence as Seq
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from hierspec.core.context import Context
from hierspec.core.distributions import Distributions, draw_each
from hierspec.core.nodes import Concatenate, Draft, Node, Verify, walk
from hierspec.core.proposals import Proposal, States, Verdict
from hierspec.core.requests import Check, Draw, Propose, Row
from hierspec.core.rng import PhiloxRng
from hierspec.drafters import LookUp, drafter_of
from hierspec.drafters.base import DraftCall
from hierspec.lm.base import LanguageModel, Query, takes_trees
from hierspec.sampling.scores import ScoreRows, distributions, logprobs, signals, top_logprobs
from hierspec.verifiers.multi_draft import verify_drafts
from hierspec.verifiers.verify import verify_batch

from .ahead import AheadCall, Beside, ahead_call, ahead_limit, parted, taken
from .alternatives import AlternativeRows
from .metrics import Metrics
from .observers import Checks, Observer, Teaching
from .sequences import Group, LiveSequence, Place, Task


class Runtime:
    """Runs rounds. ``metrics`` is the caller's to read and reset.

    Args:
        root: all levels. Sequences may follow plans of their own, whose nodes have its indices;
            requests that read the same share a call, whichever plan they come from.
        vocab_size: V of the target.
    """

    def __init__(self, root: Verify, vocab_size: int) -> None:
        self.root = root
        self.vocab_size = vocab_size
        nodes = sorted(walk(root), key=lambda node: node.index)
        self.metrics = Metrics({node.index: node.name for node in nodes}, root.index)
        self._observers: list[Observer] = [self.metrics]
        leaves = [node.model for node in nodes if isinstance(node, Draft)]
        learners = [model for model in leaves if isinstance(model, LookUp) and model.learns]
        if learners:
            self.observe(Teaching(root.index, learners))
        target: LanguageModel = root.model
        self._graphs = target.graphs  # they outlive a generation
        self._beside = Beside()
        self._groups: dict[Hashable, Group] = {}
        self._places: dict[Verify, Mapping[int, Place]] = {}

    def observe(self, observer: Observer) -> None:
        """Tell ``observer``, too, what happens from now on."""
        self._observers.append(observer)

    def round(self, sequences: Seq[LiveSequence]) -> list[Verdict]:
        """One round of the target for every sequence; nothing is committed to them yet."""
        for observer in self._observers:
            observer.round_began(sequences)
        tasks = [Task(sequence, self._places_of(sequence.root)) for sequence in sequences]
        while waiting := [task for task in tasks if task.verdict is None]:
            asking = _first_group(waiting)
            self._advance(asking, self._answered(asking))
        return self._ended(tasks)

    def round_apart(self, sequences: Seq[LiveSequence]) -> list[Verdict | Exception]:
        """The same for sequences that must not suffer from each other's failures.

        A call that fails is made again for each of its sequences alone, with the random numbers
        that it had before; what fails alone, too, is that sequence's own outcome, and its round is
        over. Observers are told of the others.
        """
        for observer in self._observers:
            observer.round_began(sequences)
        failed: dict[int, Exception] = {}
        tasks: list[Task] = []
        for i, sequence in enumerate(sequences):
            try:
                tasks.append(Task(sequence, self._places_of(sequence.root)))
            except Exception as error:
                failed[i] = error
        at = [i for i in range(len(sequences)) if i not in failed]
        index = dict(zip(tasks, at, strict=True))
        while waiting := [t for t in tasks if t.verdict is None and index[t] not in failed]:
            asking = _first_group(waiting)
            places = [_seekable(task).num_taken for task in asking]
            try:
                self._advance(asking, self._answered(asking))
                continue
            except Exception as error:
                if len(asking) == 1:
                    failed[index[asking[0]]] = error
                    continue
            for task, place in zip(asking, places, strict=True):
                _seekable(task).rewind(place)
                try:
                    self._advance([task], self._answered([task]))
                except Exception as error:
                    failed[index[task]] = error
        done = [task for task in tasks if index[task] not in failed]
        found: dict[int, Verdict | Exception] = dict(failed)
        found |= zip((index[task] for task in done), self._ended(done), strict=True)
        return [found[i] for i in range(len(sequences))]

    def _answered(self, asking: list[Task]) -> list[Any]:
        began = time.perf_counter()
        answers = self._answer(asking)
        seconds = time.perf_counter() - began
        for observer in self._observers:
            observer.answered(asking, answers, began, seconds)
        return answers

    def _advance(self, asking: Seq[Task], answers: Seq[Any]) -> None:
        for task, answer in zip(asking, answers, strict=True):
            task.advance(answer)

    def _ended(self, tasks: Seq[Task]) -> list[Verdict]:
        sequences, verdicts = [task.sequence for task in tasks], [_completed(t) for t in tasks]
        for observer in self._observers:
            observer.round_ended(sequences, verdicts)
        return verdicts

    def _places_of(self, plan: Verify) -> Mapping[int, Place]:
        """What there is to know of each node of a plan, by index."""
        if plan not in self._places:
            self._places[plan] = {
                node.index: Place(_longest_context(node), self._group(node)) for node in walk(plan)
            }
        return self._places[plan]

    def _group(self, node: Node) -> Group | None:
        """Those whose requests read what this node's do; budgets and what lies below do not count.

        Whatever a group's requests are answered from must be part of its key.
        """
        if isinstance(node, Concatenate):
            return None
        key: Hashable = (node.index, node.name, id(node.model), node.window, node.temperature)
        if isinstance(node, Draft):
            key = (*key, node.num_drafts, node.distinct)
        else:
            key = (*key, node.rule, node.bonus)
        if key not in self._groups:
            drafter = drafter_of(node) if isinstance(node, Draft) else None
            self._groups[key] = Group(node.index, drafter)
        return self._groups[key]

    def _answer(self, tasks: list[Task]) -> list[Any]:
        match tasks[0].request:
            case Propose():
                return self._draft(tasks)
            case Check(node):
                return self._check(node, tasks)
            case Row(node):
                return self._rows(node, tasks)
            case Draw():
                requests = [task.request for task in tasks]
                rows = [draw.distribution for draw in requests if isinstance(draw, Draw)]
                return draw_each(rows, [task.sequence.rng for task in tasks])

    def _draft(self, tasks: list[Task]) -> list[tuple[Proposal, States]]:
        """What a leaf hands up for every task, all sequences side by side."""
        group = tasks[0].group
        assert group.drafter is not None
        calls: list[DraftCall] = []
        ready: list[Proposal | None] = []
        after: list[States] = []
        for task in tasks:
            request, sequence = task.request, task.sequence
            assert isinstance(request, Propose)
            node = request.node
            assert isinstance(node, Draft)
            job = self._job(node, task, task.context(request), 1)
            limit, state = min(node.budget, request.limit), request.states[node.index]
            after.append(request.states)
            found = taken(sequence, job.context, limit) if node.ahead else None
            ready.append(found)
            if found is None:
                limit = 1 if node.ahead else limit
                calls.append(DraftCall(job, limit, node.budget, state, sequence.rng, sequence.slot))
        if calls:
            proposals, forwards, seconds = group.drafter.draft(calls)
            for observer in self._observers:
                observer.forwarded(group.index, forwards, seconds)
            new = iter(proposals)
            ready = [next(new) if found is None else found for found in ready]
        return [(found or Proposal(), own) for found, own in zip(ready, after, strict=True)]

    def _check(self, node: Verify, tasks: list[Task]) -> list[Verdict]:
        """Every sequence's draft, in one call → verdicts, with signals and log-probabilities."""
        drafts: list[Proposal] = []
        jobs: list[ScoreRows] = []
        queries: list[Query] = []
        for task in tasks:
            request = task.request
            assert isinstance(request, Check)
            draft = request.draft
            if draft.alternatives:
                return self._check_alternatives(node, tasks)
            drafts.append(draft)
            job = self._job(node, task, task.context(request, draft.tokens), len(draft) + 1)
            jobs.append(job)
            queries.append(Query.for_rows(job, task.sequence.slot(node.model)))
        with self._drafting_ahead(node, tasks, drafts):
            scores, p = self._score(node, jobs, queries)
        # Tensor.split in two steps of Python takes longer than all that is decided greedily.
        parts = scores.split_with_sizes([job.num_rows for job in jobs])
        began = time.perf_counter()
        # Ids past the target's vocabulary get no mass, so they must not lead either.
        read = [part[:, : self.vocab_size] for part in parts] if node.rule.reads_scores else None
        rngs = [task.sequence.rng for task in tasks]
        verdicts = verify_batch(node, drafts, p, rngs, read, self._graphs)
        checks = Checks(node, tasks, drafts, p, verdicts, time.perf_counter() - began)
        return self._finished(checks, parts)

    @contextmanager
    def _drafting_ahead(
        self, node: Verify, tasks: list[Task], drafts: Seq[Proposal]
    ) -> Generator[None, None, None]:
        """While the target scores these drafts, let a leaf that drafts ahead continue them."""
        leaf = node.below
        if not (isinstance(leaf, Draft) and leaf.ahead) or node.index != self.root.index:
            yield
            return
        room = _longest_context(node)
        calls: list[AheadCall] = []
        for task, draft in zip(tasks, drafts, strict=True):
            limit = ahead_limit(leaf, task.sequence, len(draft), room)
            if limit > 0:
                job = self._job(leaf, task, task.sequence.context(draft.tokens), 1)
                calls.append(ahead_call(leaf, task.sequence, draft.tokens, job, limit))
        group = self._places_of(tasks[0].sequence.root)[leaf.index].group
        if not calls or group is None or group.drafter is None:
            yield
            return
        with self._beside.drafting(group.drafter, calls, parted(node, leaf, calls)) as made:
            yield
        for observer in self._observers:
            observer.forwarded(leaf.index, made.forwards, made.seconds)

    def _check_alternatives(self, node: Verify, tasks: list[Task]) -> list[Verdict]:
        """The same where some sequence has several drafts of one place."""
        asked, drafts = AlternativeRows(), list[tuple[Proposal, ...]]()
        as_trees = self._checks_trees(node)
        for task in tasks:
            request = task.request
            assert isinstance(request, Check)
            own = request.draft.drafts

            def job_of(
                tokens: tuple[int, ...], task: Task = task, request: Check = request
            ) -> ScoreRows:
                return self._job(node, task, task.context(request, tokens), len(tokens) + 1)

            if as_trees:
                asked.add_tree(own, job_of, task.sequence.slot(node.model))
            else:
                # A greedy tree may have more leaves than there shall be slots.
                own = own[: _most_drafts(request.node)]
                asked.add_apart(own, job_of, partial(task.sequence.slot, node.model))
            drafts.append(own)
        scores, p = self._score(node, asked.jobs, asked.queries, asked.rows)
        began = time.perf_counter()
        rows = asked.distributions(p)
        found = [
            verify_drafts(node, several, own, task.sequence.rng)
            for task, several, own in zip(tasks, drafts, rows, strict=True)
        ]
        seconds = time.perf_counter() - began
        at = [one.draft for one in found]
        chosen = [several[i] for several, i in zip(drafts, at, strict=True)]
        theirs = [own[i] for own, i in zip(rows, at, strict=True)]
        verdicts = [one.verdict for one in found]
        every = [
            list(zip(several, own, strict=True)) for several, own in zip(drafts, rows, strict=True)
        ]
        checks = Checks(node, tasks, chosen, theirs, verdicts, seconds, every)
        return self._finished(checks, [asked.scores(scores, i, own) for i, own in enumerate(at)])

    def _finished(self, checks: Checks, parts: Seq[torch.Tensor]) -> list[Verdict]:
        """Verdicts with what is read off each draft's scores [n + 1, V]."""
        for observer in self._observers:
            observer.verified(checks)
        node = checks.node
        signal, is_root = node.window.signal, node.index == self.root.index
        verdicts: list[Verdict] = []
        for task, verdict, scores in zip(checks.tasks, checks.verdicts, parts, strict=True):
            emitted = verdict.emitted
            if signal is not None:
                values = signals(scores[: len(emitted)], emitted.tokens, signal)
                emitted = dataclasses.replace(emitted, signals=tuple(values))
                verdict = dataclasses.replace(verdict, emitted=emitted)
            task.sequence.target_calls += is_root
            if is_root and task.sequence.want_logprobs:
                verdict = _reported(task, verdict, scores[: len(emitted)])
            verdicts.append(verdict)
        return verdicts

    def _rows(self, node: Node, tasks: list[Task]) -> list[Distributions]:
        assert not isinstance(node, Concatenate)
        jobs: list[ScoreRows] = []
        queries: list[Query] = []
        for task in tasks:
            assert isinstance(task.request, Row)
            jobs.append(self._job(node, task, task.context(task.request), 1))
            queries.append(Query.for_rows(jobs[-1], task.sequence.slot(node.model)))
        scores, rows = self._score(node, jobs, queries)
        if node.index == self.root.index:
            for task, job, own in zip(tasks, jobs, torch.split(scores, 1), strict=True):
                task.sequence.target_calls += 1
                if task.sequence.want_logprobs:
                    task.raw[job.context.pending] = own
        return rows

    def _job(self, node: Draft | Verify, task: Task, context: Context, num_rows: int) -> ScoreRows:
        """How to read the last ``num_rows`` rows of a context."""
        sequence = task.sequence
        params = sequence.params
        return ScoreRows(
            params=params,
            temperature=None if params.greedy else node.temperature,
            context=context,
            start=len(context) + 1 - num_rows,
            num_rows=num_rows,
            prompt_length=sequence.num_prompt,
            vocab_size=self.vocab_size,
            history=sequence.history,
            model=node.name,
            noise=sequence.noise,
            partial=getattr(node.model, "partial", False),
        )

    def _score(
        self,
        node: Draft | Verify,
        jobs: list[ScoreRows],
        queries: list[Query],
        rows: list[int] | None = None,
    ) -> tuple[torch.Tensor, list[Distributions]]:
        """Scores [Σ num_rows, V] and what they say, a value a job.

        ``rows``: the jobs', among those of the queries, where they are not the same.
        """
        model: LanguageModel = node.model
        began = time.perf_counter()
        scores = model.score(queries)
        seconds = time.perf_counter() - began
        for observer in self._observers:
            observer.forwarded(node.index, 1, seconds)
        if rows is not None:
            scores = scores[rows]
        return scores, distributions(jobs, scores)

    def _checks_trees(self, node: Verify) -> bool:
        """Whether several drafts are checked in one slot of the node's model.

        They are not where a drafter without trees reads the model's states draft by draft.
        """
        owner = node.model.cache_owner
        return takes_trees(node.model) and all(
            takes_trees(leaf.model) or leaf.model.cache_owner is not owner
            for leaf in walk(node.below)
            if isinstance(leaf, Draft) and leaf.num_drafts > 1
        )


def _most_drafts(node: Verify) -> int:
    """How many drafts of a place are made below a node."""
    leaves = [leaf for leaf in walk(node.below) if isinstance(leaf, Draft)]
    return max(leaf.num_drafts for leaf in leaves)


def _first_group(waiting: Seq[Task]) -> list[Task]:
    """Those who share the next call: the lowest level's."""
    if len(waiting) == 1:
        return [waiting[0]]
    first = min(waiting, key=_index)
    kind, group = type(first.request), first.group
    return [task for task in waiting if task.group is group and type(task.request) is kind]


def _seekable(task: Task) -> PhiloxRng:
    rng = task.sequence.rng
    assert isinstance(rng, PhiloxRng), "random numbers that can be taken again"
    return rng


def _index(task: Task) -> int:
    return task.group.index


def _completed(task: Task) -> Verdict:
    """A finished round's verdict, with log-probabilities also of tokens drawn after its check."""
    verdict = task.verdict
    assert verdict is not None
    tokens, known = verdict.emitted.tokens, verdict.logprobs
    if not task.sequence.want_logprobs or len(known) == len(tokens):
        return verdict
    rows = torch.cat([task.raw[tokens[:i]] for i in range(len(known), len(tokens))])
    return _reported(task, verdict, rows)


def _reported(task: Task, verdict: Verdict, rows: torch.Tensor) -> Verdict:
    """With log-probabilities of the next emitted tokens that have none, from raw scores [R, V]."""
    known = len(verdict.logprobs)
    tokens = verdict.emitted.tokens[known : known + len(rows)]
    values = (*verdict.logprobs, *logprobs(rows, tokens))
    verdict = dataclasses.replace(verdict, logprobs=values)
    k = task.sequence.num_top_logprobs
    if not k:
        return verdict
    best = (*verdict.top_logprobs, *top_logprobs(rows, k))
    return dataclasses.replace(verdict, top_logprobs=best)


def _longest_context(node: Node) -> int:
    """Of the models at and below ``node``; a look-up has no limit."""
    return min(n.model.max_length for n in walk(node) if not isinstance(n, Concatenate))
