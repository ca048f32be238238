"""The interpreter for real models: many sequences at once, one forward per level and step.

It runs every live sequence's round as a stack of coroutines, collects what they wait for, and
answers the lowest waiting level first: so drafters run together, middle levels meet, and one
target call serves everybody. Rows are ragged; sequences may join or leave between rounds, and each
may follow a plan of its own (:mod:`hierspec.engine.control`).
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Mapping
from collections.abc import Sequence as Seq
from typing import Any

import torch

from hierspec.core.nodes import Concatenate, Draft, Node, Verify, walk
from hierspec.core.proposals import Verdict
from hierspec.core.rng import PhiloxRng
from hierspec.drafters import LookUp, drafter_of

from .answers import Responder, with_logprobs
from .metrics import Metrics
from .observers import Observer, Teaching
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
        self._responder = Responder(root, vocab_size, self._observers)
        self._groups: dict[Hashable, Group] = {}
        self._places: dict[Verify, Mapping[int, Place]] = {}

    def observe(self, observer: Observer) -> None:
        """Call ``observer``, too, of what happens from now on."""
        self._observers.append(observer)

    def round(self, sequences: Seq[LiveSequence]) -> list[Verdict]:
        """Run one round of the target for every sequence; nothing is committed to them yet."""
        for observer in self._observers:
            observer.round_began(sequences)
        tasks = [Task(sequence, self._places_of(sequence.root)) for sequence in sequences]
        while waiting := [task for task in tasks if task.verdict is None]:
            asking = _first_group(waiting)
            self._advance(asking, self._answered(asking))
        return self._ended(tasks)

    def round_apart(self, sequences: Seq[LiveSequence]) -> list[Verdict | Exception]:
        """Run one round for sequences that must not suffer from each other's failures.

        A call that fails is made again for each of its sequences alone, with the random numbers
        that it had before. What fails alone, too, is returned as that sequence's outcome, and its
        round is over. Observers see the others.
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
        started = [i for i in range(len(sequences)) if i not in failed]
        index = dict(zip(tasks, started, strict=True))
        while waiting := [t for t in tasks if t.verdict is None and index[t] not in failed]:
            asking = _first_group(waiting)
            positions = [_rng_of(task).num_taken for task in asking]
            try:
                self._advance(asking, self._answered(asking))
                continue
            except Exception as error:
                if len(asking) == 1:
                    failed[index[asking[0]]] = error
                    continue
            for task, position in zip(asking, positions, strict=True):
                _rng_of(task).rewind(position)
                try:
                    self._advance([task], self._answered([task]))
                except Exception as error:
                    failed[index[task]] = error
        finished = [task for task in tasks if index[task] not in failed]
        outcomes: dict[int, Verdict | Exception] = dict(failed)
        outcomes |= zip((index[task] for task in finished), self._ended(finished), strict=True)
        return [outcomes[i] for i in range(len(sequences))]

    def _answered(self, asking: list[Task]) -> list[Any]:
        began = time.perf_counter()
        answers = self._responder.answer(asking)
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
        """Return the limit and the group of each node of a plan, by index."""
        if plan not in self._places:
            self._places[plan] = {
                node.index: Place(_longest_context(node), self._group(node)) for node in walk(plan)
            }
        return self._places[plan]

    def _group(self, node: Node) -> Group | None:
        """Return the nodes that share calls with this one, whatever their budgets and lower levels.

        All that a request's answer depends on must be part of the group's key.
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


def _first_group(waiting: Seq[Task]) -> list[Task]:
    """Return the tasks that share the next call: the lowest level's."""
    if len(waiting) == 1:
        return [waiting[0]]
    first = min(waiting, key=_index)
    kind, group = type(first.request), first.group
    return [task for task in waiting if task.group is group and type(task.request) is kind]


def _rng_of(task: Task) -> PhiloxRng:
    rng = task.sequence.rng
    assert isinstance(rng, PhiloxRng), "random numbers that can be taken again"
    return rng


def _index(task: Task) -> int:
    return task.group.index


def _completed(task: Task) -> Verdict:
    """Return a finished round's verdict, with log-probabilities of tokens drawn after its check."""
    verdict = task.verdict
    assert verdict is not None
    tokens, known = verdict.emitted.tokens, verdict.logprobs
    if not task.sequence.want_logprobs or len(known) == len(tokens):
        return verdict
    rows = torch.cat([task.raw[tokens[:i]] for i in range(len(known), len(tokens))])
    return with_logprobs(task, verdict, rows)


def _longest_context(node: Node) -> int:
    """Return the longest context of all models at and below ``node``; look-ups have no limit."""
    return min(n.model.max_length for n in walk(node) if not isinstance(n, Concatenate))
