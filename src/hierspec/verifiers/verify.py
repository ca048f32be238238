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
from ..laws import DenseLaws, Laws, MixedLaws, OneHotLaws, draw
from ..types import Proposal, Verdict
from .base import Batch, Verifier, scan

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
            return vars(cls)["decide"] is not None
        if vars(cls).keys() & {"acceptance", "correction", "reported", "order"}:
            return False
    return False


def _comparable(rule: Verifier, draft: Proposal) -> bool:
    """Whether integers decide, given a one-hot p: q matters only to laws that a mixture reports."""
    return not rule.reads_scores or isinstance(draft.laws, OneHotLaws)


def _emit(job: _Job, tau: int, token: int | None, laws: Laws) -> Verdict:
    """The verdict: τ kept tokens, then ``token``; ``laws`` has at least as many rows."""
    draft, index = job.draft, job.node.index
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


def _short(jobs: list[_Job]) -> list[Verdict]:
    taus: list[int] = []
    rows: list[torch.Tensor] = []
    uniforms: list[float] = []
    to_draw: list[int] = []
    for i, (job, (p_x, q_x)) in enumerate(zip(jobs, _chosen(jobs), strict=True)):
        p, q, n = job.p, job.draft.laws, len(job.draft)
        dice = job.dice.take(n + 1).tolist()

        def excess(k: int, w: float, p: Laws = p, q: Laws = q) -> float:
            return float(_residual(p, q, k, w).sum(dtype=torch.float64))

        decision = job.node.rule.decide(p_x, q_x, dice, excess)
        assert decision is not None
        tau, w = decision
        taus.append(tau)
        if not _drops_bonus(job, tau):
            rows.append(_row(p, tau) if tau == n else _residual(p, q, tau, w))
            uniforms.append(dice[n])
            to_draw.append(i)

    drawn = dict(
        zip(
            to_draw,
            draw(_stacked(rows), uniforms, lambda j: _row(jobs[to_draw[j]].p, taus[to_draw[j]])),
            strict=True,
        )
        if to_draw
        else ()
    )
    return [
        _emit(job, tau, drawn.get(i), job.p)
        for i, (job, tau) in enumerate(zip(jobs, taus, strict=True))
    ]


def _chosen(jobs: list[_Job]) -> list[tuple[list[float], list[float]]]:
    """(p_i(x_i), q_i(x_i)) of every draft, read off the device at once."""
    gathered: list[torch.Tensor] = []
    plan: list[list[list[float] | int]] = []  # per law: numbers known already, or how many to read
    for job in jobs:
        tokens = job.draft.tokens
        for laws in (job.p, job.draft.laws):
            pieces: list[list[float] | int] = []
            start = 0
            for part in laws.parts if isinstance(laws, MixedLaws) else (laws,):
                mine = tokens[start : start + len(part)]
                start += len(mine)
                if not mine:
                    continue
                if isinstance(part, DenseLaws) and max(mine) < part.width:
                    at = torch.tensor(mine, device=part.probs.device).unsqueeze(-1)
                    gathered.append(part.probs.gather(-1, at))
                    pieces.append(len(mine))
                else:  # one-hot, or a token beyond a narrower vocabulary
                    pieces.append([part.prob(i, token) for i, token in enumerate(mine)])
            plan.append(pieces)
    values: list[float] = []
    if gathered:
        like = gathered[0]
        # float64 holds every float32 exactly; one device, because laws may come from several
        whole = torch.cat([g.to(like.device, torch.float64) for g in gathered])
        values = whole.squeeze(-1).tolist()
    out, at_value = [], 0
    for pieces in plan:
        numbers: list[float] = []
        for piece in pieces:
            if isinstance(piece, int):
                numbers += values[at_value : at_value + piece]
                at_value += piece
            else:
                numbers += piece
        out.append(numbers)
    return list(zip(out[::2], out[1::2], strict=True))


def _row(laws: Laws, i: int) -> torch.Tensor:
    """Row i, [width]."""
    if isinstance(laws, DenseLaws):
        return laws.probs[i]
    row = laws.rows(i, i + 1)
    return row.dense(row.width)[0]


def _residual(p: Laws, q: Laws, i: int, w: float) -> torch.Tensor:
    """max(w·p − q, 0) at row i, [width of p]; what q says beyond p's vocabulary cannot matter."""
    row = _row(p, i)
    if isinstance(q, MixedLaws):
        q, i = q.rows(i, i + 1), 0
    if isinstance(q, DenseLaws):
        other = q.probs[i].to(row)
        if len(other) > len(row):
            other = other[: len(row)]
        elif len(other) < len(row):
            other = torch.nn.functional.pad(other, (0, len(row) - len(other)))
        return torch.sub(row if w == 1.0 else row * w, other).clamp_(min=0.0)
    out = row * w
    token = q.ids[i]
    if token < len(out):
        out[token] = (out[token] - 1.0).clamp(min=0.0)
    return out


def _stacked(rows: list[torch.Tensor]) -> torch.Tensor:
    """[n, V] of rows that may differ in width."""
    if len(rows) == 1:
        return rows[0].unsqueeze(0)
    width = max(len(row) for row in rows)
    return torch.stack([torch.nn.functional.pad(r, (0, width - len(r))).to(rows[0]) for r in rows])


# --- the general road: a padded batch through acceptance, scan and correction


def _side_by_side(jobs: Sequence[_Job]) -> Batch:
    """Drafts of one rule side by side; what the padding holds never reaches a result."""
    lengths = [len(job.draft) for job in jobs]
    n = max(lengths)
    width = max(max(job.p.width, job.draft.laws.width) for job in jobs)
    first = jobs[0].p.dense(width)
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
            missing = width - job.scores.shape[-1]
            scores[b, : length + 1] = torch.nn.functional.pad(
                job.scores, (0, missing), value=-torch.inf
            )
    return Batch(p, q, tokens, torch.tensor(lengths, device=p.device), scores)


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
