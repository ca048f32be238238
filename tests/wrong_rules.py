"""Rules that must fail: mistakes seen in real code, each written down [MATH §1, §2]."""

from __future__ import annotations

import dataclasses
from functools import partial

import numpy as np
import torch
from tabular_cases import chain, models

from hierspec.core.nodes import Concatenate, Draft, Verify
from hierspec.core.proposals import Proposal, Verdict
from hierspec.core.rules import Acceptance, Stop, Verifier
from hierspec.exact.tables import TableDistributions
from hierspec.verifiers.block import Block
from hierspec.verifiers.formulas import (
    draft_mask,
    excess,
    log_products,
    prefix_weights,
    scan_from_end,
    set_ends,
)
from hierspec.verifiers.multi_draft import (
    RRS,
    BlockRRS,
    excess_after,
    normalised_residual,
    target_row,
)
from hierspec.verifiers.rows import token_prob
from hierspec.verifiers.tokenwise import Tokenwise
from hierspec.verifiers.traversal import Traversal


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
        return Acceptance(set_ends(accepted.h, wrong, batch.lengths), accepted.w)


class EmitsFromFullP(Tokenwise):
    """After a rejection the next token comes from p, not from the residual."""

    def correction(self, batch, accepted, tau):
        return batch.p[torch.arange(len(tau)), tau]


class AcceptsTooGladly(Tokenwise):
    """A lenient threshold: min(1, 1.1 · p/q)."""

    def acceptance(self, batch):
        accepted = super().acceptance(batch)
        return Acceptance((accepted.h * 1.1).clamp(max=1.0), accepted.w)


class HandsUpTheDraftersLaw(Tokenwise):
    """Reports q for accepted tokens."""

    def reported(self, batch):
        return torch.cat([batch.q, batch.p[:, batch.q.shape[1] :]], 1)


class HandsUpAcceptedOnly(Tokenwise):
    """Keeps the recovered token to itself where it can."""

    def complete(self, node, pending, draft, verdict):
        kept = max(verdict.num_accepted, 1)
        return Verdict(verdict.num_accepted, verdict.emitted.truncated(kept))
        yield


class HandsUpTheResidual(Tokenwise):
    """Reports, for the recovered token, the residual it was drawn from."""

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


class KeepsTheLikeliest(Verifier):
    """`leading` that reports its own law for what it kept, whoever drew it."""

    name = "keeps-the-likeliest"

    def acceptance(self, batch):
        likeliest = batch.p[:, : batch.tokens.shape[1]].argmax(-1) == batch.tokens
        h = (likeliest & draft_mask(batch)).double()
        return Acceptance(h, h.new_ones(h.shape[0], h.shape[1] + 1))

    def correction(self, batch, accepted, tau):
        return batch.p[torch.arange(len(tau)), tau]


# --- P5


class ReadsOneLate(Tokenwise):
    """Algorithm 1 as printed: p_i is the law after x_i, where it should be the one before it."""

    def acceptance(self, batch):
        p_x = batch.p[:, 1:].gather(2, batch.tokens.unsqueeze(2)).squeeze(2)
        q_x = batch.q.gather(2, batch.tokens.unsqueeze(2)).squeeze(2)
        h = (p_x / q_x).clamp(max=1.0)
        return Acceptance(set_ends(h, h, batch.lengths), h.new_ones(h.shape[0], h.shape[1] + 1))


def interleaved_as_printed(seed: int) -> Verify:
    """P2's Algorithm 2, which emits from full p after a rejection."""
    small, mid, target = models("random", 3, seed=seed)
    parts = (Draft(0, "small", small, 1), Draft(1, "mid", mid, 1))
    below = Concatenate(2, "interleaved", parts, 2)
    return chain([target], [EmitsFromFullP()], [], below=below)


# --- several drafts


