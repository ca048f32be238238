"""Naive branch resampling: lossless with the ideal acceptance, at the price of follow-up calls.

P4 §5.1, Algorithm 1; MATH §1. The scan uses the *uncapped* products R_k, so it keeps as many
tokens as any rule could (Σ_i Σ_{x^i} min(p(x^i), q(x^i)) a round); but then all positions up to
the draft's end must come from norm(max(p − q, 0)) of the *joint* distributions from the round's
start. For those the target and the drafter are called again, once a token, and per target call it
yields fewer tokens than tokenwise verification.

It needs a draft whose length was fixed beforehand, and a drafter whose distribution depends on the
context alone, because it is asked for at contexts it never drafted.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import replace
from typing import Any

import torch

from hierspec.core.distributions import (
    DenseDistributions,
    Distributions,
    OneHotDistributions,
    row_sums,
)
from hierspec.core.nodes import Draft, Verify
from hierspec.core.proposals import Proposal, Verdict
from hierspec.core.requests import Draw, NodeRequest, Row
from hierspec.core.rules import Acceptance, Batch, Verifier, residual
from hierspec.verifiers.formulas import log_products, log_ratio, set_ends

_MAX_LOG = 600.0  # exp(600) is finite, and no distribution tells such a product from infinity


class Naive(Verifier):
    """w_k = R_k; h_n = min(1, R_n), below h_k = min(1, D(R_k p, q) / D(q, R_k p)) at row k+1."""

    name = "naive"
    order = "backward"
    exact_when = "a draft's length is fixed beforehand, its distributions by the context alone"
    fixed_length = True

    def acceptance(self, batch: Batch) -> Acceptance:
        products = log_products(batch).clamp(max=_MAX_LOG).exp()
        n = products.shape[1] - 1
        ends = products[:, 1:].clamp(max=1.0)
        h = torch.zeros_like(ends)
        if n > 1:
            p, q = batch.p[:, 1:n].double(), batch.q[:, 1:n].double()
            difference = products[:, 1:n, None] * p - q
            excess = row_sums(difference.clamp(min=0.0))
            deficit = row_sums(difference.clamp(max=0.0)).neg()
            h[:, :-1] = torch.where(deficit > 0, (excess / deficit).clamp(max=1.0), 1.0)
        return Acceptance(set_ends(h, ends, batch.lengths), products)

    def complete(
        self, node: Verify, pending: tuple[int, ...], draft: Proposal, verdict: Verdict
    ) -> Generator[NodeRequest, Any, Verdict]:
        """Draw the rest of the round, up to the draft's length, from the joint residual."""
        out = verdict.emitted
        if len(out) >= len(draft) or isinstance(out.distributions, OneHotDistributions):
            return verdict  # one-hot: whatever follows is the target's choice either way
        assert isinstance(node.below, Draft | Verify)
        log_r = 0.0
        for i, token in enumerate(out.tokens):
            log_r += log_ratio(out.distributions.prob(i, token), draft.distributions.prob(i, token))
        while len(out) < len(draft) and log_r < _MAX_LOG:  # beyond that the residual is p itself
            tokens = pending + out.tokens
            p: Distributions = yield Row(node, tokens)
            q: Distributions = yield Row(node.below, tokens)
            token: int = yield Draw(node, joint_residual(p, q, log_r))
            log_r += log_ratio(p.prob(0, token), q.prob(0, token))
            out += Proposal((token,), p, (node.index,), (node.index,), (math.nan,))
        return replace(verdict, emitted=out)


def joint_residual(p: Distributions, q: Distributions, log_r: float) -> DenseDistributions:
    """Return norm(max(R·p − q, 0)) of one row each; p where it vanishes by rounding."""
    width = max(p.width, q.width)
    p_row, q_row = p.dense(width).double(), q.dense(width).to(p.dense(width).device).double()
    r = math.exp(log_r)
    rest = residual(p_row, q_row / max(r, 1.0), min(r, 1.0))
    total = rest.sum()
    return DenseDistributions(p_row if total <= 0.0 else rest / total)
