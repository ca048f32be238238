"""The certificate has teeth: mistakes seen in real code, each written down and each caught.

A rule that passes `test_exact.py` is only as good as the enumeration that judges it, so here are
rules that must fail [MATH §1, §2]. TV is the largest over a few random models: one model may hide
a mistake by luck.
"""

from __future__ import annotations

import pytest
import torch
from tabular_cases import V, chain, models

from hierspec.core.nodes import Concatenate, Draft
from hierspec.core.proposals import Proposal, Verdict
from hierspec.core.windows import EntropyWindow
from hierspec.exact import TableDistributions
from hierspec.exact.certificate import certify_tree
from hierspec.verifiers import Acceptance, Verifier, get
from hierspec.verifiers.block import Block
from hierspec.verifiers.leading import Leading
from hierspec.verifiers.naive import Naive
from hierspec.verifiers.ratios import at_ends, excess, log_products
from hierspec.verifiers.tokenwise import Tokenwise

CAUGHT = 1e-3


class StopsAtTheFirstFailure(Block):
    """Scans from the front, where the largest passing length counts."""

    order = "forward"


class OneUniformForAll(Block):
    """u is drawn once for all lengths: P(τ = k) = max(h_k − max_{j>k} h_j, 0), put as a scan."""

    def acceptance(self, batch):
        accepted = super().acceptance(batch)
        h = accepted.h.clone()
        for b in range(len(h)):
            passed_later, best = 0.0, 0.0
            for k in range(h.shape[1] - 1, -1, -1):
                stop_here = max(float(h[b, k]) - best, 0.0)
                best = max(best, float(h[b, k]))
                h[b, k] = stop_here / (1.0 - passed_later) if passed_later < 1.0 else 0.0
                passed_later += stop_here
        return Acceptance(h, accepted.w)


class ResidualWithoutWeight(Block):
    """Emits from max(p − q, 0) instead of max(w·p − q, 0)."""

    def acceptance(self, batch):
        accepted = super().acceptance(batch)
        return Acceptance(accepted.h, torch.ones_like(accepted.w))


class ResidualOfTheUncappedRatio(Block):
    """Lets r* > 1 into the residual."""

    def acceptance(self, batch):
        accepted = super().acceptance(batch)
        return Acceptance(accepted.h, log_products(batch).clamp(max=50.0).exp())


class EndsAtThePadding(Block):
    """Treats the draft's real end as if it went on into padding (a uniform law, here)."""

    def acceptance(self, batch):
        accepted = super().acceptance(batch)
        w = accepted.w[:, 1:]
        p = batch.p[:, 1:]
        d = excess(p, torch.full_like(p, 1.0 / p.shape[-1]), w)
        wrong = torch.where(w < 1.0, d / (d + (1.0 - w)), 1.0)
        return Acceptance(at_ends(accepted.h, wrong, batch.lengths), accepted.w)


class EmitsFromFullP(Tokenwise):
    """After a rejection the next token comes from p, not from the residual."""

    def correction(self, batch, accepted, tau):
        return batch.p[torch.arange(len(tau)), tau]


class AcceptsTooGladly(Tokenwise):
    """A lenient threshold: min(1, 1.1 · p/q)."""

    def acceptance(self, batch):
        accepted = super().acceptance(batch)
        return Acceptance((accepted.h * 1.1).clamp(max=1.0), accepted.w)


class NeverFollowsUp(Naive):
    """Naive branch resampling without its follow-up tokens."""

    complete = Verifier.complete


class HandsUpTheDraftersLaw(Tokenwise):
    """Reports q for accepted tokens."""

    def reported(self, batch):
        return torch.cat([batch.q, batch.p[:, batch.q.shape[1] :]], 1)


class HandsUpAcceptedOnly(Tokenwise):
    """Keeps the corrected token to itself where it can."""

    def complete(self, node, pending, draft, verdict):
        kept = max(verdict.num_accepted, 1)
        return Verdict(verdict.num_accepted, verdict.emitted.truncated(kept))
        yield


