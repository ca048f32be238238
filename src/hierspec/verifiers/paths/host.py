"""Verification on the host by :meth:`Verifier.decide`, a rule's shortcut.

It needs the drafted tokens' probabilities alone, so most rows [V] are never read. It is for rules
that have a shortcut, and distributions in the host's memory.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hierspec.core.distributions import DenseDistributions, Distributions, draw, parts
from hierspec.core.proposals import Verdict
from hierspec.core.rules import Verifier
from hierspec.utils.threads import OneThread
from hierspec.verifiers.rows import residual_row, stack_rows, token_probs

from .case import DraftCase

_FEW_DRAFTS = 4  # in whose rows several threads would take longer to wake than one takes


def applies(rule: Verifier, cases: Sequence[DraftCase]) -> bool:
    """Return whether the rule has a shortcut and no row lies on an accelerator.

    Reading a row there would wait for the device again and again.
    """
    if "acceptance" in vars(rule):  # replaced on the instance
        return False
    return has_shortcut(type(rule)) and not any(
        isinstance(part, DenseDistributions) and part.probs.device.type != "cpu"
        for case in cases
        for distributions in (case.p, case.draft.distributions)
        for part in parts(distributions)
    )


def has_shortcut(rule: type[Verifier]) -> bool:
    """Return whether a rule has its own ``decide``: an inherited one may decide otherwise."""
    return "decide" in vars(rule)


def verdicts(cases: Sequence[DraftCase]) -> list[Verdict]:
    """Decide each draft by itself, then draw the tokens that follow all of them in one call."""
    with OneThread(len(cases) <= _FEW_DRAFTS):
        decided = [_decide(case) for case in cases]
        continued = [i for i, (_, row, _) in enumerate(decided) if row is not None]
        next_tokens: dict[int, int] = {}
        if continued:
            tokens = draw(
                stack_rows([row for _, row, _ in decided if row is not None]),
                [decided[i][2] for i in continued],
                lambda j: cases[continued[j]].p.row(decided[continued[j]][0]),
            )
            next_tokens = dict(zip(continued, tokens, strict=True))
    return [
        case.verdict(tau, next_tokens.get(i), case.p)
        for i, (case, (tau, _, _)) in enumerate(zip(cases, decided, strict=True))
    ]


def _decide(case: DraftCase) -> tuple[int, torch.Tensor | None, float]:
    """Decide one draft → τ, the unnormalised row to draw the next token from, and its uniform."""
    tokens, p, q = case.draft.tokens, case.p, case.draft.distributions
    n = len(tokens)
    uniforms = case.rng.take(n + 1).tolist()
    if not n:
        return 0, p.row(0), uniforms[0]
    residuals = _Residuals(p, q)
    p_x, q_x = token_probs(tokens, p), token_probs(tokens, q)
    decision = case.rule.decide(p_x, q_x, uniforms, residuals.excess)
    assert decision is not None, "a rule with `decide` decides"
    tau, w = decision
    if case.drops_bonus(tau):
        return tau, None, 0.0
    return tau, p.row(n) if tau == n else residuals.row(tau, w), uniforms[n]


class _Residuals:
    """Rows max(w·p − q, 0) of one draft, unnormalised.

    The last is cached: a test that passes has summed the row that the next token is drawn from.
    """

    __slots__ = ("_key", "_last", "_p", "_q")

    def __init__(self, p: Distributions, q: Distributions) -> None:
        self._p, self._q = p, q
        self._key, self._last = (-1, 0.0), torch.empty(0, device="cpu")

    def row(self, k: int, w: float) -> torch.Tensor:
        if self._key != (k, w):
            self._key, self._last = (k, w), residual_row(self._p.row(k), self._q, k, w)
        return self._last

    def excess(self, k: int, w: float) -> float:
        return float(self.row(k, w).sum(dtype=torch.float64))
