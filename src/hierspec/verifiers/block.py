"""Block verification: the whole draft is judged at once; the longest passing prefix is accepted.

Sun et al. (2024). The *capped branch resampling* of P4 (§5.2, Algorithm 2 with the capping of its
Definition 5 applied at the draft's end too) is the same rule under another derivation, hence the
alias ``branch``: P4's min(1, r*_k) is w_k, and its D*(p, q)/D*(q, p) is h_k. See
``docs/branch-is-block.md``. No lossless rule for one draft accepts more in expectation without
further calls of the target. [MATH §1]
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hierspec.core.rules import Acceptance, Batch, Verifier

from . import formulas
from .formulas import (
    Excess,
    block_test,
    capped,
    log_products,
    pass_chance,
    prefix_weights,
    set_ends,
)


class Block(Verifier):
    """w_k = min(1, w_{k−1} r_k); h_n = w_n, below the end h_k = D/(D + (1 − w_k)).

    D = D(w_k p_{k+1}, q_{k+1}); τ is the largest k whose test passes.
    """

    name = "block"
    order = "backward"

    def acceptance(self, batch: Batch) -> Acceptance:
        w = capped(log_products(batch))
        w_k = w[:, 1:]
        n = w_k.shape[1]
        d = torch.zeros_like(w_k)
        if n > 1:  # the last column is an end or padding: it needs no vocabulary sum
            d[:, :-1] = formulas.excess(batch.p[:, 1:n], batch.q[:, 1:n], w[:, 1:n])
        h = torch.where(w_k < 1.0, pass_chance(d, w_k), 1.0)
        # D ≤ w_k, so h ≤ w_k; enforced, because `decide` skips the sum where u ≥ w_k.
        h = torch.minimum(h, w_k)
        return Acceptance(set_ends(h, w_k, batch.lengths), w)

    def decide(
        self,
        p_x: Sequence[float],
        q_x: Sequence[float],
        uniforms: Sequence[float],
        excess: Excess,
    ) -> tuple[int, float]:
        w = prefix_weights(p_x, q_x)
        for k in range(len(p_x), 0, -1):
            u = uniforms[k - 1]
            if u < w[k] and u < block_test(k, w, excess):  # h_k ≤ w_k: most need no sum
                return k, w[k]
        return 0, 1.0
