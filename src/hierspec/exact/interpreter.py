"""Every random branch of a hierarchy, followed along the coroutines that the runtime runs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ..hierarchy import Concatenate, Coroutine, Draft, Node, Verify, propose, verified, walk
from ..types import Check, Draw, Proposal, Propose, Request, Row, States, Verdict
from ..verifiers.base import Batch, Verifier, law_of_tau
from ..verifiers.several import alternatives, outcomes
from .rows import Rows, TableLaws, normalised, row_of
from .several import several
from .states import fingerprint, replay, state_of

UNLIMITED = 1 << 30  # a limit that no proposal reaches


@dataclass(slots=True)
class Path:
    """Coroutines in one state, with their probability, and how to bring one there again."""

    probability: float
    calls: int
    answers: tuple[Any, ...]
    coroutine: Coroutine
    request: Request


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a finished coroutine returned: ``value`` is ``(Proposal or Verdict, states)``.

    ``calls`` counts the requests to the root's model on the way (its checks and single rows).
    """

    probability: float
    value: tuple[Any, States]
    calls: int = 0


class ExactInterpreter:
    """Enumerates. Every node's ``model`` has ``law(context) -> [V] float64`` and ``order``.

    Attributes:
        paths: branches followed so far, after merging.
    """

    def __init__(self, root: Verify, vocab_size: int) -> None:
        self.root = root
        self.vocab_size = vocab_size
        self.rows = Rows(vocab_size)
        self.paths = 0
        self._reach = {node: reach(node) for node in walk(root)}
        self._ample = {node: ample(node) for node in walk(root)}
        self._rounds: dict[Any, list[Outcome]] = {}
        self._proposals: dict[Any, list[Outcome]] = {}
        self._verdicts: dict[Any, list[tuple[float, Verdict]]] = {}
        self._laws: dict[tuple[Any, tuple[int, ...]], int] = {}
        self._numbers: dict[float, float] = {}

    # --- what a node may do

    def round(self, context: tuple[int, ...], limit: int, states: States) -> list[Outcome]:
        """All outcomes of one round of the target after ``context``; values hold a Verdict."""
        limit = UNLIMITED if limit > ample(self.root.below) else limit
        context, states = self._recent(self.root, context), self._settled(states)
        key = (context, limit, states)
        if key not in self._rounds:
            self._rounds[key] = self._run(lambda: verified(self.root, context, limit, states))
        return self._rounds[key]

    def proposals(
        self, node: Node, context: tuple[int, ...], limit: int, states: States
    ) -> list[Outcome]:
        """All outcomes of ``node`` after ``context``; values hold a Proposal."""
        if limit <= 0:
            return [Outcome(1.0, (Proposal(), states))]
        limit = UNLIMITED if limit >= self._ample[node] else limit
        context, states = self._recent(node, context), self._settled(states)
        key = (node, context, limit, states)
        if key not in self._proposals:
            if isinstance(node, Draft):
                self._proposals[key] = self._drafts(node, context, limit, states)
            else:
                self._proposals[key] = self._run(lambda: propose(node, context, limit, states))
        return self._proposals[key]

    def _drafts(
        self, node: Draft, context: tuple[int, ...], limit: int, states: States
    ) -> list[Outcome]:
        """A leaf: token by token, until its window stops it."""
        done: list[tuple[float, Proposal]] = []
        growing = [(1.0, Proposal())]
        for _ in range(min(node.budget, limit)):
            grown = []
            for probability, draft in growing:
                row = self._law(node, context + draft.tokens)
                for token in np.flatnonzero(self.rows.rows[row]).tolist():
                    self.paths += 1
                    step = self._tokens(node, (token,), (row,), (row,))
                    path = (probability * float(self.rows.rows[row][token]), draft + step)
                    stops = node.window.stops(step.signals, states[node.index])
                    (done if stops else grown).append(path)
            growing = grown
        drafts = done + growing
        if node.num_drafts > 1:
            drafts = several(node, drafts, self.rows)
            self.paths += len(drafts)
        return [Outcome(p, (draft, states)) for p, draft in drafts]

    def _run(self, start: Callable[[], Coroutine]) -> list[Outcome]:
        """Follow a coroutine along every answer, one request deeper at a time."""
        finished: dict[Any, Outcome] = {}
        first = start()
        layer = [Path(1.0, 0, (), first, next(first))]
        while layer:
            self._prefetch([path.request for path in layer])
            deeper: dict[Any, Path] = {}
            for path in layer:
                is_call = isinstance(path.request, Check | Row) and path.request.node is self.root
                calls = path.calls + is_call
                branches = self._branches(path.request)
                self.paths += len(branches)
                for i, (chance, answer) in enumerate(branches):
                    probability = path.probability * chance
                    last = i == len(branches) - 1
                    coroutine = path.coroutine if last else replay(start, path.answers)
                    try:
                        request = coroutine.send(answer)
                    except StopIteration as stop:
                        value = (stop.value[0], self._settled(stop.value[1]))
                        key = (calls, fingerprint(value[0]), value[1])
                        before = finished[key].probability if key in finished else 0.0
                        finished[key] = Outcome(before + probability, value, calls)
                        continue
                    key = (calls, *state_of(coroutine))
                    if key in deeper:
                        deeper[key].probability += probability
                    else:
                        answers = (*path.answers, answer)
                        deeper[key] = Path(probability, calls, answers, coroutine, request)
            layer = list(deeper.values())
        return list(finished.values())

    # --- answers

    def _branches(self, request: Request) -> list[tuple[float, Any]]:
        """Every answer a request may get, with its probability."""
        match request:
            case Propose(node, pending, limit, states):
                return [
                    (o.probability, o.value) for o in self.proposals(node, pending, limit, states)
                ]
            case Check():
                return self._verdicts[self._check_key(request)]
            case Row(node, pending):
                return [(1.0, TableLaws(self.rows, (self._law(node, pending),)))]
            case Draw(_, law):
                row = normalised(law.dense(self.vocab_size)[0].double().numpy())
                return [(float(row[token]), token) for token in np.flatnonzero(row).tolist()]

    def _check_key(self, request: Check) -> Any:
        context = self._recent(request.node, request.pending)
        return (request.node, context, fingerprint(request.draft))

    def _prefetch(self, requests: list[Request]) -> None:
        """Check all drafts that await it, as one batch per node."""
        missing: dict[Any, dict[Any, Check]] = {}
        for request in requests:
            if isinstance(request, Check):
                key = self._check_key(request)
                if key not in self._verdicts:
                    missing.setdefault(request.node, {})[key] = request
        for node, checks in missing.items():
            for key, check in checks.items():
                if check.draft.others:
                    self._verdicts[key] = self._check_several(node, check)
            single = {key: check for key, check in checks.items() if not check.draft.others}
            if single:
                verdicts = self._check(node, list(single.values()))
                self._verdicts.update(zip(single, verdicts, strict=True))

    def _check_several(self, node: Verify, check: Check) -> list[tuple[float, Verdict]]:
        drafts = alternatives(check.draft)
        ids = [
            tuple(self._law(node, check.pending + d.tokens[:i]) for i in range(len(d) + 1))
            for d in drafts
        ]
        p: Any = [TableLaws(self.rows, rows) for rows in ids]
        out = []
        for chance, stop in outcomes(node.rule, drafts, p):
            own, tau = ids[stop.draft], stop.num_accepted
            draft, law = drafts[stop.draft], normalised(stop.law.numpy())
            nexts: list[tuple[float, tuple[int, ...]]] = [(1.0, ())]
            if node.bonus or not 0 < len(draft) == tau:
                nexts = [(float(law[y]), (y,)) for y in np.flatnonzero(law).tolist()]
            for share, extra in nexts:
                rows = own[: tau + len(extra)]
                emitted = self._tokens(node, draft.tokens[:tau] + extra, rows, rows)
                out.append((chance * share, Verdict(tau, emitted)))
        return out

    def _check(self, node: Verify, checks: list[Check]) -> list[list[tuple[float, Verdict]]]:
        rule, V = node.rule, self.vocab_size
        lengths = [len(check.draft) for check in checks]
        n = max(lengths)
        p_ids = np.zeros((len(checks), n + 1), dtype=int)
        q_ids = np.zeros((len(checks), n), dtype=int)
        tokens = np.zeros((len(checks), n), dtype=int)
        for b, (check, length) in enumerate(zip(checks, lengths, strict=True)):
            draft = check.draft
            for i in range(length + 1):
                p_ids[b, i] = self._law(node, check.pending + draft.tokens[:i])
            if length:
                q_ids[b, :length] = draft.laws.ids  # type: ignore[union-attr]
                tokens[b, :length] = draft.tokens
        table = torch.from_numpy(self.rows.matrix())
        batch = Batch(
            table[torch.from_numpy(p_ids)],
            table[torch.from_numpy(q_ids.ravel())].reshape(len(checks), n, V),
            torch.from_numpy(tokens),
            torch.tensor(lengths),
        )
        accepted = rule.acceptance(batch)
        stops = law_of_tau(rule.order, accepted.h).numpy()
        followers = np.stack(
            [
                normalised(rule.correction(batch, accepted, batch.lengths.clamp(max=t)).numpy())
                for t in range(n + 1)
            ],
            axis=1,
        )
        reported = p_ids
        if type(rule).reported is not Verifier.reported:
            given = rule.reported(batch).numpy()
            reported = np.array([[self.rows.intern(row) for row in rows] for rows in given])
        return [
            self._verdicts_of(node, check, stops[b], followers[b], p_ids[b], reported[b])
            for b, check in enumerate(checks)
        ]

    def _verdicts_of(
        self,
        node: Verify,
        check: Check,
        stops: np.ndarray,
        followers: np.ndarray,
        own: np.ndarray,
        reported: np.ndarray,
    ) -> list[tuple[float, Verdict]]:
        """Every (τ, next token) of one draft."""
        out = []
        own_ids, ids = own.tolist(), reported.tolist()
        for tau in range(len(check.draft) + 1):
            if stops[tau] <= 0.0:
                continue
            kept = check.draft.tokens[:tau]
            nexts: list[tuple[float, tuple[int, ...]]] = [(1.0, ())]
            if node.bonus or tau < len(check.draft) or tau == 0:
                row = followers[tau]
                nexts = [(float(row[y]), (y,)) for y in np.flatnonzero(row).tolist()]
            for chance, extra in nexts:
                m = tau + len(extra)
                emitted = self._tokens(node, kept + extra, tuple(ids[:m]), tuple(own_ids[:m]))
                out.append((float(stops[tau]) * chance, Verdict(tau, emitted)))
        return out

    # --- rows

    def _tokens(
        self, node: Node, tokens: tuple[int, ...], ids: tuple[int, ...], own: tuple[int, ...]
    ) -> Proposal:
        """Tokens of ``node`` with laws ``ids``; ``own`` are its model's rows, for its window.

        Who wrote a token first does not bear on any law, so origins are left equal to owners.
        """
        whose = (node.index,) * len(tokens)
        match node.window.signal:  # type: ignore[union-attr]
            case None:
                signals = (math.nan,) * len(tokens)
            case "entropy":
                signals = tuple(self.rows.entropies[i] for i in own)
            case "confidence":
                rows = self.rows.rows
                signals = tuple(float(rows[i][x]) for i, x in zip(own, tokens, strict=True))
        return Proposal(tokens, TableLaws(self.rows, ids), whose, whose, signals)  # type: ignore[arg-type]

    def _law(self, node: Node, context: tuple[int, ...]) -> int:
        model: Any = node.model  # type: ignore[union-attr]
        context = context[max(len(context) - model.order, 0) :]
        key = (model, context)
        if key not in self._laws:
            self._laws[key] = self.rows.intern(row_of(model, context))
        return self._laws[key]

    def _settled(self, states: States) -> States:
        """States in which sums that differ by the order of their terms only are one number."""
        if not any(states):
            return states
        numbers = self._numbers
        return tuple(tuple(numbers.setdefault(round(x, 11), x) for x in s) for s in states)

    def _recent(self, node: Node, context: tuple[int, ...]) -> tuple[int, ...]:
        return context[max(len(context) - self._reach[node], 0) :]


def reach(node: Node) -> int:
    """How many of the last tokens can matter to ``node`` and all below it."""
    return max(n.model.order for n in walk(node) if not isinstance(n, Concatenate))


def longest(node: Node | None) -> int:
    """The most tokens ``node`` can hand up in one proposal."""
    if node is None:
        return 0
    if isinstance(node, Draft):
        return node.budget
    if isinstance(node, Concatenate):
        return node.repeat * sum(longest(part) for part in node.parts)
    if node.exact_length:
        return node.budget
    below = longest(node.below)
    return node.budget - 1 + (below + 1 if node.bonus else max(below, 1))


def ample(node: Node | None) -> int:
    """A limit from which on ``node`` and all below it act as if there were none."""
    if node is None:
        return 0
    if isinstance(node, Draft):
        return node.budget
    if isinstance(node, Concatenate):
        return node.repeat * sum(ample(part) for part in node.parts)
    return node.budget + ample(node.below)  # its last round starts from budget − 1 tokens
