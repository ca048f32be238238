"""How often the best lossless rule for several drafts keeps one: the bound of all rules."""

from __future__ import annotations

import torch


def optimal_acceptance(p: torch.Tensor, q: torch.Tensor, num_drafts: int) -> float:
    """Return how likely the best lossless rule keeps one of several draft tokens of one position.

    The tokens are drawn independently from q. By max-flow and min-cut it is the minimum over all
    sets H of tokens of p(H) + 1 − q(H)^K: draws that all lie in H are accepted with p(H) at most.
    For a given q(H), p(H) is smallest where H takes the tokens in the order of p/q, and between two
    such sets the expression is concave in q(H), so only prefixes of that order are tried,
    whatever K.

    Args:
        p, q: [V], two distributions over the same tokens.
        num_drafts: K, at least 1. With one it is Σ min(p, q).
    """
    p, q = p.double(), q.double()
    possible = q > 0.0
    ratio_order = (p[possible] / q[possible]).argsort()
    p_below = torch.cat([p.new_zeros(1), p[possible][ratio_order].cumsum(0)])
    q_below = torch.cat([q.new_zeros(1), q[possible][ratio_order].cumsum(0)]).clamp(max=1.0)
    return float((p_below + 1.0 - q_below**num_drafts).min().clamp(0.0, 1.0))
