"""Block verification: the whole draft is judged at once; the longest passing prefix is kept.

Sun et al. (2024). The *capped branch resampling* of P4 (§5.2, Algorithm 2 with the capping of its
Definition 5 applied at the draft's end too) is the same law under another derivation, hence the
alias ``branch``: P4's min(1, r*_k) is w_k, and its D*(p, q)/D*(q, p) is h_k. See
``docs/branch-is-block.md``. No lossless one-draft rule accepts more in expectation. [MATH §1]
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from hierspec.core.rules import Acceptance, Batch, Verifier

from .ratios import at_ends, capped, excess, log_products
from .registry import register


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
            d[:, :-1] = excess(batch.p[:, 1:n], batch.q[:, 1:n], w[:, 1:n])
        h = torch.where(w_k < 1.0, d / (d + (1.0 - w_k)), 1.0)
        # D ≤ w_k, so h ≤ w_k; stated, because `decide` spares itself the sum where u ≥ w_k.
        h = torch.minimum(h, w_k)
        return Acceptance(at_ends(h, w_k, batch.lengths), w)

    def decide(
        self,
        p_x: Sequence[float],
        q_x: Sequence[float],
        uniforms: Sequence[float],
        excess: Callable[[int, float], float],
    ) -> tuple[int, float]:
        w = prefix_weights(p_x, q_x)
        n = len(p_x)
        for k in range(n, 0, -1):
            u, w_k = uniforms[k - 1], w[k]
            if u >= w_k:  # h_k ≤ w_k: no row of the vocabulary need be read
                continue
            if k == n or w_k >= 1.0:
                return k, w_k
            d = excess(k, w_k)
            if u * (d + (1.0 - w_k)) < d:
                return k, w_k
        return 0, 1.0


def prefix_weights(p_x: Sequence[float], q_x: Sequence[float]) -> list[float]:
    """w_0..w_n of one draft, as :func:`ratios.capped` gives them, without tensors."""
    w, log_w = [1.0], 0.0
    for p, q in zip(p_x, q_x, strict=True):
        if not p > 0.0:  # NaN too: min(0.0, nan) is 0.0
            log_w = -math.inf
        elif q > 0.0:
            log_w = min(0.0, log_w + math.log(p) - math.log(q))
        elif log_w > -math.inf:
            log_w = 0.0
        w.append(math.exp(log_w))
    return w


BLOCK = register(Block(), "branch")