class HandsUpTheResidual(Tokenwise):
    """Reports, for the corrected token, the residual it was drawn from."""

    def complete(self, node, pending, draft, verdict):
        tau, out = verdict.num_accepted, verdict.emitted
        if tau < len(draft):
            p = out.distributions.rows(tau, tau + 1).dense(V)
            residual = (p - draft.distributions.rows(tau, tau + 1).dense(V)).clamp(min=0.0)
            row = out.distributions.store.intern((residual / residual.sum())[0].numpy())
            distributions = TableDistributions(
                out.distributions.store, (*out.distributions.ids[:tau], row)
            )
            out = Proposal(out.tokens, distributions, out.owners, out.origins, out.signals)
        return Verdict(tau, out)
        yield


class DropsATokenForItsValue(Tokenwise):
    """Throws the last token away if it does not like it."""

    def complete(self, node, pending, draft, verdict):
        out = verdict.emitted
        if len(out) > 1 and out.tokens[-1] == 0:
            out = out.truncated(len(out) - 1)
        return Verdict(verdict.num_accepted, out)
        yield


class CutsAfterLookingAhead(Tokenwise):
    """Cuts to the first token, because of what a later one was."""

    def complete(self, node, pending, draft, verdict):
        out = verdict.emitted
        if len(out) > 2 and out.tokens[-1] != 1:
            out = out.truncated(1)
        return Verdict(verdict.num_accepted, out)
        yield


class LeadingReportsP(Leading):
    """Reports its own law for tokens that its lenience let through."""

    reported = Verifier.reported


def worst(make) -> float:
    return max(certify_tree(make(seed), V).tv for seed in range(3))


@pytest.mark.parametrize(
    "rule",
    [
        get("uncapped"),
        get("leading"),
        get("leading", top_m=2),
        StopsAtTheFirstFailure(),
        OneUniformForAll(),
        ResidualWithoutWeight(),
        ResidualOfTheUncappedRatio(),
        EndsAtThePadding(),
        EmitsFromFullP(),
        AcceptsTooGladly(),
        NeverFollowsUp(),
    ],
    ids=lambda rule: f"{type(rule).__name__}{getattr(rule, 'top_m', '')}",
)
def test_a_wrong_rule_is_caught(rule):
    assert worst(lambda seed: chain(models("random", 2, seed=seed), [rule], [3])) > CAUGHT


@pytest.mark.parametrize(
    "rule",
    [
        HandsUpTheDraftersLaw(),
        HandsUpAcceptedOnly(),
        HandsUpTheResidual(),
        DropsATokenForItsValue(),
        CutsAfterLookingAhead(),
        EmitsFromFullP(),
        LeadingReportsP(2),
        get("uncapped"),
    ],
    ids=lambda rule: type(rule).__name__,
)
@pytest.mark.parametrize("final", ["tokenwise", "block"])
def test_a_wrong_level_is_caught(rule, final):
    """Below an exact rule: what a level hands up must have the law it says."""
    assert worst(lambda seed: chain(models("random", 3, seed=seed), [rule, final], [2, 2])) > CAUGHT


def test_interleaving_as_printed_is_caught():
    """P2 emits from full p after a rejection."""

    def make(seed):
        small, mid, target = models("random", 3, seed=seed)
        parts = (Draft(0, "small", small, 1), Draft(1, "mid", mid, 1))
        below = Concatenate(2, "interleaved", parts, 2)
        return chain([target], [EmitsFromFullP()], [], below=below)

    assert worst(make) > 0.01


def test_naive_needs_a_length_fixed_beforehand():
    """The reason for which `check` refuses it: a stop that depends on the tokens makes it lossy."""
    windows = [EntropyWindow(threshold=0.8)]
    make = lambda seed: chain(models("random", 2, seed=seed), ["naive"], [3], windows)  # noqa: E731
    assert worst(make) > CAUGHT


def test_naive_needs_overshoot_cut():
    def make(seed):
        root = chain(models("random", 3, seed=seed), ["block", "tokenwise"], [2, 2])
        return chain(models("random", 1, seed=seed + 9), ["naive"], [], below=root.below)

    assert worst(make) > CAUGHT


def test_a_short_horizon_hides_it():
    """Why a certificate may be inconclusive: one token of `uncapped` looks perfect."""
    root = chain(models("random", 2, seed=0), ["uncapped"], [2])
    assert certify_tree(root, V, 1).tv < 1e-12
    assert not certify_tree(root, V, 1).conclusive
    assert not certify_tree(root, V, 3).conclusive
    assert certify_tree(root, V, 4).conclusive
    assert certify_tree(root, V).tv > CAUGHT
