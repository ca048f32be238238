"""From laws to verdicts: the reference form of a rule, and the batched form the runtime calls.

Both spend the dice alike: n + 1 uniforms for a draft of n tokens, the first n in the scan (u_k at
length k), the last for the token that follows. A verdict therefore depends neither on who shares
the batch nor on the road taken through it. Greedy decoding spends none.

Three roads lead to the same verdict: one-hot laws are compared as integers; rules with a
shortcut (:meth:`Verifier.decide`) read the drafted tokens' probabilities and only the rows that
matter; every other rule gets a padded :class:`Batch`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ..dice import Dice
from ..laws import DenseLaws, Laws, OneHotLaws, draw
from ..types import Proposal, Verdict
from .base import Batch, Verifier, scan
from .reading import chosen_probabilities, residual, row_at, stacked

if TYPE_CHECKING:
    from ..hierarchy import Verify


@dataclass(frozen=True, slots=True, eq=False)
class _Job:
    """One draft to verify: n tokens, n + 1 laws of the verifier, and the dice of its sequence."""

    node: Verify
    draft: Proposal
    p: Laws
    dice: Dice
    scores: torch.Tensor | None


def verify(
    rule: Verifier,
    draft: Proposal,
    p: Laws,
    dice: Dice,
    scores: torch.Tensor | None = None,
    bonus: bool = True,
    index: int = -1,
) -> Verdict:
    """The reference form of a rule, and its plug-in contract: one draft, no shortcuts.

    Args:
        rule: how to verify; its follow-up requests, if any, are the caller's business.
        draft: n tokens and their laws.
        p: n + 1 laws of the verifier.
        dice: n + 1 uniforms are taken.
        scores: [n+1, V], for rules that read them.
        bonus: whether a fully kept draft (n ≥ 1) earns one more token.
        index: of the verifying node, recorded as owner of what is emitted.
    """
    from ..hierarchy import Verify

    node = Verify(index, rule.name, None, 1, rule, None, bonus=bonus)
    return _padded([_Job(node, draft, p, dice, scores)])[0]


def verify_batch(
    node: Verify,
    drafts: Sequence[Proposal],
    p: Sequence[Laws],
    dice: Sequence[Dice],
    scores: Sequence[torch.Tensor] | None = None,
) -> list[Verdict]:
    """Verdicts of many drafts at one node, in order.

    Args:
        node: who verifies; its rule, index and bonus setting are read.
        drafts: B proposals of n_b tokens each; lengths may differ, and be 0.
        p: n_b + 1 laws of the verifier for each; the last one follows the whole draft.
        dice: of the drafts' sequences. A draft takes n_b + 1 uniforms, or none where p is one-hot.
        scores: [n_b+1, V] untempered scores for each; for rules that read them.

    Returns:
        B verdicts. Signals are left NaN: they are read off scores that a rule need not see.
    """
    verdicts: list[Verdict | None] = [None] * len(drafts)
    rest: list[int] = []
    jobs = [
        _Job(node, draft, law, die, scores[i] if scores is not None else None)
        for i, (draft, law, die) in enumerate(zip(drafts, p, dice, strict=True))
    ]
    road = _short if _has_shortcut(type(node.rule)) else _padded
    for i, job in enumerate(jobs):
        if isinstance(job.p, OneHotLaws) and _comparable(node.rule, job.draft):
            verdicts[i] = _greedy(job)
        else:
            rest.append(i)
    if rest:
        for i, verdict in zip(rest, road([jobs[i] for i in rest]), strict=True):
            verdicts[i] = verdict
    return verdicts  # type: ignore[return-value]


@functools.cache
def _has_shortcut(rule: type[Verifier]) -> bool:
    """Whether ``decide`` speaks for the rule: not where a subclass changed what it stands for."""
    for cls in rule.__mro__[: rule.__mro__.index(Verifier)]:
        if "decide" in vars(cls):
            return True
        if vars(cls).keys() & {"acceptance", "correction", "reported", "order"}:
            return False
    return False


def _comparable(rule: Verifier, draft: Proposal) -> bool:
    """Whether integers decide, given a one-hot p: q matters only to laws that a mixture reports."""
    return not rule.reads_scores or isinstance(draft.laws, OneHotLaws)


def _emit(job: _Job, tau: int, token: int | None, laws: Laws) -> Verdict:
    """The verdict: τ kept tokens, then ``token``; ``laws`` has at least as many rows."""
    return emission(job.node.index, job.draft, tau, token, laws)


def emission(index: int, draft: Proposal, tau: int, token: int | None, laws: Laws) -> Verdict:
    """The same, at the node of that index."""
    tokens, origins = draft.tokens[:tau], draft.origins[:tau]
    if token is not None:
        tokens, origins = (*tokens, token), (*origins, index)
    n = len(tokens)
    rows = laws if n == len(laws) else laws.rows(0, n)
    return Verdict(tau, Proposal(tokens, rows, (index,) * n, origins, (math.nan,) * n))


def _drops_bonus(job: _Job, tau: int) -> bool:
    """Decided by count alone: the whole draft was kept, and there was one."""
    return not job.node.bonus and tau == len(job.draft) > 0


def _greedy(job: _Job) -> Verdict:
    assert isinstance(job.p, OneHotLaws)
    choices = job.p.ids
    tau = job.node.rule.greedy(job.draft.tokens, choices, job.scores)
    token = None if _drops_bonus(job, tau) else choices[tau]
    emitted = job.draft.tokens[:tau] + (() if token is None else (token,))
    return _emit(job, tau, token, OneHotLaws(emitted))


# --- the short road: rules that decide from the drafted tokens' probabilities


class _Residuals:
    """Rows max(w·p − q, 0) of one draft. The last is kept: a test that passes has summed the very
    row that the next token is drawn from.
    """

    __slots__ = ("key", "last", "p", "q")

    def __init__(self, p: Laws, q: Laws) -> None:
        self.p, self.q = p, q
        self.key: tuple[int, float] | None = None
        self.last: torch.Tensor | None = None

    def row(self, k: int, w: float) -> torch.Tensor:
        if self.last is None or self.key != (k, w):
            self.key, self.last = (k, w), residual(self.p, self.q, k, w)
        return self.last

    def excess(self, k: int, w: float) -> float:
        return float(self.row(k, w).sum(dtype=torch.float64))


def _short(jobs: list[_Job]) -> list[Verdict]:
    taus: list[int] = []
    rows: list[torch.Tensor] = []
    uniforms: list[float] = []
    to_draw: list[int] = []
    chosen = chosen_probabilities([(job.draft.tokens, job.p, job.draft.laws) for job in jobs])
    for i, (job, (p_x, q_x)) in enumerate(zip(jobs, chosen, strict=True)):
        p, q, n = job.p, job.draft.laws, len(job.draft)
        dice = job.dice.take(n + 1).tolist()
        residuals = _Residuals(p, q)
        decision = job.node.rule.decide(p_x, q_x, dice, residuals.excess)
        assert decision is not None
        tau, w = decision
        taus.append(tau)
        if not _drops_bonus(job, tau):
            rows.append(row_at(p, tau) if tau == n else residuals.row(tau, w))
            uniforms.append(dice[n])
            to_draw.append(i)

    drawn = dict(
        zip(
            to_draw,
            draw(stacked(rows), uniforms, lambda j: row_at(jobs[to_draw[j]].p, taus[to_draw[j]])),
            strict=True,
        )
        if to_draw
        else ()
    )
    return [
        _emit(job, tau, drawn.get(i), job.p)
        for i, (job, tau) in enumerate(zip(jobs, taus, strict=True))
    ]


# --- the general road: a padded batch through acceptance, scan and correction


def _side_by_side(jobs: Sequence[_Job]) -> Batch:
    """Drafts of one rule side by side; what the padding holds never reaches a result."""
    lengths = [len(job.draft) for job in jobs]
    n = max(lengths)
    width = max(max(job.p.width, job.draft.laws.width) for job in jobs)
    first = jobs[0].p.dense(width)
    if len(jobs) == 1:  # nothing to pad, so nothing to copy
        draft, scores = jobs[0].draft, jobs[0].scores
        return Batch(
            first.unsqueeze(0),
            draft.laws.dense(width).to(first).unsqueeze(0),
            torch.tensor([draft.tokens], dtype=torch.long, device=first.device),
            torch.tensor([n], device=first.device),
            # One-hot laws are written out on the CPU, wherever their scores are.
            None if scores is None else _widened(scores, width).to(first.device).unsqueeze(0),
        )
    p = first.new_zeros(len(jobs), n + 1, width)
    q = first.new_zeros(len(jobs), n, width)
    tokens = torch.zeros(len(jobs), n, dtype=torch.long, device=p.device)
    scores = None
    if jobs[0].node.rule.reads_scores and jobs[0].scores is not None:
        scores = p.new_zeros(len(jobs), n + 1, width)
    for b, (job, length) in enumerate(zip(jobs, lengths, strict=True)):
        p[b, : length + 1] = job.p.dense(width)
        if length:
            q[b, :length] = job.draft.laws.dense(width).to(q)
            tokens[b, :length] = torch.tensor(job.draft.tokens)
        if scores is not None:
            assert job.scores is not None, "scores for all drafts of a batch, or for none"
            scores[b, : length + 1] = _widened(job.scores, width)
    return Batch(p, q, tokens, torch.tensor(lengths, device=p.device), scores)


def _widened(scores: torch.Tensor, width: int) -> torch.Tensor:
    """Scores of a wider vocabulary: what the model cannot say scores −inf."""
    missing = width - scores.shape[-1]
    return torch.nn.functional.pad(scores, (0, missing), value=-torch.inf) if missing else scores


def _padded(jobs: list[_Job]) -> list[Verdict]:
    rule = jobs[0].node.rule
    batch = _side_by_side(jobs)
    accepted = rule.acceptance(batch)
    n = accepted.h.shape[1]
    dice = [job.dice.take(len(job.draft) + 1).tolist() for job in jobs]
    scans = [row[:-1] + [0.0] * (n + 1 - len(row)) for row in dice]
    uniforms = torch.tensor(scans, dtype=torch.float64, device=batch.p.device)
    tau = scan(rule.order, accepted.h, uniforms.reshape(len(jobs), n))
    taus = tau.tolist()
    drawn = draw(rule.correction(batch, accepted, tau), [row[-1] for row in dice])
    own = type(rule).reported is Verifier.reported
    reported = None if own else rule.reported(batch)
    verdicts = []
    for b, (job, t) in enumerate(zip(jobs, taus, strict=True)):
        token = None if _drops_bonus(job, t) else drawn[b]
        laws = job.p if reported is None else DenseLaws(reported[b])
        verdicts.append(_emit(job, t, token, laws))
    return verdicts
