"""Match: the verifier draws its own tokens; drafted ones are accepted up to the first that differs.

A draft changes the speed, never the text. So the text at a seed can be plain decoding's at that
seed, token for token, whatever drafts: as the target's rule, ``match`` has the runtime key all
randomness by the position in the text, and every level draws by a race with the noise of its
position (:func:`hierspec.core.distributions.race`). Two distributions that race with the same noise
draw the same token with probability Σ_x 1 / Σ_z max(p(z)/p(x), q(z)/q(x)), at least
(1 − TV)/(1 + TV) [Daliri et al. 2024], where ``tokenwise`` keeps 1 − TV. Distributions are one-hot
to all levels then, and rules compare integers, as in greedy decoding.

Below another rule there is no shared noise: a position drafted twice would see the same noise
twice. The rule with uniforms of its own is: keep x with probability p(x), and at the first token
that is not accepted draw from p without it. That is what the methods here implement and ``certify``
enumerates; it never keeps more than the races do. [MATH §3]
"""

from __future__ import annotations

import torch

from hierspec.core.rules import Acceptance, Batch, Places, Verifier

from .formulas import draft_token_probs, set_ends


class Match(Verifier):
    """h_i = p_i(x_i), whatever q_i; τ = the number of passes before the first failure."""

    name = "match"
    draft_independent = True

    def acceptance(self, batch: Batch) -> Acceptance:
        h, _ = draft_token_probs(batch)
        return Acceptance(set_ends(h, h, batch.lengths), h.new_ones(h.shape[0], h.shape[1] + 1))

    def rest(self, p: torch.Tensor, w: torch.Tensor, batch: Batch, at: Places) -> torch.Tensor:
        return p.scatter(-1, batch.tokens[at].unsqueeze(-1), 0.0)
