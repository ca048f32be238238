"""From laws to verdicts: the reference form of a rule, and the batched form the runtime calls.

Both spend the dice alike: n + 1 uniforms for a draft of n tokens, the first n in the scan (u_k at
length k), the last for the token that follows. A verdict therefore depends neither on who shares
the batch nor on the road taken through it. Greedy decoding spends none.

Three roads lead to the same verdict: one-hot laws are compared as integers; rules with a
shortcut (:meth:`Verifier.decide`) read the drafted tokens' probabilities and only the rows that
matter; every other rule, and every rule on an accelerator, gets a padded :class:`Batch`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from hierspec.core.distributions import (
    DenseDistributions,
    Distributions,
    MixedDistributions,
    OneHotDistributions,
    checked,
    draw,
    locate,
)
from hierspec.core.proposals import Proposal, Verdict
from hierspec.core.rng import Rng
from hierspec.core.rules import Batch, Verifier, scan
from hierspec.utils.graphs import Graphs, upload

from .padding import Case, Form, fill, side_by_side
from .reading import chosen_probabilities, residual, row_at, stacked

if TYPE_CHECKING:
    from hierspec.core.nodes import Verify


def verify(
    rule: Verifier,
    draft: Proposal,
    p: Distributions,
    rng: Rng,
    scores: torch.Tensor | None = None,
    bonus: bool = True,
    index: int = -1,
) -> Verdict:
    """The reference form of a rule, and its plug-in contract: one draft, no shortcuts.

    Args:
        rule: how to verify; its follow-up requests, if any, are the caller's business.
        draft: n tokens and their laws.
        p: n + 1 laws of the verifier.
        rng: n + 1 uniforms are taken.
        scores: [n+1, V], for rules that read them.
        bonus: whether a fully kept draft (n ≥ 1) earns one more token.
        index: of the verifying node, recorded as owner of what is emitted.
    """
    from hierspec.core.nodes import Verify

    node = Verify(index, rule.name, None, 1, rule, None, bonus=bonus)
    return _padded([Case(node, draft, p, rng, scores)])[0]


def verify_batch(
    node: Verify,
    drafts: Sequence[Proposal],
    p: Sequence[Distributions],
    rng: Sequence[Rng],
    scores: Sequence[torch.Tensor] | None = None,
    graphs: Graphs | None = None,
) -> list[Verdict]:
    """Verdicts of many drafts at one node, in order.

    Args:
        node: who verifies; its rule, index and bonus setting are read.
        drafts: B proposals of n_b tokens each; lengths may differ, and be 0.
        p: n_b + 1 laws of the verifier for each; the last one follows the whole draft.
        rng: of the drafts' sequences. A draft takes n_b + 1 uniforms, or none where p is one-hot.
        scores: [n_b+1, V] untempered scores for each; for rules that read them.
        graphs: of the device the laws are on: decisions of a shape are recorded there.

    Returns:
        B verdicts. Signals are left NaN: they are read off scores that a rule need not see.
    """
    verdicts: list[Verdict | None] = [None] * len(drafts)
    rest: list[int] = []
    jobs = [
        Case(node, draft, law, die, scores[i] if scores is not None else None)
        for i, (draft, law, die) in enumerate(zip(drafts, p, rng, strict=True))
    ]
    for i, job in enumerate(jobs):
        if isinstance(job.p, OneHotDistributions) and _comparable(node.rule, job.draft):
            verdicts[i] = _greedy(job)
        else:
            rest.append(i)
    if rest:
        cases = [jobs[i] for i in rest]
        short = _has_shortcut(type(node.rule)) and not _is_elsewhere(cases)
        found = _short(cases) if short else _padded(cases, graphs)
        for i, verdict in zip(rest, found, strict=True):
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


def _is_elsewhere(cases: Sequence[Case]) -> bool:
    """Whether laws lie on an accelerator: the shortcut would wait for it again and again."""
    parts = [part for case in cases for part in (case.p, case.draft.distributions)]
    flat = [one for p in parts for one in (p.parts if isinstance(p, MixedDistributions) else (p,))]
    return any(
        isinstance(one, DenseDistributions) and one.probs.device.type != "cpu" for one in flat
    )


def _comparable(rule: Verifier, draft: Proposal) -> bool:
    """Whether integers decide, given a one-hot p: q matters only to laws that a mixture reports."""
    return not rule.reads_scores or isinstance(draft.distributions, OneHotDistributions)


def _emit(job: Case, tau: int, token: int | None, distributions: Distributions) -> Verdict:
    """The verdict: τ kept tokens, then ``token``; ``distributions`` has at least as many rows."""
    return emission(job.node.index, job.draft, tau, token, distributions)


def emission(
    index: int, draft: Proposal, tau: int, token: int | None, distributions: Distributions
) -> Verdict:
    """The same, at the node of that index."""
    tokens, origins = draft.tokens[:tau], draft.origins[:tau]
    if token is not None:
        tokens, origins = (*tokens, token), (*origins, index)
    n = len(tokens)
    rows = distributions if n == len(distributions) else distributions.rows(0, n)
    return Verdict(tau, Proposal(tokens, rows, (index,) * n, origins, (math.nan,) * n))


def _drops_bonus(job: Case, tau: int) -> bool:
    """Decided by count alone: the whole draft was kept, and there was one."""
    return not job.node.bonus and tau == len(job.draft) > 0


def _greedy(job: Case) -> Verdict:
    assert isinstance(job.p, OneHotDistributions)
    choices = job.p.ids
    tau = job.node.rule.greedy(job.draft.tokens, choices, job.scores)
    token = None if _drops_bonus(job, tau) else choices[tau]
    emitted = job.draft.tokens[:tau] + (() if token is None else (token,))
    return _emit(job, tau, token, OneHotDistributions(emitted))


# --- the short road: rules that decide from the drafted tokens' probabilities


class _Residuals:
    """Rows max(w·p − q, 0) of one draft. The last is kept: a test that passes has summed the very
    row that the next token is drawn from.
    """

    __slots__ = ("key", "last", "p", "q")

    def __init__(self, p: Distributions, q: Distributions) -> None:
        self.p, self.q = p, q
        self.key: tuple[int, float] | None = None
        self.last: torch.Tensor | None = None

    def row(self, k: int, w: float) -> torch.Tensor:
        if self.last is None or self.key != (k, w):
            self.key, self.last = (k, w), residual(self.p, self.q, k, w)
        return self.last

    def excess(self, k: int, w: float) -> float:
        return float(self.row(k, w).sum(dtype=torch.float64))


def _short(cases: list[Case]) -> list[Verdict]:
    taus: list[int] = []
    rows: list[torch.Tensor] = []  # those that a token is drawn from, of the cases ``at``
    uniforms: list[float] = []
    at: list[int] = []
    for i, case in enumerate(cases):
        tokens, p, q = case.draft.tokens, case.p, case.draft.distributions
        n = len(tokens)
        rng = case.rng.take(n + 1).tolist()
        residuals = _Residuals(p, q)
        p_x, q_x = chosen_probabilities(tokens, p), chosen_probabilities(tokens, q)
        decision = case.node.rule.decide(p_x, q_x, rng, residuals.excess)
        assert decision is not None
        tau, w = decision
        taus.append(tau)
        if not _drops_bonus(case, tau):
            rows.append(row_at(p, n) if tau == n else residuals.row(tau, w))
            uniforms.append(rng[n])
            at.append(i)
    drawn: list[int | None] = [None] * len(cases)
    if rows:
        found = draw(stacked(rows), uniforms, lambda j: row_at(cases[at[j]].p, taus[at[j]]))
        for i, token in zip(at, found, strict=True):
            drawn[i] = token
    return [
        _emit(case, tau, token, case.p) for case, tau, token in zip(cases, taus, drawn, strict=True)
    ]


# --- the general road: a padded batch through acceptance, scan and correction


class _Decided(NamedTuple):
    """Tensors of a decision.

    Attributes:
        found: [B, 3] float64: τ, the token that follows, the mass of the law it was drawn from;
            one tensor, so that an accelerator is waited for once.
        reported: [B, n + 1, V] where the rule hands up laws other than the verifier's.
    """

    found: torch.Tensor
    reported: torch.Tensor | None


def _padded(cases: list[Case], graphs: Graphs | None = None) -> list[Verdict]:
    rule, form = cases[0].node.rule, Form.of(cases)
    rng = [case.rng.take(len(case.draft) + 1).tolist() for case in cases]
    if graphs is not None and graphs.device.type == form.device.type and form.bucket().small:
        decided = _recorded(graphs, rule, form.bucket(), cases, rng)
    else:
        uniforms = torch.tensor(_in_rows(rng, form), dtype=torch.float64, device=form.device)
        decided = _decide(rule, side_by_side(cases, form), uniforms)
    verdicts = []
    for b, (case, (tau, token, mass)) in enumerate(
        zip(cases, decided.found.tolist(), strict=False)
    ):
        following = checked(token, mass)
        chosen = None if _drops_bonus(case, int(tau)) else following
        distributions = (
            case.p if decided.reported is None else DenseDistributions(decided.reported[b])
        )
        verdicts.append(_emit(case, int(tau), chosen, distributions))
    return verdicts


def _decide(rule: Verifier, batch: Batch, uniforms: torch.Tensor) -> _Decided:
    """uniforms [B, n + 1]: n for the scan, the last for the token that follows."""
    accepted = rule.acceptance(batch)
    tau = scan(rule.order, accepted.h, uniforms[:, :-1])
    ids, mass = locate(rule.correction(batch, accepted, tau), uniforms[:, -1:])
    # Where scores are not looked at before (on accelerators), a NaN must not pass for a law.
    read = torch.arange(batch.p.shape[1], device=tau.device) <= tau.unsqueeze(1)
    sound = ((batch.p[..., 0] >= 0.0) | ~read).all(1, keepdim=True)
    mass = torch.where(sound, mass, torch.nan)
    found = torch.cat((tau.double().unsqueeze(1), ids, mass), 1)
    own = type(rule).reported is Verifier.reported
    return _Decided(found, None if own else rule.reported(batch))


def _recorded(
    graphs: Graphs, rule: Verifier, form: Form, cases: list[Case], rng: list[list[float]]
) -> _Decided:
    """The same on static tensors of shape ``form``, as a graph where there are such."""

    def new() -> tuple[Any, Any]:
        batch = form.empty()
        size = (form.rows, form.tokens + 1)
        uniforms = torch.zeros(size, dtype=torch.float64, device=form.device)
        out = _decide(rule, batch, uniforms)

        def body() -> None:
            fresh = _decide(rule, batch, uniforms)
            out.found.copy_(fresh.found)
            if out.reported is not None and fresh.reported is not None:
                out.reported.copy_(fresh.reported)

        return (batch, uniforms, out), body

    with torch.inference_mode():  # whoever calls first: static tensors outlive the call
        call = graphs.get((rule, form), new)
        batch, uniforms, out = call.tensors
        fill(batch, cases)
        upload(uniforms, _in_rows(rng, form))
        call.run()
    # A copy, because the next decision of this shape writes there.
    return _Decided(out.found, None if out.reported is None else out.reported.clone())


def _in_rows(rng: list[list[float]], form: Form) -> list[list[float]]:
    """[B, n + 1]: each draft's scan, filled up, then the number its last token is drawn with."""
    rows = [own[:-1] + [0.0] * (form.tokens + 1 - len(own)) + own[-1:] for own in rng]
    return rows + [[0.0] * (form.tokens + 1)] * (form.rows - len(rows))
