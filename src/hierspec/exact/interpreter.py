"""The exact interpreter: every random branch of the coroutines that the runtime runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from hierspec.core.nodes import Draft, Node, Verify, walk
from hierspec.core.proposals import Proposal, States, Verdict
from hierspec.core.requests import Check, Draw, Propose, Request, Row
from hierspec.core.round import Coroutine, propose, verified

from .bounds import UNLIMITED, max_order, sufficient_limit
from .checking import Verdicts, combine_drafts, verdicts
from .tables import ModelRows, Rows, TableDistributions, normalise


@dataclass(slots=True)
class Branch:
    """Coroutines in one state: their probability, and the answers that lead one there again."""

    probability: float
    calls: int
    answers: tuple[Any, ...]
    coroutine: Coroutine
    request: Request


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a finished coroutine: ``value`` is ``(Proposal or Verdict, states)``.

    ``calls`` counts the requests to the root's model on the way (its checks and single rows).
    """

    probability: float
    value: tuple[Any, States]
    calls: int = 0


class ExactInterpreter:
    """Enumerates a hierarchy whose models have ``law(context) -> [V] float64`` and ``order``.

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
        self._fingerprints: dict[Verdict, Any] = {}  # of answers, all kept by this interpreter

    # --- outcomes of nodes

    def round(self, context: tuple[int, ...], limit: int, states: States) -> list[Outcome]:
        """Return all outcomes of one target round after ``context``; values hold a Verdict."""
        limit = UNLIMITED if limit > sufficient_limit(self.root.below) else limit
        context, states = self._recent(self.root, context), self._canonical(states)
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
        context, states = self._recent(node, context), self._canonical(states)
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
        """Enumerate a leaf's drafts, token by token, until its window stops them."""
        done: list[tuple[float, Proposal]] = []
        growing = [(1.0, Proposal())]
        longest = min(node.budget, limit)
        for length in range(1, longest + 1):
            grown = []
            for probability, draft in growing:
                if self._models.declines(node, context + draft.tokens):
                    done.append((probability, draft))
                    continue
                row = self._models.law(node, context + draft.tokens)
                for token in np.flatnonzero(self.rows.rows[row]).tolist():
                    self.paths += 1
                    after = context + draft.tokens
                    step = self._models.tokens(node, (token,), (row,), (row,), after)
                    path = (probability * float(self.rows.rows[row][token]), draft + step)
                    # At its longest a draft ends, whatever its window says.
                    stops = length < longest and node.window.stops(
                        path[1].signals, states[node.index]
                    )
                    (done if stops else grown).append(path)
            growing = grown
        drafts = done + growing
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
            self._prefetch([path.request for path in layer])
            deeper: dict[Any, Branch] = {}
            for path in layer:
                is_call = isinstance(path.request, Check | Row) and path.request.node is self.root
                calls = path.calls + is_call
                possible = self._answers(path.request)
                self.paths += len(possible)
                for i, (chance, answer) in enumerate(possible):
                    probability = path.probability * chance
                    last = i == len(possible) - 1
                    coroutine = path.coroutine if last else replay(start, path.answers)
                    try:
                        request = coroutine.send(answer)
                    except StopIteration as stop:
                        value = (stop.value[0], self._canonical(stop.value[1]))
                        same = value[0] is answer
                        what = self._verdict_fingerprint(answer) if same else fingerprint(value[0])
                        key = (calls, what, value[1])
                        before = finished[key].probability if key in finished else 0.0
                        finished[key] = Outcome(before + probability, value, calls)
                        continue
                    key = (calls, *suspended_state(coroutine))
                    if key in deeper:
                        deeper[key].probability += probability
                    else:
                        answers = (*path.answers, answer)
                        deeper[key] = Branch(probability, calls, answers, coroutine, request)
            layer = list(deeper.values())
        return list(finished.values())

    # --- answers

    def _answers(self, request: Request) -> list[tuple[float, Any]]:
        """List every answer that a request may get, with its probability."""
        match request:
            case Propose(node, pending, limit, states):
                found = self.proposals(node, pending, limit, states)
                return [(outcome.probability, outcome.value) for outcome in found]
            case Check():
                return self._verdicts[self._check_key(request)]
            case Row(node, pending):
                return [(1.0, TableDistributions(self.rows, (self._models.law(node, pending),)))]
            case Draw(_, law):
                row = normalise(law.dense(self.vocab_size)[0].double().numpy())
                return [(float(row[token]), token) for token in np.flatnonzero(row).tolist()]

    def _check_key(self, request: Check) -> Any:
        context = self._recent(request.node, request.pending)
        return (request.node, context, fingerprint(request.draft))

    def _prefetch(self, requests: list[Request]) -> None:
        """Check all drafts that await a check, as one batch per node."""
        missing: dict[Any, dict[Any, Check]] = {}
        for request in requests:
            if isinstance(request, Check):
                key = self._check_key(request)
                if key not in self._verdicts:
                    missing.setdefault(request.node, {})[key] = request
        for node, checks in missing.items():
            found = verdicts(node, list(checks.values()), self._models)
            self._verdicts.update(zip(checks, found, strict=True))

    # --- keys of memoised outcomes

    def _canonical(self, states: States) -> States:
        """Replace numbers in states by equal ones that differ by rounding only."""
        if not any(states):
            return states
        canonical = self._canonical_states.get(states)
        if canonical is None:
            numbers = self._numbers
            canonical = tuple(tuple(numbers.setdefault(round(x, 11), x) for x in s) for s in states)
            self._canonical_states[states] = canonical
        return canonical

    def _verdict_fingerprint(self, verdict: Verdict) -> Any:
        found = self._fingerprints.get(verdict)
        if found is None:
            found = self._fingerprints[verdict] = fingerprint(verdict)
        return found

    def _recent(self, node: Node, context: tuple[int, ...]) -> tuple[int, ...]:
        return context[max(len(context) - self._max_orders[node], 0) :]


# --- suspended coroutines as values: replayed from answers, and compared


def replay(start: Callable[[], Coroutine], answers: tuple[Any, ...]) -> Coroutine:
    """Start a fresh coroutine and send it these answers."""
    coroutine = start()
    next(coroutine)
    for answer in answers:
        coroutine.send(answer)
    return coroutine


def suspended_state(coroutine: Any) -> tuple[Any, ...]:
    """Return where a suspended coroutine is and all that it remembers, innermost frame last.

    Only compared between coroutines that were given equally many answers: what a ``for`` loop
    has left is not among the local variables, but follows from that number.
    """
    out: list[Any] = []
    while coroutine is not None:
        frame = coroutine.gi_frame
        out.append(frame.f_code)
        out.append(frame.f_lasti)
        out += [fingerprint(value) for value in frame.f_locals.values()]
        coroutine = coroutine.gi_yieldfrom
    return tuple(out)


def fingerprint(value: Any) -> Any:
    """Return a hashable stand-in: equal for values that no coroutine can tell apart."""
    if isinstance(value, Proposal):
        more = tuple(fingerprint(draft) for draft in value.alternatives)
        return (value.tokens, fingerprint(value.distributions), value.owners, value.signals, more)
    if isinstance(value, Verdict):
        return (value.num_accepted, *fingerprint(value.emitted))
    if isinstance(value, TableDistributions):
        return value.ids
    if isinstance(value, list):  # a plug-in's local variable: what it holds now
        return tuple(fingerprint(item) for item in value)
    return value  # tuples of numbers by value; nodes, rules and the like by identity
