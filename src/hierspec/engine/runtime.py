"""The interpreter for real models: many sequences at once, one forward per level and step.

It runs every live sequence's round as a stack of coroutines, collects what they wait for, and
answers the lowest waiting level first: so drafters run together, middle levels meet, and one
target call serves everybody. Rows are ragged; sequences may join or leave between rounds.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence as Seq
from typing import Any

import torch

from hierspec.core.context import Context
from hierspec.core.distributions import DenseDistributions, Distributions, OneHotDistributions, draw
from hierspec.core.nodes import Concatenate, Draft, Node, Verify, walk
from hierspec.core.proposals import Proposal, States, Verdict
from hierspec.core.requests import Check, Draw, Propose, Request, Row
from hierspec.core.round import verified
from hierspec.drafters import model as drafting
from hierspec.drafters.multi_draft import draft_several
from hierspec.drafters.ngram_pool import NgramPool, teach
from hierspec.drafters.prompt_lookup import PromptLookup
from hierspec.lm.adaptive_exit import AdaptiveExit
from hierspec.lm.base import Query
from hierspec.sampling.scores import ScoreRows, distributions
from hierspec.verifiers.verify import verify_batch

from . import checking
from .metrics import LevelStats, Metrics
from .sequences import Sequence, Task
from .trace import Tracer, event_of


class Runtime:
    """Runs rounds. ``metrics`` is the caller's to read and reset.

    Args:
        root: all levels. Sequences may follow plans of their own (:mod:`hierspec.engine.control`),
        whose
            nodes have its indices; those that share a plan share its calls.
    """

    def __init__(self, root: Verify, vocab_size: int, tracer: Tracer | None = None) -> None:
        self.root = root
        self.vocab_size = vocab_size
        self.tracer = tracer
        self._first_began: float | None = None  # of traced requests; times count from here
        nodes = sorted(walk(root), key=lambda node: node.index)
        models = [node.model for node in nodes if not isinstance(node, Concatenate)]
        self._pools = [model for model in models if isinstance(model, NgramPool)]
        self._graphs = getattr(root.model, "graphs", None)  # they outlive a generation
        self._longest: dict[Verify, dict[int, int]] = {}
        self.metrics = Metrics({node.index: LevelStats(node.name) for node in nodes})

    def round(self, sequences: Seq[Sequence]) -> list[Verdict]:
        """One round of the target for every sequence; nothing is committed to them yet."""
        tasks = [
            Task(s, [verified(s.root, (), s.wanted, s.states)], self._contexts(s.root))
            for s in sequences
        ]
        for task in tasks:
            task.advance(None)
        while waiting := [task for task in tasks if task.request is not None]:
            first = min(waiting, key=lambda task: task.request.node.index).request  # type: ignore[union-attr]
            assert first is not None
            group = [
                task
                for task in waiting
                if type(task.request) is type(first) and task.request.node is first.node  # type: ignore[union-attr]
            ]
            began = time.perf_counter()
            answers = self._answer(first, group)
            seconds = time.perf_counter() - began
            self.metrics.levels[first.node.index].seconds += seconds
            for task, answer in zip(group, answers, strict=True):
                if self.tracer is not None:
                    self._record(self.tracer, task, answer, began, seconds)
                task.advance(answer)
        verdicts = [checking.completed(task) for task in tasks]
        self.metrics.emitted += sum(len(verdict.emitted) for verdict in verdicts)
        return verdicts

    def _contexts(self, root: Verify) -> dict[int, int]:
        """The longest context each node of a plan can take, by index."""
        if root not in self._longest:
            self._longest[root] = {node.index: _longest_context(node) for node in walk(root)}
        return self._longest[root]

    def _answer(self, first: Request, group: list[Task]) -> list[Any]:
        match first:
            case Propose():
                return self._draft(first.node, group)  # type: ignore[arg-type]
            case Check():
                return self._check(first.node, group)  # type: ignore[arg-type]
            case Row():
                return self._rows(first.node, group)
            case Draw():
                return [self._token(task.request.law, task.sequence) for task in group]  # type: ignore[union-attr]

    def _score(
        self,
        node: Node,
        group: list[Task],
        drafts: list[tuple[int, ...]],
        back: bool,
        numbers: list[int] | None = None,
    ):
        """Scores and laws after ``pending`` and, with ``back``, at every place of the draft.

        ``numbers``: which of a task's several drafts each one is.
        """
        model: Any = node.model  # type: ignore[union-attr]
        jobs = [
            self._job(node, task, draft, len(draft) + 1 if back else 1)
            for task, draft in zip(group, drafts, strict=True)
        ]
        queries = [
            Query(task.sequence.slot(model, number), job.context, job.start)
            for task, job, number in zip(group, jobs, numbers or [0] * len(group), strict=True)
        ]
        stats = self.metrics.levels[node.index]
        began = time.perf_counter()
        if isinstance(model, AdaptiveExit):
            own = [j.params.temperature if j.temperature is None else j.temperature for j in jobs]
            scores = model.score(queries, own)
        else:
            scores = model.score(queries)
        stats.forward_seconds += time.perf_counter() - began
        stats.calls += 1
        return scores, distributions(jobs, scores), [job.num_rows for job in jobs]

    def _job(self, node: Node, task: Task, draft: tuple[int, ...], num_rows: int) -> ScoreRows:
        """How to read the last ``num_rows`` rows after a task's ``pending`` and ``draft``."""
        sequence, request = task.sequence, task.request
        context = Context(sequence.tokens, request.pending + draft)  # type: ignore[union-attr]
        params = sequence.params
        return ScoreRows(
            params=params,
            temperature=None if params.greedy else node.temperature,  # type: ignore[union-attr]
            context=context,
            start=len(context) + 1 - num_rows,
            num_rows=num_rows,
            prompt_length=sequence.num_prompt,
            vocab_size=self.vocab_size,
            history=sequence.history,
            model=node.name,
        )

    def _draft(self, node: Draft, group: list[Task]) -> list[tuple[Proposal, States]]:
        """What a leaf hands up for every task, all sequences side by side."""
        stats = self.metrics.levels[node.index]
        if isinstance(node.model, PromptLookup | NgramPool):
            stats.calls += len(group)
            return [drafting.look_up(node, task) for task in group]
        if node.num_drafts > 1:

            def score(tasks: list[Task], tokens: list[tuple[int, ...]], numbers: list[int]):
                return self._score(node, tasks, tokens, False, numbers)[1]

            states = [task.request.states for task in group]  # type: ignore[union-attr]
            return list(zip(draft_several(node, group, score), states, strict=True))
        jobs = [self._job(node, task, (), 1) for task in group]
        if (sampler := drafting.shared_reading(node, jobs)) is not None:
            return drafting.ahead(node, group, jobs, sampler, stats)

        def step(tasks: list[Task], tokens: list[tuple[int, ...]]):
            scores, rows, _ = self._score(node, tasks, tokens, False)
            return scores, rows, self._tokens(rows, [task.sequence for task in tasks])

        return drafting.by_steps(node, group, step)

    def _check(self, node: Verify, group: list[Task]) -> list[Verdict]:
        drafts = [task.request.draft for task in group]  # type: ignore[union-attr]
        is_root = node.index == self.root.index
        if any(draft.others for draft in drafts):

            def score(tasks: list[Task], tokens: list[tuple[int, ...]], numbers: list[int]):
                return self._score(node, tasks, tokens, True, numbers)

            found = checking.check_several(node, group, drafts, score, self.metrics)
            verdicts, parts, chosen = found
            return checking.finished(node, group, chosen, verdicts, parts, self.metrics, is_root)
        scores, p, counts = self._score(node, group, [d.tokens for d in drafts], True)
        parts = scores.split(counts)
        began = time.perf_counter()
        verdicts = verify_batch(
            node,
            drafts,
            p,
            [task.sequence.rng for task in group],
            # Ids past the target's vocabulary get no mass, so they must not lead either.
            [part[:, : self.vocab_size] for part in parts] if node.rule.reads_scores else None,
            self._graphs,
        )
        self.metrics.levels[node.index].verify_seconds += time.perf_counter() - began
        if self._pools and is_root:
            teach(self._pools, group, drafts, p, verdicts)
        return checking.finished(node, group, drafts, verdicts, parts, self.metrics, is_root)

    def _rows(self, node: Node, group: list[Task]) -> list[Distributions]:
        scores, rows, _ = self._score(node, group, [()] * len(group), False)
        is_root = node.index == self.root.index
        if is_root:
            checking.keep_raw(group, scores)
        self.metrics.target_calls += is_root
        for task in group:
            task.sequence.target_calls += is_root
        return rows

    def _tokens(self, step: list[Distributions], sequences: list[Sequence]) -> list[int]:
        """One token from each one-row law, all dense rows in one draw."""
        if len(step) == 1 and isinstance(step[0], DenseDistributions):
            return draw(step[0].probs, sequences[0].rng.take(1))
        dense = [i for i, law in enumerate(step) if isinstance(law, DenseDistributions)]
        out = [law.ids[0] if isinstance(law, OneHotDistributions) else -1 for law in step]
        if dense:
            uniforms = [sequences[i].rng.take(1).item() for i in dense]
            width = max(step[i].width for i in dense)
            rows = torch.cat([step[i].dense(width) for i in dense])
            for i, token in zip(dense, draw(rows, uniforms), strict=True):
                out[i] = token
        return out

    def _token(self, law: Distributions, sequence: Sequence) -> int:
        return self._tokens([law], [sequence])[0]

    def _record(
        self, tracer: Tracer, task: Task, answer: Any, began: float, seconds: float
    ) -> None:
        assert task.request is not None
        if self._first_began is None:
            self._first_began = began
        committed = len(task.sequence.tokens)
        times = (began - self._first_began, seconds)
        event = event_of(task.request, answer, task.sequence.id, committed, times)
        if event is not None:
            tracer.record(event)


def _longest_context(node: Node) -> int:
    """Of the models at and below ``node``; a look-up has no limit."""
    models = [n.model for n in walk(node) if not isinstance(n, Concatenate)]
    return min(getattr(model, "max_length", sys.maxsize) for model in models)
