"""Multi-draft rules: recursive rejection sampling, and block verification of each draft.

RRS [Miao et al., 2024; Yang et al., 2024] tries candidates one after another: y_j is accepted with
min(1, f(y_j)/q_j(y_j)), where f starts as p and after a rejection is norm(max(f − q_j, 0)). Whole
drafts share prefixes: at each position the candidates are the next tokens of those drafts that
begin with all that was accepted. *Without replacement* is a matter of drafting: the drafts' first
tokens are drawn from q without those drawn already, and every draft reports the distribution its
tokens were really drawn from. The rule reads that, so one rule serves both.

block-RRS is the sound form of P4's Algorithm 3 (appendix F). The first draft is verified by
block; where it stops, the next draft that begins with all that was accepted is verified by block
from there on, with target rows (residual, p, p, …) and w restarted at 1; the token that follows
comes from the last residual. P4 instead carries R_τ on and leaves the end uncapped: lossy.

A rule is a generator that yields acceptance probabilities and is sent each test's outcome. So the
runtime draws a uniform for each, and the exact interpreter follows both outcomes. [MATH §3]
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch

from hierspec.core.distributions import Distributions, draw
from hierspec.core.proposals import Proposal, Verdict
from hierspec.core.rng import Rng
from hierspec.core.rules import Choice, Stop, Verifier
from hierspec.utils.reads import Reads

from .acceptance import tests_of
from .block import Block
from .formulas import capped_ratio, prefix_weights, scan_from_end
from .paths import greedy
from .paths.case import DraftCase
from .rows import mass, normalised, residual_row, token_prob
from .tokenwise import Tokenwise
from .verify import verify_batch


class RRS(Tokenwise):
    """Recursive rejection sampling, token by token. With one draft: ``tokenwise``."""

    name = "rrs"
    multi_draft = True

    def choose(self, drafts: Sequence[Proposal], p: Sequence[Distributions]) -> Choice:
        active, depth = list(range(len(drafts))), 0
        while True:
            candidates = [j for j in active if len(drafts[j]) > depth]
            prefix_draft = (candidates or active)[0]  # begins with all that was accepted
            f = target_row(p[prefix_draft], depth)
            accepted: int | None = None
            for j in candidates:
                token = drafts[j].tokens[depth]
                q_x = drafts[j].distributions.prob(depth, token)
                if (yield capped_ratio(token_prob(f, token), q_x)):
                    accepted = j
                    break
                f = normalised_residual(f, drafts[j].distributions, depth)
            if accepted is None:
                return Stop(prefix_draft, depth, f)
            # An earlier draft's equal token was tried and rejected; only later ones are fresh.
            token = drafts[accepted].tokens[depth]
            active = [j for j in candidates if j >= accepted and drafts[j].tokens[depth] == token]
            depth += 1


class DistinctRRS(RRS):
    """:class:`RRS` for drafts whose first tokens were drawn without replacement."""

    name = "rrs-without-replacement"
    distinct = True


class BlockRRS(Block):
    """Block verification of one draft after another. With one draft: ``block``."""

    name = "block-rrs"
    multi_draft = True

    def choose(self, drafts: Sequence[Proposal], p: Sequence[Distributions]) -> Choice:
        prefix_draft, tau = 0, 0  # the draft whose first τ tokens are accepted
        f = target_row(p[0], 0)
        for j, draft in enumerate(drafts):
            if len(draft) <= tau or draft.tokens[:tau] != drafts[prefix_draft].tokens[:tau]:
                continue
            q_x = [draft.distributions.prob(i, draft.tokens[i]) for i in range(tau, len(draft))]
            p_x = [p[j].prob(i, draft.tokens[i]) for i in range(tau, len(draft))]
            p_x[0] = token_prob(f, draft.tokens[tau])
            excess = partial(excess_after, tau, p[j], draft.distributions)
            k, w = yield from scan_from_end(prefix_weights(p_x, q_x), excess)
            if k:
                prefix_draft, tau = j, tau + k
                f = target_row(p[j], tau)
            if tau == len(draft):
                break
            f = normalised_residual(f, draft.distributions, tau, w)
        return Stop(prefix_draft, tau, f)


# --- rows, in float64: they are rescaled at every rejection


def target_row(p: Distributions, i: int) -> torch.Tensor:
    return p.row(i).double()


def excess_after(start: int, p: Distributions, q: Distributions, k: int, w: float) -> float:
    """Return D(w·p, q) at row ``start`` + k."""
    return mass(residual_row(target_row(p, start + k), q, start + k, w))


def normalised_residual(f: torch.Tensor, q: Distributions, i: int, w: float = 1.0) -> torch.Tensor:
    """Return norm(max(w·f − q, 0)) with row i of q; f itself if that rounds to nothing (f = q)."""
    return normalised(residual_row(f, q, i, w), f)


# --- verdicts


def verify_drafts(
    rule: Verifier,
    drafts: Sequence[Proposal],
    p: Sequence[Distributions],
    rng: Rng,
    bonus: bool = True,
    index: int = -1,
) -> tuple[Verdict, int]:
    """Verify k drafts of one position by a rule for several drafts → the verdict, and which draft.

    Args:
        rule, bonus, index: as of :func:`verify_batch`.
        drafts: k proposals of n_j tokens, in the order they were drawn.
        p: k times n_j + 1 rows; row i of draft j is the verifier's after j's first i tokens.
        rng: gives one uniform for each test and one for the token that follows. A single draft
            goes through :func:`verify_batch`, and uses as many uniforms as there.
    """
    if len(drafts) == 1:
        return verify_batch(rule, drafts, p, [rng], None, bonus, index)[0], 0
    cases = [
        DraftCase(rule, draft, rows, rng, None, bonus, index)
        for draft, rows in zip(drafts, p, strict=True)
    ]
    if all(greedy.applies(case) for case in cases):
        reads = Reads()
        verdicts = [decide() for decide in [greedy.start(case, reads) for case in cases]]
        accepted = [verdict.num_accepted for verdict in verdicts]
        best = accepted.index(max(accepted))  # with one-hot rows every rule decides like this
        return verdicts[best], best
    stop = run_tests(tests_of(rule, drafts, p), rng)
    case = cases[stop.draft]
    token: int | None = None
    if not case.drops_bonus(stop.num_accepted):
        token = draw(stop.distribution.unsqueeze(0), rng.take(1))[0]
    return case.verdict(stop.num_accepted, token, case.p), stop.draft


def run_tests(choice: Choice, rng: Rng) -> Stop:
    """Draw a uniform for each test of a rule. A test is strict: h = 0 never passes."""
    try:
        h = next(choice)
        while True:
            h = choice.send(bool(rng.take(1)[0] < h))
    except StopIteration as stop:
        return stop.value


def outcomes(
    rule: Verifier, drafts: Sequence[Proposal], p: Sequence[Distributions]
) -> list[tuple[float, Stop]]:
    """Enumerate every way the rule's tests may go, with its probability."""
    results: list[tuple[float, Stop]] = []
    paths: list[tuple[float, tuple[bool, ...]]] = [(1.0, ())]
    while paths:
        chance, answers = paths.pop()
        choice = tests_of(rule, drafts, p)
        try:
            h = next(choice)
            for answer in answers:
                h = choice.send(answer)
            while True:
                passed = h > 0.0
                if 0.0 < h < 1.0:
                    paths.append((chance * (1.0 - h), (*answers, False)))
                    chance *= h
                answers = (*answers, passed)
                h = choice.send(passed)
        except StopIteration as stop:
            results.append((chance, stop.value))
    return results
