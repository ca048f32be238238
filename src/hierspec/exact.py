"""The exact interpreter: every random branch of a hierarchy, enumerated, in float64.

It drives the very coroutines that the runtime drives (:func:`hierarchy.propose`,
:func:`hierarchy.verified`), over tabular models, and adds up probabilities where the runtime
throws dice. What comes out is the output's law itself, not an estimate: this is how losslessness
is proved, for every rule, window and tree that the engine can run.

Three things keep a four-level stack within seconds. Models of order o look at the last o tokens,
so a child's outcomes are memoised by (node, last tokens, limit, window states). A coroutine
cannot be cloned, so it is replayed from its recorded answers; but two coroutines that stand at
the same line with equal local variables have the same future, so their probabilities are added
and one of them goes on. And all drafts that await a check at one time are checked as one batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from .hierarchy import Concatenate, Coroutine, Draft, Node, Verify, propose, verified, walk
from .types import Check, Draw, Proposal, Propose, Request, Row, States, Verdict
from .verifiers.base import Batch, Verifier, law_of_tau

UNLIMITED = 1 << 30  # a limit that no proposal reaches


class Rows:
    """Interned laws: equal rows have one id, so that outcomes compare by integers."""

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self.rows: list[np.ndarray] = []
        self.entropies: list[float] = []
        self._ids: dict[bytes, int] = {}
        self._matrix = np.zeros((0, vocab_size))

    def intern(self, row: np.ndarray) -> int:
        """The id of a law [V] float64."""
        key = row.tobytes()
        if key not in self._ids:
            self._ids[key] = len(self.rows)
            self.rows.append(row)
            mass = row[row > 0.0]
            self.entropies.append(float(-(mass * np.log(mass)).sum()))
        return self._ids[key]

    def matrix(self) -> np.ndarray:
        """All rows, [number of ids, V]."""
        if len(self._matrix) < len(self.rows):
            self._matrix = np.stack(self.rows)
        return self._matrix


@dataclass(frozen=True, slots=True)
class TableLaws:
    """Rows of a proposal, by id."""

    store: Rows
    ids: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def width(self) -> int:
        return self.store.vocab_size

    @staticmethod
    def merged(parts: Iterable[TableLaws]) -> TableLaws:
        parts = list(parts)
        return TableLaws(parts[0].store, tuple(i for part in parts for i in part.ids))

    def rows(self, start: int, stop: int) -> TableLaws:
        return TableLaws(self.store, self.ids[start:stop])

    def dense(self, vocab_size: int) -> torch.Tensor:
        return torch.from_numpy(self.store.matrix()[list(self.ids)])

    def prob(self, row: int, token: int) -> float:
        return float(self.store.rows[self.ids[row]][token])


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
        self._longest = {node: longest(node) for node in walk(root)}
        self._rounds: dict[Any, list[Outcome]] = {}
        self._proposals: dict[Any, list[Outcome]] = {}
        self._verdicts: dict[Any, list[tuple[float, Verdict]]] = {}
        self._laws: dict[tuple[Any, tuple[int, ...]], int] = {}
        self._numbers: dict[float, float] = {}

    # --- what a node may do

    def round(self, context: tuple[int, ...], limit: int, states: States) -> list[Outcome]:
        """All outcomes of one round of the target after ``context``; values hold a Verdict."""
        limit = UNLIMITED if limit > longest(self.root.below) else limit
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
        limit = UNLIMITED if limit >= self._longest[node] else limit
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
        return [Outcome(p, (draft, states)) for p, draft in done + growing]

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
        missing: dict[Verify, dict[Any, Check]] = {}
        for request in requests:
            if isinstance(request, Check):
                key = self._check_key(request)
                if key not in self._verdicts:
                    missing.setdefault(request.node, {})[key] = request
        for node, checks in missing.items():
            verdicts = self._check(node, list(checks.values()))
            self._verdicts.update(zip(checks, verdicts, strict=True))

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
            self._laws[key] = self.rows.intern(_row(model, context))
        return self._laws[key]

    def _settled(self, states: States) -> States:
        """States in which sums that differ by the order of their terms only are one number."""
        if not any(states):
            return states
        numbers = self._numbers
        return tuple(tuple(numbers.setdefault(round(x, 11), x) for x in s) for s in states)

    def _recent(self, node: Node, context: tuple[int, ...]) -> tuple[int, ...]:
        return context[max(len(context) - self._reach[node], 0) :]


def output_law(
    interpreter: ExactInterpreter, states: States, horizon: int, cut_at_horizon: bool = False
) -> np.ndarray:
    """The law of the first ``horizon`` tokens, rounds repeated as needed → [V, …, V] float64.

    Args:
        states: of the windows at the start (:func:`hierarchy.initial_states`).
        cut_at_horizon: limit every round to the tokens still wanted, as a generation of
            ``horizon`` new tokens does, instead of letting it run over the end.
    """
    V, H = interpreter.vocab_size, horizon
    reached = reach(interpreter.root)
    out = np.zeros(V**H)
    # Per length and window states: the probability that some round ends with exactly this text.
    ended: list[dict[States, np.ndarray]] = [{} for _ in range(H)]
    ended[0][states] = np.ones(1)
    for length in range(H):
        limit = H - length if cut_at_horizon else UNLIMITED
        width = V ** min(length, reached)  # contexts that can be told apart
        for before, mass in ended[length].items():
            for c in range(width):
                column = mass.reshape(-1, width)[:, c]
                if not column.any():
                    continue
                context = _digits(c, min(length, reached), V)
                for (m, after), step in _by_length(interpreter, context, limit, before).items():
                    if m == 0:
                        raise ValueError("a round of the target emitted nothing")
                    room = min(m, H - length)
                    step = step.reshape(V**room, -1).sum(-1)
                    if length + m < H:
                        into = ended[length + m].setdefault(after, np.zeros(V ** (length + m)))
                    else:
                        into = out
                    into.reshape(-1, width, V**room)[:, c] += np.outer(column, step)
        ended[length].clear()
    return out.reshape((V,) * H)


def _by_length(
    interpreter: ExactInterpreter, context: tuple[int, ...], limit: int, states: States
) -> dict[tuple[int, States], np.ndarray]:
    """One round's output: per number of tokens and states afterwards, their law [V^m]."""
    V = interpreter.vocab_size
    out: dict[tuple[int, States], np.ndarray] = {}
    for outcome in interpreter.round(context, limit, states):
        verdict, after = outcome.value
        tokens = verdict.emitted.tokens
        law = out.setdefault((len(tokens), after), np.zeros(V ** len(tokens)))
        law[_number(tokens, V)] += outcome.probability
    return out


