"""Block verification of a preferred path, against the distribution that the preference induces.

Ours. One path through several drafts is chosen token by token: of the next tokens of the drafts
still alive the one with the largest p/q is preferred, and the drafts that have it stay alive. With
m alive the chosen token has the distribution

    q̃(y) = (F(y) + q(y))^m − F(y)^m,    F(y) = q-mass of the tokens less preferred than y,

and m is known from what was chosen before. So the path is *one* draft whose rows are q̃, and block
verifies it. Where q is close to p already, q̃ is not, and the path takes the first draft's token
instead, whose distribution is q. Where block stops, the drafts that left the path just there can
still be used: given that they left it, their next tokens were drawn from q restricted to the tokens
less preferred than the chosen one (or different from it), and later tokens from q as before. They
are verified in the same way, against the residual of p at that position. [MATH §3 has the first
path; the rest is derived in docs/several-drafts.md and enumerated by the tests.]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from hierspec.core.distributions import Distributions
from hierspec.core.proposals import Proposal
from hierspec.core.rules import Choice, Stop, residual
from hierspec.verifiers.block import Block
from hierspec.verifiers.formulas import overlap, prefix_weights, scan_from_end
from hierspec.verifiers.multi_draft import target_row
from hierspec.verifiers.rows import dense_residual, mass, normalised, resize_row, token_prob

# Often both choices keep as much, and then the last digits of scores must not decide.
_MIN_GAIN = 1e-4


class InducedBlock(Block):
    """A preferred path, then others through the drafts that left it. With one draft: ``block``."""

    name = "induced-block"
    multi_draft = True

    def choose(self, drafts: Sequence[Proposal], p: Sequence[Distributions]) -> Choice:
        alive, accepted = list(range(len(drafts))), 0
        f, q = target_row(p[0], 0), None
        while True:
            path = _Path.choose(drafts, p, alive, accepted, f, q)
            w = prefix_weights(
                list(map(token_prob, path.p, path.tokens)),
                list(map(token_prob, path.induced, path.tokens)),
            )
            stop, weight = yield from scan_from_end(w, path.excess)
            accepted += stop
            f = path.p[stop]
            if stop == len(path.tokens):
                return Stop(path.draft, accepted, f)
            rest = dense_residual(f, path.induced[stop], weight)
            f = normalised(rest, f)
            token, q = path.tokens[stop], path.q[stop]
            first, *alive = path.alive[stop]
            # Where the first draft's token was taken and no draft is longer, no choice has depended
            # on which drafts share that token, so that all can still be used.
            if path.rank[stop] is not None or any(len(drafts[j]) > accepted + 1 for j in alive):
                alive = [j for j in (first, *alive) if drafts[j].tokens[accepted] != token]
                q = restrict(q, path.rank[stop], token) if alive else q
            if not alive:
                return Stop(path.draft, accepted, f)


@dataclass(slots=True, eq=False)
class _Path:
    """The preferred tokens from one position on; rows are float64 [V], one a position.

    Attributes:
        draft: the index of a draft that begins with all its tokens.
        p: what the tokens are verified against, and one row more.
        q, induced: the distribution of a single draft's token, and of the chosen token.
        rank: of all tokens, where the highest was preferred; None where the first draft's was
            taken.
        alive: the drafts among which each token was chosen.
    """

    draft: int
    tokens: list[int] = field(default_factory=list[int])
    p: list[torch.Tensor] = field(default_factory=list[torch.Tensor])
    q: list[torch.Tensor] = field(default_factory=list[torch.Tensor])
    induced: list[torch.Tensor] = field(default_factory=list[torch.Tensor])
    rank: list[torch.Tensor | None] = field(default_factory=list[torch.Tensor | None])
    alive: list[list[int]] = field(default_factory=list[list[int]])

    @classmethod
    def choose(
        cls,
        drafts: Sequence[Proposal],
        p: Sequence[Distributions],
        alive: list[int],
        start: int,
        f: torch.Tensor,
        q: torch.Tensor | None,
    ) -> _Path:
        """Choose a path from position ``start`` on, where ``f`` is the residual of p.

        ``q``, if given, replaces the drafts' distribution at ``start``.
        """
        path = cls(alive[0], p=[f])
        depth = start
        while longer := [j for j in alive if len(drafts[j]) > depth]:
            row = q if q is not None else drafts[longer[0]].distributions.row(depth).to(f)
            width = max(len(path.p[-1]), len(row))  # vocabularies may differ at their ends
            path.p[-1], row = resize_row(path.p[-1], width), resize_row(row, width)
            rank, induced_row = preference(path.p[-1], row, len(longer))
            tokens = tuple(drafts[j].tokens[depth] for j in longer)
            token = tokens[0] if rank is None else highest(rank, tokens)
            path.tokens.append(token)
            path.q.append(row)
            path.induced.append(induced_row)
            path.rank.append(rank)
            path.alive.append(longer)
            alive = [j for j in longer if drafts[j].tokens[depth] == token]
            path.draft, depth, q = alive[0], depth + 1, None
            path.p.append(target_row(p[path.draft], depth))
        return path

    def excess(self, k: int, w: float) -> float:
        """Return D(w·p, q̃) at the path's token k + 1."""
        return mass(dense_residual(self.p[k], self.induced[k], w))


def preference(
    p: torch.Tensor, q: torch.Tensor, m: int
) -> tuple[torch.Tensor | None, torch.Tensor]:
    """Return ranks to choose by among m draws from q [V], and the chosen token's distribution.

    The ranks are None where the first draw is to be taken.
    """
    if m == 1:
        return None, q
    rank, best_q = best_of_draws(p, q, m)
    rejection, f = 1.0, p
    for _ in range(m):  # the chance that trying one draw after the other keeps none
        rest = residual(f, q, 1.0)
        total = float(rest.sum())
        rejection *= total / float(f.sum())
        if total <= 0.0:
            break
        f = rest / total
    acceptance = float(overlap(p, best_q))
    gain = acceptance - float(p.sum()) * (1.0 - rejection)
    return (rank, best_q) if gain > _MIN_GAIN else (None, q)


def best_of_draws(p: torch.Tensor, q: torch.Tensor, m: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return how p, q [V] rank tokens, and the distribution of the best of m draws, each [V]."""
    order = (p / q).where(q > 0.0, -1.0).argsort(stable=True)
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(order), device=order.device)
    sorted_q = q[order]
    below = sorted_q.cumsum(0) - sorted_q
    # F^m · ((1 + q/F)^m − 1) keeps the digits of a small q beside a large F. Beside a small F it
    # may be 0 · ∞, and there the difference loses nothing.
    growth = m * torch.log1p(sorted_q / below)
    lower = below**m
    best_q = torch.empty_like(q)
    best_q[order] = torch.where(
        growth < 1.0, lower * torch.expm1(growth), (below + sorted_q) ** m - lower
    )
    return rank, best_q


def highest(rank: torch.Tensor, tokens: tuple[int, ...]) -> int:
    return tokens[int(rank[torch.tensor(tokens, device=rank.device)].argmax())]


def restrict(q: torch.Tensor, rank: torch.Tensor | None, token: int) -> torch.Tensor:
    """Return q [V] given that the draw ranks below ``token``; without ranks, that it differs."""
    if rank is None:
        rest = q.index_fill(0, torch.tensor(token, device=q.device), 0.0)
    else:
        rest = q.where(rank < rank[token], 0.0)
    return rest / rest.sum()
