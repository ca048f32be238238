"""The interpreter for real models: many sequences at once, one forward per level and step.

It runs every live sequence's round as a stack of coroutines, collects the requests they wait for,
and answers the lowest waiting level first: so at every level sequences share calls, and one target
call verifies all their drafts. Drafts may differ in length; sequences may join or leave between
rounds, and each may follow a plan of its own (:mod:`hierspec.engine.control`).
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Mapping, Sequence

import torch

from hierspec.core.nodes import Concatenate, Draft, walk, walk_levels
from hierspec.core.proposals import Verdict
from hierspec.core.rng import PhiloxRng
from hierspec.drafters import drafter_of
from hierspec.drafters.base import Learner
from hierspec.lm.backend import position_switch
from hierspec.lm.base import ModelNode, ModelVerify, scores_part

from .answers import Responder, with_logprobs
from .metrics import Metrics
from .observers import Observer, Training
from .sequences import Group, LiveSequence, NodeInfo, Task


class Runtime:
    """Runs rounds. ``metrics`` is the caller's to read and reset.

    Args:
        root: all levels. Sequences may follow plans of their own, whose nodes have its indices;
            requests of different plans share a call where their answers do not depend on the plan.
        vocab_size: V of the target.
    """

    def __init__(self, root: ModelVerify, vocab_size: int) -> None:
        self.root = root
        self.vocab_size = vocab_size
        nodes = sorted(walk(root), key=lambda node: node.index)
        self.metrics = Metrics({node.index: node.name for node in nodes}, root.index)
        self._observers: list[Observer] = [self.metrics]
        leaves = [node.model for node in nodes if isinstance(node, Draft)]
        if learners := [model for model in leaves if isinstance(model, Learner)]:
            self.observe(Training(root.index, learners))
        self._responder = Responder(root, vocab_size, self._observers)
        switches = [position_switch(level.model.cache_owner) for level in walk_levels(root)]
        self._switches = tuple({s.length for s in switches if s is not None and s.recomputes})
        self._groups: dict[Hashable, Group] = {}
        self._node_infos: dict[ModelVerify, Mapping[int, NodeInfo]] = {}

    def observe(self, observer: Observer) -> None:
        """Add an observer of all that happens from now on."""
        self._observers.append(observer)

    def round(self, sequences: Sequence[LiveSequence]) -> list[Verdict]:
        """Run one round of the target for every sequence; nothing is committed to them yet."""
        for observer in self._observers:
            observer.on_round_begin(sequences)
        tasks = [Task(sequence, self._infos(sequence.root)) for sequence in sequences]
        while waiting := [task for task in tasks if task.verdict is None]:
            self._advance(_lowest_group(waiting))
        return self._end_round(tasks)

    def round_apart(self, sequences: Sequence[LiveSequence]) -> list[Verdict | Exception]:
        """Run one round in which a failure affects only the sequence that causes it.

        A call that fails is repeated for each of its sequences alone, with the same random
        numbers. If that fails too, the sequence's round is over and its outcome is the exception;
        observers see the round end without it.
        """
        for observer in self._observers:
            observer.on_round_begin(sequences)
        failed: dict[int, Exception] = {}
        tasks: list[Task] = []
        for i, sequence in enumerate(sequences):
            try:
                tasks.append(Task(sequence, self._infos(sequence.root)))
            except Exception as error:
                failed[i] = error
        started = [i for i in range(len(sequences)) if i not in failed]
        index = dict(zip(tasks, started, strict=True))
        while waiting := [t for t in tasks if t.verdict is None and index[t] not in failed]:
            batch = _lowest_group(waiting)
            positions = [_rng_of(task).num_taken for task in batch]
            try:
                self._advance(batch)
                continue
            except Exception as error:
                if len(batch) == 1:
                    failed[index[batch[0]]] = error
                    continue
            for task, position in zip(batch, positions, strict=True):
                _rng_of(task).rewind(position)
                try:
                    self._advance([task])
                except Exception as error:
                    failed[index[task]] = error
        finished = [task for task in tasks if index[task] not in failed]
        outcomes: dict[int, Verdict | Exception] = dict(failed)
        outcomes |= zip((index[task] for task in finished), self._end_round(finished), strict=True)
        return [outcomes[i] for i in range(len(sequences))]

    def _advance(self, tasks: list[Task]) -> None:
        """Answer the requests of these tasks in one call, and run each on to its next request."""
        began = time.perf_counter()
        answers = self._responder.answer(tasks)
        seconds = time.perf_counter() - began
        for observer in self._observers:
            observer.on_answer(tasks, answers, began, seconds)
        for task, answer in zip(tasks, answers, strict=True):
            task.advance(answer)

    def _end_round(self, tasks: Sequence[Task]) -> list[Verdict]:
        sequences, verdicts = [task.sequence for task in tasks], [_final_verdict(t) for t in tasks]
        for observer in self._observers:
            observer.on_round_end(sequences, verdicts)
        return verdicts

    def _infos(self, plan: ModelVerify) -> Mapping[int, NodeInfo]:
        """Return the information on each node of a plan, by index."""
        if plan not in self._node_infos:
            self._node_infos[plan] = {node.index: self._info(node) for node in walk(plan)}
        return self._node_infos[plan]

    def _info(self, node: ModelNode) -> NodeInfo:
        partial = not isinstance(node, Concatenate) and scores_part(node.model)
        return NodeInfo(_max_context(node), self._group(node), partial, self._switches)

    def _group(self, node: ModelNode) -> Group | None:
        """Return the group of a node: nodes that differ in budget or lower levels share one.

        Everything else that an answer depends on is part of the group's key.
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


def _lowest_group(waiting: Sequence[Task]) -> list[Task]:
    """Return the tasks that share the next call, which is the lowest level's."""
    if len(waiting) == 1:
        return [waiting[0]]
    first = min(waiting, key=lambda task: task.group.index)
    kind, group = type(first.request), first.group
    return [task for task in waiting if task.group is group and type(task.request) is kind]


def _rng_of(task: Task) -> PhiloxRng:
    rng = task.sequence.rng
    assert isinstance(rng, PhiloxRng), "its random numbers can be taken again"
    return rng


def _final_verdict(task: Task) -> Verdict:
    """Return a finished round's verdict, with log-probabilities of tokens drawn after its check."""
    verdict = task.verdict
    assert verdict is not None
    tokens, start = verdict.emitted.tokens, len(verdict.logprobs)
    if not task.sequence.want_logprobs or start == len(tokens):
        return verdict
    rows = torch.cat([task.row_scores[tokens[:i]] for i in range(start, len(tokens))])
    return with_logprobs(task, verdict, rows)


def _max_context(node: ModelNode) -> int:
    """Return the longest context of all models at and below ``node``; look-ups have no limit."""
    return min(level.model.max_length for level in walk_levels(node))
