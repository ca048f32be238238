"""Token by token: accept while u < p/q, at the first rejection emit from norm(max(p − q, 0)).

Leviathan et al. (2023), Chen et al. (2023); MATH §1.
"""

from __future__ import annotations

from collections.abc import Sequence

from hierspec.core.rules import Acceptance, Batch, Verifier

from .formulas import Excess, capped_ratio, capped_ratios, draft_token_probs, set_ends


class Tokenwise(Verifier):
    """h_i = min(1, p_i(x_i)/q_i(x_i)); τ = the number of passes before the first failure."""

    name = "tokenwise"

    def acceptance(self, batch: Batch) -> Acceptance:
        h = capped_ratios(*draft_token_probs(batch))
        w = h.new_ones(h.shape[0], h.shape[1] + 1)
        return Acceptance(set_ends(h, h, batch.lengths), w)

    def decide(
        self,
        p_x: Sequence[float],
        q_x: Sequence[float],
        uniforms: Sequence[float],
        excess: Excess,
    ) -> tuple[int, float]:
        tau = 0
        for p, q, u in zip(p_x, q_x, uniforms, strict=False):
            if not u < capped_ratio(p, q):
                break
            tau += 1
        return tau, 1.0
