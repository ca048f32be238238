"""What a verification rule is: acceptance probabilities, a residual, and a scan of random tests.

A rule is split. The deterministic half, :meth:`Verifier.acceptance`, turns rows
into numbers for many drafts at once; the random half, :func:`scan`, is shared by all rules. So
verification batches over sequences, and the exact interpreter enumerates τ from
:func:`tau_probabilities` instead of drawing it. Target ``p`` always comes before draft ``q``.

Shapes: B drafts, padded to n tokens, over a vocabulary of V; true lengths in ``lengths`` [B].
p is [B, n+1, V], q is [B, n, V]; row n_b of p follows draft b's real end.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from operator import eq
from typing import Any, ClassVar, Literal

import torch

from hierspec.errors import HierspecError

from .distributions import Distributions
from .proposals import Proposal, Verdict


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Drafts to verify together.

    Padding holds arbitrary values, even rows of other drafts, and must not affect a decision: a
    rule gives it h = 0.

    Attributes:
        p: [B, n+1, V] the verifier's distributions. Rows past a draft's end + 1 are padding.
        q: [B, n, V] what the draft tokens were drawn from. Rows past the end are padding.
        tokens: [B, n] int64; padding is 0.
        lengths: [B] int64, the real n of each draft.
        scores: [B, n+1, V] untempered scores of the verifier, only where the rule reads them.
    """

    p: torch.Tensor
    q: torch.Tensor
    tokens: torch.Tensor
    lengths: torch.Tensor
    scores: torch.Tensor | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Acceptance:
    """The deterministic half of a decision.

    Attributes:
        h: [B, n] float64: column k−1 is the chance that the scan's test at length k passes;
            0 in padding.
        w: [B, n+1] float64: after stopping at τ, the recovered token is drawn from
            norm(max(w_τ·p_{τ+1} − q_{τ+1}, 0)). Above 1 only where a rule does not cap.
    """

    h: torch.Tensor
    w: torch.Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Stop:
    """Where a multi-draft rule stopped.

    Attributes:
        draft: a draft that begins with all accepted tokens.
        num_accepted: τ, how many of its tokens were accepted.
        distribution: [V] of the token that follows: the last residual, or the bonus row.
    """

    draft: int
    num_accepted: int
    distribution: torch.Tensor


Places = tuple[torch.Tensor, torch.Tensor]  # drafts [B] and a column of each [B]
Choice = Generator[float, bool, Stop]  # yields acceptance probabilities, is sent the outcomes