class Published(Block):
    """P4's Algorithm 3 as its code has it, each of its two slips by itself or both."""

    name = "published"
    multi_draft = True
    exact = False

    def __init__(self, carries: bool, uncapped: bool) -> None:
        self.carries, self.uncapped = carries, uncapped

    def choose(self, drafts, p):
        last, tau, carried = 0, 0, 1.0
        f = target_row(p[0], 0)
        for j, draft in enumerate(drafts):
            if len(draft) <= tau or draft.tokens[:tau] != drafts[last].tokens[:tau]:
                continue
            q_x = [draft.distributions.prob(i, draft.tokens[i]) for i in range(tau, len(draft))]
            p_x = [p[j].prob(i, draft.tokens[i]) for i in range(tau, len(draft))]
            p_x[0] = token_prob(f, draft.tokens[tau])
            start = carried if self.carries else 1.0
            w = [start, *prefix_weights([start * p_x[0], *p_x[1:]], q_x)[1:]]
            end = start * float(np.prod(np.divide(p_x, q_x)))
            n = len(w) - 1
            if self.uncapped and (yield min(1.0, end)):
                k, w_k = n, 1.0
            else:
                shorter = [*w[:-1], 0.0] if self.uncapped else w
                k, w_k = yield from scan_from_end(
                    shorter, partial(excess_after, tau, p[j], draft.distributions)
                )
                w_k = w_k if k else start
            if k:
                last, tau = j, tau + k
                f = target_row(p[j], tau)
            if tau == len(draft):
                break
            carried = start * float(np.prod(np.divide(p_x[:k], q_x[:k])))
            f = normalised_residual(f, draft.distributions, tau, w_k)
        return Stop(last, tau, f)


class SkipsNone(BlockRRS):
    """Every draft is tried where the last one stopped, whatever it began with."""

    name = "skips-none"
    exact = False

    def choose(self, drafts, p):
        first = drafts[0].tokens
        glued = [
            dataclasses.replace(d, tokens=(*first[:1], *d.tokens[1:])) if j else d
            for j, d in enumerate(drafts)
        ]
        return super().choose(glued, p)


class Forgets(RRS):
    """After a rejection the next candidate is judged against p again."""

    name = "forgets"
    exact = False

    def choose(self, drafts, p):
        for j, draft in enumerate(drafts[:-1]):
            token = draft.tokens[0]
            if (yield min(1.0, p[j].prob(0, token) / draft.distributions.prob(0, token))):
                stop = Stop(j, 1, target_row(p[j], 1))
                return stop
        return (yield from super().choose(drafts[-1:], p[-1:]))


class CountsRepeats(Traversal):
    """Drafts that repeat a rejected token take their share off at its first place."""

    name = "counts-repeats"
    exact = False

    def choose(self, drafts, p):
        return (yield from self.node(drafts, p, list(range(len(drafts))), 0, 1.0))

    def node(self, drafts, p, through, depth, w):
        f = target_row(p[through[0]], depth)
        longer = [j for j in through if len(drafts[j]) > depth]
        for token in dict.fromkeys(drafts[j].tokens[depth] for j in longer):
            same = [j for j in longer if drafts[j].tokens[depth] == token]
            q = drafts[same[0]].distributions
            chance = min(1.0, w * token_prob(f, token) / q.prob(depth, token))
            if stop := (yield from self.node(drafts, p, same, depth + 1, chance)):
                return stop
            for _ in same:
                left = (w * f - q.dense(len(f))[depth]).clamp(min=0.0)
                f, total = normalised_residual(f, q, depth, w), float(left.sum())
                w = total / (total + 1.0 - w)
        kept = not depth or (yield w)
        return Stop(through[0], depth, f) if kept else None


class SlightlyLenient(Tokenwise):
    """The shortcut keeps a little too much."""

    def decide(self, p_x, q_x, uniforms, excess):
        return super().decide([1.01 * p for p in p_x], q_x, uniforms, excess)


class LightResidual(Block):
    """The shortcut draws from the residual of a weight that is slightly off."""

    def decide(self, p_x, q_x, uniforms, excess):
        tau, w = super().decide(p_x, q_x, uniforms, excess)
        return tau, w if w == 1.0 else 0.97 * w
