"""The exact interpreter: every random branch of the coroutines that the runtime runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from hierspec.core.nodes import Concatenate, Draft, Node, Verify, walk
from hierspec.core.proposals import Proposal, States, Verdict
from hierspec.core.requests import Check, Draw, NodeRequest, Propose, Row
from hierspec.core.round import Coroutine, propose, verified
from hierspec.core.windows import State
from hierspec.verifiers.acceptance import drawn_row

from .checking import Verdicts, combine_drafts, verdicts
from .tables import ModelRows, Rows, TableDistributions, normalise

UNLIMITED = 1 << 30  # a limit that no proposal reaches


@dataclass(slots=True)
class Branch:
    """Equal coroutines: their probability, one of them, and the answers that replay it."""

    probability: float
    calls: int
    answers: tuple[Any, ...]
    coroutine: Coroutine
    request: NodeRequest


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a finished coroutine: ``value`` is ``(Proposal or Verdict, states)``.

    ``calls`` counts its requests to the root's model (checks and single rows).
    """

    probability: float
    value: tuple[Any, States]
    calls: int = 0


class ExactInterpreter:
    """Enumerates a hierarchy of models with ``distribution(context) -> [V] float64`` and ``order``.

    Attributes:
        paths: branches followed so far, after merging.
    """

    def __init__(self, root: Verify, vocab_size: int) -> None:
        self.root = root
        self.vocab_size = vocab_size
        self.rows = Rows(vocab_size)
        self._models = ModelRows(self.rows)
        self.paths = 0
        self._max_orders = {node: max_order(node) for node in walk(root)}
        self._sufficient_limits = {node: sufficient_limit(node) for node in walk(root)}
        self._rounds: dict[Any, list[Outcome]] = {}
        self._proposals: dict[Any, list[Outcome]] = {}
        self._verdicts: dict[Any, Verdicts] = {}
        self._numbers: dict[float, float] = {}
        self._canonical_states: dict[States, States] = {}
        self._fingerprints: dict[Verdict, Any] = {}  # of those in ``_verdicts``

    # --- outcomes of nodes

    def round(self, context: tuple[int, ...], limit: int, states: States) -> list[Outcome]:
        """Return all outcomes of one target round after ``context``; values hold a Verdict."""
        limit = UNLIMITED if limit > sufficient_limit(self.root.below) else limit
        context, states = self._recent(self.root, context), self.canonical(states)
        key = (context, limit, states)
        if key not in self._rounds:
            self._rounds[key] = self._run(lambda: verified(self.root, context, limit, states))
        return self._rounds[key]

    def proposals(
        self, node: Node, context: tuple[int, ...], limit: int, states: States
    ) -> list[Outcome]:
        """Return all outcomes of ``node`` after ``context``; values hold a Proposal."""
        if limit <= 0:
            return [Outcome(1.0, (Proposal(), states))]
        limit = UNLIMITED if limit >= self._sufficient_limits[node] else limit
        context, states = self._recent(node, context), self.canonical(states)
        key = (node, context, limit, states)
        if key not in self._proposals:
            if isinstance(node, Draft):
                self._proposals[key] = self._leaf_proposals(node, context, limit, states)
            else:
                self._proposals[key] = self._run(lambda: propose(node, context, limit, states))
        return self._proposals[key]

    def _leaf_proposals(
        self, node: Draft, context: tuple[int, ...], limit: int, states: States
    ) -> list[Outcome]:
        stopped: list[tuple[float, Proposal]] = []
        growing = [(1.0, Proposal())]
        max_length = min(node.budget, limit)
        for length in range(1, max_length + 1):
            longer = []
            for probability, draft in growing:
                text = context + draft.tokens
                if self._models.declines(node, text):
                    stopped.append((probability, draft))
                    continue
                row = self._models.row_id(node, text)
                for token in np.flatnonzero(self.rows.rows[row]).tolist():
                    self.paths += 1
                    step = self._models.proposal(node, (token,), (row,), (row,), text)
                    path = (probability * float(self.rows.rows[row][token]), draft + step)
                    # A draft of the maximal length ends without reading its window.
                    stops = length < max_length and node.window.stops(
                        path[1].signals, states[node.index]
                    )
                    (stopped if stops else longer).append(path)
            growing = longer
        drafts = stopped + growing
        if node.num_drafts > 1:
            drafts = combine_drafts(node, drafts, self.rows)
            self.paths += len(drafts)
        return [Outcome(p, (draft, states)) for p, draft in drafts]

    def _run(self, start: Callable[[], Coroutine]) -> list[Outcome]:
        """Follow a coroutine along every answer, one request deeper at a time."""
        finished: dict[Any, Outcome] = {}
        first = start()
        layer = [Branch(1.0, 0, (), first, next(first))]
        while layer:
            self._prefetch([branch.request for branch in layer])
            next_layer: dict[Any, Branch] = {}
            for branch in layer:
                request = branch.request
                calls = branch.calls + (
                    isinstance(request, Check | Row) and request.node is self.root
                )
                answers = self._answers(request)
                self.paths += len(answers)
                for i, (answer_prob, answer) in enumerate(answers):
                    probability = branch.probability * answer_prob
                    is_last = i == len(answers) - 1
                    coroutine = branch.coroutine if is_last else replay(start, branch.answers)
                    try:
                        request = coroutine.send(answer)
                    except StopIteration as stop:
                        result, states = stop.value[0], self.canonical(stop.value[1])
                        result_key = (
                            self._verdict_fingerprint(answer)
                            if result is answer
                            else fingerprint(result)
                        )
                        key = (calls, result_key, states)
                        if key in finished:
                            probability += finished[key].probability
                        finished[key] = Outcome(probability, (result, states), calls)
                        continue
                    key = (calls, *suspended_state(coroutine))
                    if key in next_layer:
                        next_layer[key].probability += probability
                    else:
                        path = (*branch.answers, answer)
                        next_layer[key] = Branch(probability, calls, path, coroutine, request)
            layer = list(next_layer.values())
        return list(finished.values())

    # --- answers

    def _answers(self, request: NodeRequest) -> list[tuple[float, Any]]:
        match request:
            case Propose(node, pending, limit, states):
                outcomes = self.proposals(node, pending, limit, states)
                return [(outcome.probability, outcome.value) for outcome in outcomes]
            case Check():
                return self._verdicts[self._check_key(request)]
            case Row(node, pending):
                row_id = self._models.row_id(node, pending)
                return [(1.0, TableDistributions(self.rows, (row_id,)))]
            case Draw():
                row = normalise(drawn_row(request).dense(self.vocab_size)[0].double().numpy())
                return [(float(row[token]), token) for token in np.flatnonzero(row).tolist()]

    def _check_key(self, request: Check) -> Any:
        context = self._recent(request.node, request.pending)
        return (request.node, context, fingerprint(request.draft))

    def _prefetch(self, requests: list[NodeRequest]) -> None:
        """Verify all drafts that wait for a check, as one batch per node."""
        missing: dict[Any, dict[Any, Check]] = {}
        for request in requests:
            if isinstance(request, Check):
                key = self._check_key(request)
                if key not in self._verdicts:
                    missing.setdefault(request.node, {})[key] = request
        for node, checks in missing.items():
            results = verdicts(node, list(checks.values()), self._models)
            self._verdicts.update(zip(checks, results, strict=True))

    # --- keys of memoised outcomes

    def canonical(self, states: States) -> States:
        """Replace numbers in states that differ by rounding only by the first one met."""
        if not any(states):
            return states
        canonical = self._canonical_states.get(states)
        if canonical is None:
            numbers = self._numbers
            canonical = tuple(
                tuple(map(numbers.setdefault, round_numbers(state), state)) for state in states
            )
            self._canonical_states[states] = canonical
        return canonical

    def _verdict_fingerprint(self, verdict: Verdict) -> Any:
        if verdict not in self._fingerprints:
            self._fingerprints[verdict] = fingerprint(verdict)
        return self._fingerprints[verdict]

    def _recent(self, node: Node, context: tuple[int, ...]) -> tuple[int, ...]:
        return context[max(len(context) - self._max_orders[node], 0) :]


