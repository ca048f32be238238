"""The interpreter for real models: many sequences at once, one forward per level and step.

It runs every live sequence's round as a stack of coroutines, collects the requests they wait for,
and answers the lowest waiting level first: so at every level sequences share calls, and one target
call verifies all their drafts. Drafts may differ in length; sequences may join or leave between
rounds, and each may follow a plan of its own (:mod:`hierspec.engine.control`).
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Mapping, Sequence
from typing import cast

import torch

from hierspec.core.nodes import Concatenate, Draft, walk, walk_levels
from hierspec.core.proposals import Verdict
from hierspec.drafters.base import Drafter, Learner, LookUpDrafter
from hierspec.drafters.model import ModelDrafter
from hierspec.drafters.multi_draft import MultiDrafter
from hierspec.errors import FAILURES
from hierspec.lm.backend import position_switch
from hierspec.lm.base import LanguageModel, ModelDraft, ModelNode, ModelVerify

from .metrics import Metrics, Paces
from .observers import Observer, Observers, learn_from_check
from .responder import Responder, with_logprobs
from .sequences import Group, LiveSequence, NodeInfo, Task


class Runtime:
    """Runs rounds. ``metrics`` is the caller's to read and reset.

    Args:
        root: all levels. Sequences may follow plans of their own, whose nodes have its indices;
            requests of different plans share a call where their answers do not depend on the plan.
        log_observer_errors: whether an observer's error is logged; else it is raised.
    """

    def __init__(
        self, root: ModelVerify, vocab_size: int, log_observer_errors: bool = False
    ) -> None:
        self.root = root
        self.vocab_size = vocab_size
        nodes = sorted(walk(root), key=lambda node: node.index)
        self.metrics = Metrics({node.index: node.name for node in nodes})
        self._observers = Observers(log_observer_errors)
        self._observers.add(self.metrics)
        self._observers.add(Paces(root.index))
        leaves = [node.model for node in nodes if isinstance(node, Draft)]
        self._learners = [model for model in leaves if isinstance(model, Learner)]
        self._responder = Responder(root, vocab_size, self._observers)
        switches = [position_switch(level.model.cache_owner) for level in walk_levels(root)]
        self._switches = tuple({s.length for s in switches if s is not None and s.recomputes})
        self._groups: dict[Hashable, Group] = {}
        self._node_infos: dict[ModelVerify, Mapping[int, NodeInfo]] = {}

    def observe(self, observer: Observer) -> None:
        self._observers.add(observer)

    def round(self, sequences: Sequence[LiveSequence]) -> list[Verdict]:
        """Run one round of the target for every sequence; nothing is committed to them yet.

        Raises:
            BaseException: what failed for the first of those for which something did.
        """
        verdicts: list[Verdict] = []
        for outcome in self.try_round(sequences):
            if isinstance(outcome, BaseException):
                raise outcome
            verdicts.append(outcome)
        return verdicts

    def try_round(self, sequences: Sequence[LiveSequence]) -> list[Verdict | BaseException]:
        """Run one round, in which a failure affects only the sequence that causes it.

        A call that fails is repeated for each of its sequences alone, from where they were before
        it (:meth:`LiveSequence.snapshot`). If that fails too, the sequence's round is over and
        its outcome is the error; observers see the round end without it.
        """
        self._observers.notify("on_round_begin", sequences)
        outcomes: dict[LiveSequence, Verdict | BaseException] = {}
        tasks: list[Task] = []
        for sequence in sequences:
            try:
                tasks.append(Task(sequence, self._infos(sequence.root)))
            except FAILURES as error:
                outcomes[sequence] = error
        while waiting := [t for t in tasks if t.verdict is None and t.sequence not in outcomes]:
            batch = _lowest_group(waiting)
            if isinstance(batch[0].group.drafter, LookUpDrafter):
                batch = batch[:1]  # a look-up shares nothing, and a part of one cannot be undone
            outcomes |= self._advance(batch)
        finished: list[tuple[LiveSequence, Verdict]] = []
        for task in tasks:
            if task.sequence in outcomes:
                continue
            try:
                verdict = _final_verdict(task)
                learn_from_check(task, self._learners)
                outcomes[task.sequence] = verdict
                finished.append((task.sequence, verdict))
            except FAILURES as error:
                outcomes[task.sequence] = error
        self._observers.notify("on_round_end", [s for s, _ in finished], [v for _, v in finished])
        return [outcomes[sequence] for sequence in sequences]

    def _advance(self, tasks: list[Task]) -> dict[LiveSequence, BaseException]:
        """Answer these tasks' requests in one call, and run each on → what failed, by sequence.

        A call of several that fails is repeated for each alone.
        """
        failed: dict[LiveSequence, BaseException] = {}
        snapshots = [task.sequence.snapshot() for task in tasks] if len(tasks) > 1 else []
        try:
            began = time.perf_counter()
            answers = self._responder.answer(tasks)
            seconds = time.perf_counter() - began
            # Only now, since a call that fails is repeated.
            if (checks := self._responder.checks) is not None:
                if self._learners and checks.node.index == self.root.index:
                    for i, task in enumerate(tasks):
                        task.checked = checks, i
                self._observers.notify("on_verify", checks)
            self._observers.notify("on_answer", tasks, answers, began, seconds)
        except FAILURES as error:
            if len(tasks) == 1:
                return {tasks[0].sequence: error}
            for task, snapshot in zip(tasks, snapshots, strict=True):
                try:
                    task.sequence.restore(snapshot)
                    failed |= self._advance([task])
                except FAILURES as own_error:
                    failed[task.sequence] = own_error
            return failed
        for task, answer in zip(tasks, answers, strict=True):
            try:
                task.advance(answer)
            except FAILURES as error:
                failed[task.sequence] = error
        return failed

    def _infos(self, plan: ModelVerify) -> Mapping[int, NodeInfo]:
        if plan not in self._node_infos:
            infos: dict[int, NodeInfo] = {}
            for node in walk(plan):
                # The longest context of all models at and below it; look-ups have no limit.
                room = min(level.model.max_length for level in walk_levels(node))
                partial = not isinstance(node, Concatenate) and getattr(
                    node.model, "partial", False
                )
                infos[node.index] = NodeInfo(room, self._group(node), partial, self._switches)
            self._node_infos[plan] = infos  # only now: any call may fail
        return self._node_infos[plan]

    def _group(self, node: ModelNode) -> Group | None:
        """Return the group of a node: nodes that differ in budget or lower levels share one.

        Everything else that an answer depends on is part of the group's key.
        """
        if isinstance(node, Concatenate):
            return None
        key: Hashable = (node.index, node.name, id(node.model), node.window, node.temperature)
        if isinstance(node, Draft):
            key = (*key, node.num_drafts, node.distinct, node.drafter)
        else:
            key = (*key, node.rule, node.bonus)
        if key not in self._groups:
            drafter = _drafter_of(node) if isinstance(node, Draft) else None
            self._groups[key] = Group(node.index, drafter)
        return self._groups[key]


def _drafter_of(node: ModelDraft) -> Drafter:
    """Return the drafter that runs a leaf: its own, one that its model makes, or any model's."""
    if (make := node.drafter or getattr(node.model, "make_drafter", None)) is not None:
        return make(node)
    leaf = cast("Draft[LanguageModel]", node)  # a look-up makes its own
    return MultiDrafter(leaf) if node.num_drafts > 1 else ModelDrafter(leaf)


def _lowest_group(waiting: Sequence[Task]) -> list[Task]:
    if len(waiting) == 1:
        return [waiting[0]]
    first = min(waiting, key=lambda task: task.group.index)
    kind, group = type(first.request), first.group
    return [task for task in waiting if task.group is group and type(task.request) is kind]


def _final_verdict(task: Task) -> Verdict:
    verdict = task.verdict
    assert verdict is not None
    tokens, start = verdict.emitted.tokens, len(verdict.logprobs)
    if task.sequence.num_logprobs is None or start == len(tokens):
        return verdict
    rows = torch.cat([task.row_scores[tokens[:i]] for i in range(start, len(tokens))])
    return with_logprobs(task, verdict, rows)
