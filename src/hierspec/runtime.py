"""The interpreter for real models: many sequences at once, one forward per level and step.

It runs every live sequence's round as a stack of coroutines, collects what they wait for, and
answers the lowest waiting level first: so drafters run together, middle levels meet, and one
target call serves everybody. Rows are ragged; sequences may join or leave between rounds.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Sequence as Seq
from typing import Any

from .drafters.prompt_lookup import PromptLookup
from .hierarchy import (
    Concatenate,
    Draft,
    Node,
    Verify,
    verified,
    walk,
)
from .laws import DenseLaws, Laws, OneHotLaws, concatenate, draw
from .lm.base import Context, Query
from .metrics import LevelStats, Metrics
from .sampling import Job, laws, logprobs, signals
from .sequences import Sequence, Task
from .trace import Tracer, event_of
from .types import Check, Draw, Proposal, Propose, Request, Row, States, Verdict
from .verifiers.verify import verify_batch

_NAN = float("nan")


class Runtime:
    """Runs rounds. ``metrics`` is the caller's to read and reset.

    Args:
        root: all levels. Sequences may follow plans of their own (:mod:`hierspec.control`), whose
            nodes have its indices; those that share a plan share its calls.
    """

    def __init__(self, root: Verify, vocab_size: int, tracer: Tracer | None = None) -> None:
        self.root = root
        self.vocab_size = vocab_size
        self.tracer = tracer
        nodes = sorted(walk(root), key=lambda node: node.index)
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
            self.metrics.levels[first.node.index].seconds += time.perf_counter() - began
            for task, answer in zip(group, answers, strict=True):
                if self.tracer is not None:
                    self._record(task, answer)
                task.advance(answer)
        verdicts = [task.verdict for task in tasks]
        assert all(verdict is not None for verdict in verdicts)
        self.metrics.emitted += sum(len(v.emitted) for v in verdicts if v is not None)
        return verdicts  # type: ignore[return-value]

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

    def _score(self, node: Node, group: list[Task], drafts: list[tuple[int, ...]], back: bool):
        """Scores and laws after ``pending`` and, with ``back``, at every place of the draft."""
        model: Any = node.model  # type: ignore[union-attr]
        temperature = node.temperature  # type: ignore[union-attr]
        queries, jobs = [], []
        for task, draft in zip(group, drafts, strict=True):
            sequence, request = task.sequence, task.request
            context = Context(sequence.tokens, request.pending + draft)  # type: ignore[union-attr]
            start = len(context) - len(draft) if back else len(context)
            queries.append(Query(sequence.slot(model), context, start))
            jobs.append(
                Job(
                    params=sequence.params,
                    temperature=None if sequence.params.greedy else temperature,
                    context=context,
                    start=start,
                    num_rows=queries[-1].num_rows,
                    prompt_length=sequence.num_prompt,
                    vocab_size=self.vocab_size,
                    history=sequence.history,
                    model=node.name,
                )
            )
        stats = self.metrics.levels[node.index]
        began = time.perf_counter()
        scores = model.score(queries)
        stats.forward_seconds += time.perf_counter() - began
        stats.calls += 1
        return scores, laws(jobs, scores), [query.num_rows for query in queries]

    def _draft(self, node: Draft, group: list[Task]) -> list[tuple[Proposal, States]]:
        """Token by token, all sequences side by side, each until its own window stops it."""
        if isinstance(node.model, PromptLookup):
            return [self._look_up(node, task) for task in group]
        tokens: list[list[int]] = [[] for _ in group]
        rows: list[list[Laws]] = [[] for _ in group]
        seen: list[list[float]] = [[] for _ in group]
        active = list(range(len(group)))
        while active:
            tasks = [group[i] for i in active]
            scores, step, _ = self._score(node, tasks, [tuple(tokens[i]) for i in active], False)
            picked = self._tokens(step, [task.sequence for task in tasks])
            if node.window.signal is not None:
                values = signals(scores, picked, node.window.signal)
            else:
                values = [_NAN] * len(picked)
            still = []
            for i, law, token, value in zip(active, step, picked, values, strict=True):
                tokens[i].append(token)
                rows[i].append(law)
                seen[i].append(value)
                request: Any = group[i].request
                if len(tokens[i]) < min(node.budget, request.limit) and not node.window.stops(
                    (value,), request.states[node.index]
                ):
                    still.append(i)
            active = still
        out = []
        for task, ids, law, values in zip(group, tokens, rows, seen, strict=True):
            whose = (node.index,) * len(ids)
            proposal = Proposal(tuple(ids), concatenate(law), whose, whose, tuple(values))
            out.append((proposal, task.request.states))  # type: ignore[union-attr]
        return out

    def _look_up(self, node: Draft, task: Task) -> tuple[Proposal, States]:
        request: Any = task.request
        context = task.context(request.pending)
        slot: Any = task.sequence.slot(node.model)
        ids = node.model.propose(context, min(node.budget, request.limit), slot)
        whose = (node.index,) * len(ids)
        self.metrics.levels[node.index].calls += 1
        return Proposal(ids, OneHotLaws(ids), whose, whose, (_NAN,) * len(ids)), request.states

    def _check(self, node: Verify, group: list[Task]) -> list[Verdict]:
        drafts = [task.request.draft for task in group]  # type: ignore[union-attr]
        scores, p, counts = self._score(node, group, [d.tokens for d in drafts], True)
        parts = scores.split(counts)
        verdicts = verify_batch(
            node,
            drafts,
            p,
            [task.sequence.dice for task in group],
            list(parts) if node.rule.reads_scores else None,
        )
        is_root = node.index == self.root.index
        self.metrics.target_calls += is_root
        for i, (task, draft, verdict) in enumerate(zip(group, drafts, verdicts, strict=True)):
            self._count(draft, verdict)
            emitted = verdict.emitted
            if node.window.signal is not None:
                rows = parts[i][: len(emitted)]
                values = tuple(signals(rows, emitted.tokens, node.window.signal))
                emitted = dataclasses.replace(emitted, signals=values)
                verdicts[i] = verdict = dataclasses.replace(verdict, emitted=emitted)
            if is_root and task.sequence.want_logprobs:
                values = tuple(logprobs(parts[i][: len(emitted)], emitted.tokens))
                verdicts[i] = dataclasses.replace(verdict, logprobs=values)
        return verdicts

    def _rows(self, node: Node, group: list[Task]) -> list[Laws]:
        _, rows, _ = self._score(node, group, [()] * len(group), False)
        self.metrics.target_calls += node.index == self.root.index
        return rows

    def _tokens(self, step: list[Laws], sequences: list[Sequence]) -> list[int]:
        """One token from each one-row law, all dense rows of one width in one draw."""
        dense = [i for i, law in enumerate(step) if isinstance(law, DenseLaws)]
        out = [law.ids[0] if isinstance(law, OneHotLaws) else -1 for law in step]
        if dense:
            uniforms = [float(sequences[i].dice.take(1)[0]) for i in dense]
            stacked = concatenate([step[i] for i in dense])
            assert isinstance(stacked, DenseLaws)
            for i, token in zip(dense, draw(stacked.probs, uniforms), strict=True):
                out[i] = token
        return out

    def _token(self, law: Laws, sequence: Sequence) -> int:
        return self._tokens([law], [sequence])[0]

    def _count(self, draft: Proposal, verdict: Verdict) -> None:
        """Whose tokens were drafted and kept; parts of a concatenation are counted apart."""
        start = 0
        while start < len(draft):
            end = start + 1
            while end < len(draft) and draft.owners[end] == draft.owners[start]:
                end += 1
            kept = min(max(verdict.num_accepted - start, 0), end - start)
            self.metrics.levels[draft.owners[start]].observe(end - start, kept, start)
            start = end

    def _record(self, task: Task, answer: Any) -> None:
        assert task.request is not None
        assert self.tracer is not None
        event = event_of(task.request, answer, task.sequence.id, len(task.sequence.tokens))
        if event is not None:
            self.tracer.record(event)


def _longest_context(node: Node) -> int:
    """Of the models at and below ``node``; a look-up has no limit."""
    models = [n.model for n in walk(node) if not isinstance(n, Concatenate)]
    return min(getattr(model, "max_length", sys.maxsize) for model in models)