class Verifier:
    """A verification rule. Subclasses are stateless, hashable and registered by name.

    Attributes:
        name: as in configuration files.
        order: ``"forward"``: τ is the number of tests passed before the first failure;
            ``"backward"``: τ is the largest k whose test passes (scanned from the end).
        exact: emitted tokens follow the verifier's own distribution, whatever the level below.
        exact_when: the conditions under which it is exact, in words; shown in messages.
        fixed_length: it needs a draft whose length was fixed beforehand.
        reads_scores: it needs ``Batch.scores``.
        exact_as_draft: it reports the true distributions of what it hands up, so that an exact rule
            above it stays exact. True for every exact rule.
        reports_model_distributions: each distribution it reports is its model's next-token
            distribution, which depends on the context alone, whatever was drafted or rejected in
            the round before.
        multi_draft: it takes several drafts from one position (:meth:`choose`).
        distinct: it needs the first tokens of those drafts drawn without replacement.
        options: keys of a hierarchy file that are its parameters, fields of a frozen dataclass.
        draft_independent: what it draws does not depend on the draft, so it is exact over any. As
            the target's rule it makes all levels draw with the noise of each position
            (:func:`hierspec.core.distributions.race`), so that drafts often equal them.
    """

    name: ClassVar[str]
    order: ClassVar[Literal["forward", "backward"]] = "forward"
    exact: ClassVar[bool] = True
    exact_when: ClassVar[str] = "always"
    fixed_length: ClassVar[bool] = False
    reads_scores: ClassVar[bool] = False
    exact_as_draft: ClassVar[bool] = True
    reports_model_distributions: ClassVar[bool] = True
    multi_draft: ClassVar[bool] = False
    distinct: ClassVar[bool] = False
    options: ClassVar[tuple[str, ...]] = ()
    draft_independent: ClassVar[bool] = False

    def exact_for(self, greedy: bool) -> bool:
        """Return whether it is exact as the final rule of greedy decoding, or of sampling."""
        return self.exact

    def with_options(self, **options: Any) -> Verifier:
        """Return this rule with other parameters; an option that it does not have is refused."""
        if unknown := sorted(set(options) - set(self.options)):
            raise HierspecError(f"verifier {self.name!r} has no option {unknown[0]!r}")
        rule: Any = self
        return replace(rule, **options) if options else self

    def acceptance(self, batch: Batch) -> Acceptance:
        """Compute the acceptance probabilities and residual weights of every draft."""
        raise HierspecError(f"verifier {self.name!r} has no method acceptance(batch): write it")

    def correction(self, batch: Batch, accepted: Acceptance, tau: torch.Tensor) -> torch.Tensor:
        """Return the distribution of the token after the accepted ones, [B, V], not always
        normalised.

        ``tau`` is [B]. At τ = n it is the bonus row p_{n+1}; else :meth:`rest`, and p itself where
        that vanishes by rounding (p = q there).
        """
        drafts = torch.arange(len(tau), device=batch.p.device)
        p, n = batch.p[drafts, tau], batch.tokens.shape[1]
        if n == 0:
            return p
        rest = self.rest(p, accepted.w[drafts, tau], batch, (drafts, tau.clamp(max=n - 1)))
        if rest.shape != p.shape:  # it would be broadcast, from one draft to others
            raise HierspecError(f"{list(p.shape)}, not {list(rest.shape)}")
        keep_p = (tau == batch.lengths) | (rest.sum(-1) <= 0.0)
        return torch.where(keep_p.unsqueeze(-1), p, rest)

    def rest(self, p: torch.Tensor, w: torch.Tensor, batch: Batch, at: Places) -> torch.Tensor:
        """Return what the rejected tokens leave of their rows p [B, V], w [B]: the residual."""
        q = batch.q[at].to(p.dtype)
        scale = w.clamp(min=1.0)  # an uncapped w may overflow float32: shrink q instead
        return residual(p, q / scale.unsqueeze(-1).to(p.dtype), w / scale)

    def reported(self, batch: Batch) -> torch.Tensor:
        """Return the distributions of the tokens handed up, [B, n+1, V]: here, the verifier's."""
        return batch.p

    def decide(
        self,
        p_x: Sequence[float],
        q_x: Sequence[float],
        uniforms: Sequence[float],
        excess: Callable[[int, float], float],
    ) -> tuple[int, float] | None:
        """Return (τ, w_τ) of one draft by a shortcut on the host; ``None`` where the rule has none.

        The decision is that of :meth:`acceptance` and :func:`scan` with the same uniforms, made
        from the probabilities of the n drafted tokens. ``excess(k, w)`` is D(w·p_{k+1}, q_{k+1}), a
        sum over the vocabulary, to be called only where the decision depends on it. Only for rules
        that keep :meth:`correction`, :meth:`rest` and :meth:`reported` as they are.
        """
        return None

    def greedy(
        self, draft: tuple[int, ...], choices: tuple[int, ...], scores: torch.Tensor | None
    ) -> int:
        """Return τ where both sides are one-hot: ``choices`` are the verifier's n+1 argmaxes."""
        if draft and self.scores_decide:
            assert scores is not None, "the rule compares a token's score with the best"
            n, device = len(draft), scores.device
            tokens, own = torch.tensor(draft, device=device), torch.tensor(choices, device=device)
            return count_accepted(self.accepted_by_scores(tokens, own[:n], scores[:n]))
        return count_accepted(map(eq, draft, choices))

    @property
    def scores_decide(self) -> bool:
        """Whether :meth:`accepted_by_scores` decides greedily, not equality with the choices."""
        return False

    def accepted_by_scores(
        self, tokens: torch.Tensor, choices: torch.Tensor, scores: torch.Tensor
    ) -> torch.Tensor:
        """Return which of n drafted tokens a greedy verifier keeps, [n] bool, without a wait.

        Here, those that are its own choices.

        Args:
            tokens, choices: [n] int64, drafted and the verifier's own.
            scores: [n, V] untempered.
        """
        return tokens == choices

    def choose(self, drafts: Sequence[Proposal], p: Sequence[Distributions]) -> Choice:
        """Verify k drafts from the same position, test by test; only where ``multi_draft`` is set.

        Args:
            drafts: in the order they were drawn, each with what its tokens were drawn from.
            p: for draft j the verifier's n_j + 1 rows after its first 0 … n_j tokens.
        """
        raise HierspecError(f"verifier {self.name!r} has no method choose(drafts, p): write it")

    def complete(
        self, node: Any, pending: tuple[int, ...], draft: Proposal, verdict: Verdict
    ) -> Generator[Any, Any, Verdict]:
        """Yield the requests that a round needs after its check; most rules have none."""
        return verdict
        yield  # unreachable: it makes this method a generator


def count_accepted(accepted: Iterable[object] | torch.Tensor) -> int:
    """Return how many of n flags, [n] if a tensor, there are before the first false one."""
    if isinstance(accepted, torch.Tensor):
        return int(accepted.long().cumprod(0).sum())
    return sum(1 for _ in takewhile(bool, accepted))


def residual(p: torch.Tensor, q: torch.Tensor, w: torch.Tensor | float) -> torch.Tensor:
    """Return max(w·p − q, 0) of rows [..., V] in p's precision; w ≤ 1, one for all or one a row."""
    if isinstance(w, torch.Tensor):
        p = w.unsqueeze(-1).to(p.dtype) * p
    elif w != 1.0:
        p = p * w
    return torch.sub(p, q).clamp_(min=0.0)


def scan(
    order: Literal["forward", "backward"], h: torch.Tensor, uniforms: torch.Tensor
) -> torch.Tensor:
    """Return τ per draft, [B] int64, from h [B, n] and fresh uniforms [B, n].

    The test is strict (u < h), so that h = 0 never passes, and h = 0 in padding ends a forward
    scan and is skipped by a backward one.
    """
    passed = uniforms < h
    if order == "forward":
        return passed.long().cumprod(-1).sum(-1)
    lengths = torch.arange(1, h.shape[1] + 1, device=h.device)
    return (passed * lengths).amax(-1) if h.shape[1] else passed.sum(-1)


def tau_probabilities(order: Literal["forward", "backward"], h: torch.Tensor) -> torch.Tensor:
    """Return P(τ = k), k = 0..n, from h [..., n] → [..., n+1]; padding has h = 0, gets P = 0."""
    ones = h.new_ones(*h.shape[:-1], 1)
    if order == "forward":
        return torch.cat([ones, h.cumprod(-1)], -1) * torch.cat([1 - h, ones], -1)
    none_later = (1 - h).flip(-1).cumprod(-1).flip(-1)  # no pass at k, k+1, …, n
    return torch.cat([ones, h], -1) * torch.cat([none_later, ones], -1)
