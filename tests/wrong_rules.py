"""Rules that must fail: mistakes seen in real code, each written down [MATH §1, §2]."""

from __future__ import annotations

import torch

from hierspec.core.proposals import Proposal, Verdict
from hierspec.core.rules import Acceptance, Verifier
from hierspec.exact import TableDistributions
from hierspec.verifiers.block import Block
from hierspec.verifiers.formulas import at_ends, excess, log_products
from hierspec.verifiers.leading import Leading
from hierspec.verifiers.naive import Naive
from hierspec.verifiers.tokenwise import Tokenwise


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
            width = out.distributions.width
            p = out.distributions.rows(tau, tau + 1).dense(width)
            residual = (p - draft.distributions.rows(tau, tau + 1).dense(width)).clamp(min=0.0)
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
