"""The host's shortcut: decide from the drafted tokens' probabilities, read only rows that matter.

For rules with :meth:`Verifier.decide`, where distributions lie in the host's memory.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch

from hierspec.core.distributions import DenseDistributions, Distributions, draw
from hierspec.core.proposals import Verdict
from hierspec.core.rules import Verifier
from hierspec.verifiers.rows import pieces, probabilities, residual_row, row_at, stacked

from .case import DraftCase


def applies(rule: Verifier, cases: Sequence[DraftCase]) -> bool:
    """Whether the rule has a shortcut, and no row lies on an accelerator, which it would wait for
    again and again.
    """
    return has_shortcut(type(rule)) and not any(
        isinstance(part, DenseDistributions) and part.probs.device.type != "cpu"
        for case in cases
        for distributions in (case.p, case.draft.distributions)
        for part in pieces(distributions)
    )


@functools.cache
def has_shortcut(rule: type[Verifier]) -> bool:
    """Whether ``decide`` speaks for the rule: not where a subclass changed what it stands for."""
    for cls in rule.__mro__[: rule.__mro__.index(Verifier)]:
        if "decide" in vars(cls):
            return True
        if vars(cls).keys() & {"acceptance", "correction", "reported", "order"}:
            return False
    return False


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
            self.key, self.last = (k, w), residual_row(row_at(self.p, k), self.q, k, w)
        return self.last

    def excess(self, k: int, w: float) -> float:
        return float(self.row(k, w).sum(dtype=torch.float64))


def verdicts(cases: Sequence[DraftCase]) -> list[Verdict]:
    """Decide each draft by itself, then draw all tokens that follow together."""
    taus: list[int] = []
    drawn: list[int] = []  # numbers of the cases that a token follows
    rows: list[torch.Tensor] = []  # what it is drawn from, and with which number
    uniforms: list[float] = []
    for i, case in enumerate(cases):
        tokens, p, q = case.draft.tokens, case.p, case.draft.distributions
        n = len(tokens)
        own = case.rng.take(n + 1).tolist()
        residuals = _Residuals(p, q)
        decision = case.node.rule.decide(
            probabilities(tokens, p), probabilities(tokens, q), own, residuals.excess
        )
        assert decision is not None, "a rule with `decide` decides"
        tau, w = decision
        taus.append(tau)
        if not case.drops_bonus(tau):
            drawn.append(i)
            rows.append(row_at(p, n) if tau == n else residuals.row(tau, w))
            uniforms.append(own[n])
    following: dict[int, int] = {}
    if rows:
        found = draw(stacked(rows), uniforms, lambda j: row_at(cases[drawn[j]].p, taus[drawn[j]]))
        following = dict(zip(drawn, found, strict=True))
    return [
        case.verdict(tau, following.get(i), case.p)
        for i, (case, tau) in enumerate(zip(cases, taus, strict=True))
    ]