# --- when two contexts, or two limits, have the same future


def max_order(node: Node) -> int:
    """Return the largest Markov order of the models at and below ``node``."""
    return max(n.model.order for n in walk(node) if not isinstance(n, Concatenate))


def longest_proposal(node: Node | None) -> int:
    """Return the most tokens that ``node`` can hand up in one proposal."""
    if node is None:
        return 0
    if isinstance(node, Draft):
        return node.budget
    if isinstance(node, Concatenate):
        return node.repeat * sum(longest_proposal(part) for part in node.parts)
    if node.exact_length:
        return node.budget
    below = longest_proposal(node.below)
    return node.budget - 1 + (below + 1 if node.bonus else max(below, 1))


def sufficient_limit(node: Node | None) -> int:
    """Return a limit on tokens large enough that it never changes a proposal of ``node``."""
    if node is None:
        return 0
    if isinstance(node, Draft):
        return node.budget
    if isinstance(node, Concatenate):
        return node.repeat * sum(sufficient_limit(part) for part in node.parts)
    # The last round of a verifier starts from budget − 1 tokens.
    return node.budget + sufficient_limit(node.below)


# --- suspended coroutines as values: replayed from answers, and compared


def replay(start: Callable[[], Coroutine], answers: tuple[Any, ...]) -> Coroutine:
    """Start a fresh coroutine and send it these answers."""
    coroutine = start()
    next(coroutine)
    for answer in answers:
        coroutine.send(answer)
    return coroutine


def suspended_state(coroutine: Any) -> tuple[Any, ...]:
    """Return the position and local variables of a suspended coroutine, innermost frame last.

    Only coroutines that got equally many answers are compared: the position in a ``for`` loop is
    not among the local variables, but follows from that number.
    """
    state: list[Any] = []
    while coroutine is not None:
        frame = coroutine.gi_frame
        state += [frame.f_code, frame.f_lasti]
        state += [fingerprint(value) for value in frame.f_locals.values()]
        coroutine = coroutine.gi_yieldfrom
    return tuple(state)


def round_numbers(state: State) -> State:
    """Return a window's state rounded: numbers are equal that differ by their sums' order only."""
    return tuple(round(x, 11) for x in state)


def fingerprint(value: Any) -> Any:
    """Return a hashable stand-in: equal for values that no coroutine can tell apart."""
    if isinstance(value, Proposal):
        rows = fingerprint(value.distributions)
        alternatives = tuple(fingerprint(draft) for draft in value.alternatives)
        return (value.tokens, rows, value.owners, value.signals, alternatives)
    if isinstance(value, Verdict):
        return (value.num_accepted, *fingerprint(value.emitted))
    if isinstance(value, TableDistributions):
        return value.ids
    if isinstance(value, list):  # a local variable of a user's rule
        return tuple(fingerprint(item) for item in value)
    return value  # tuples of numbers by value; nodes, rules and the like by identity