def model_law(model: Any, horizon: int) -> np.ndarray:
    """The law of a model's own first ``horizon`` tokens → [V, …, V] float64."""
    V = model.vocab_size
    out = np.ones(1)
    for length in range(horizon):
        known = min(length, model.order)
        rows = np.stack([_row(model, _digits(c, known, V)) for c in range(V**known)])
        out = (out.reshape(-1, V**known, 1) * rows).ravel()
    return out.reshape((V,) * horizon)


def _row(model: Any, context: tuple[int, ...]) -> np.ndarray:
    """A model's law [V], rid of what rounding its table left."""
    return normalised(np.ascontiguousarray(model.law(context), dtype=np.float64))


def _digits(number: int, length: int, base: int) -> tuple[int, ...]:
    return tuple(number // base ** (length - 1 - i) % base for i in range(length))


def _number(digits: tuple[int, ...], base: int) -> int:
    out = 0
    for digit in digits:
        out = out * base + digit
    return out


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


def normalised(rows: np.ndarray) -> np.ndarray:
    """Rows [..., V] scaled to sum to 1."""
    return rows / rows.sum(-1, keepdims=True)


def replay(start: Callable[[], Coroutine], answers: tuple[Any, ...]) -> Coroutine:
    """A fresh coroutine, brought to where these answers lead."""
    coroutine = start()
    next(coroutine)
    for answer in answers:
        coroutine.send(answer)
    return coroutine


def state_of(coroutine: Coroutine | None) -> tuple[Any, ...]:
    """Where a suspended coroutine stands and all that it remembers, down to the innermost.

    Only compared between coroutines that were given equally many answers: what a ``for`` loop
    has left is not among the local variables, but follows from that number.
    """
    out: list[Any] = []
    while coroutine is not None:
        frame = coroutine.gi_frame
        out.append(frame.f_code)
        out.append(frame.f_lasti)
        out += [fingerprint(value) for value in frame.f_locals.values()]
        coroutine = coroutine.gi_yieldfrom  # type: ignore[assignment]
    return tuple(out)


def fingerprint(value: Any) -> Any:
    """A hashable stand-in: equal for values that no coroutine can tell apart."""
    if isinstance(value, Proposal):
        return (value.tokens, fingerprint(value.laws), value.owners, value.signals)
    if isinstance(value, Verdict):
        return (value.num_accepted, *fingerprint(value.emitted))
    if isinstance(value, TableLaws):
        return value.ids
    if isinstance(value, list):  # a plug-in's local variable: what it holds now
        return tuple(fingerprint(item) for item in value)
    return value  # tuples of numbers by value; nodes, rules and the like by identity
