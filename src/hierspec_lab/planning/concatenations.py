"""P2's two orders over estimates: drafts of two models, both verified by the target (MATH §2).

All lengths of a pair are priced at once; where neither drafter stops by itself, in closed form.
:mod:`hierspec.planner.latency`, which convolves the runs of one chain, gives the same prices (a
test compares them); measured curves start afresh with every run of a model in both.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import combinations, product

import numpy as np

from hierspec.planner.estimates import Chain, Estimates, Order
from hierspec.planner.latency import prices


def concatenations(estimates: Estimates, models: Iterable[int]) -> Iterator[tuple[float, Chain]]:
    """Yield (milliseconds a token, best chain) of each order of each pair of drafters.

    Drafts beyond the estimates' longest are charged as that long and keep all their tokens, so
    the figure is exact below that length and too low above. A drafter that stops by itself, such as
    a look-up, is appended to a run of another (the horizontal order); those of several drafts at
    once are left out.
    """
    target = estimates.target
    drafters = [
        i
        for i in sorted(models)
        if i != target and i not in estimates.multi_drafters and estimates.can_draft(i, target)
    ]
    n = np.arange(1, estimates.max_budget + 1)[:, None]
    m = np.arange(1, estimates.max_budget + 1)[None]
    for small, mid in combinations(drafters, 2):
        if estimates.stops_by_itself(mid):
            continue
        if estimates.stops_by_itself(small):
            models = (small, mid, target)
            lengths = product(range(1, estimates.max_budget + 1), repeat=2)
            chains = [Chain(models, pair, order="horizontal") for pair in lengths]
            each = prices(estimates, chains)[0].sum(0)
            yield float(each.min()), chains[int(each.argmin())]
            continue
        for order in ("interleaved", "horizontal"):
            ms = _prices(estimates, small, mid, n, m, order)
            best = np.unravel_index(ms.argmin(), ms.shape)
            budgets = int(n[best[0], 0]), int(m[0, best[1]])
            yield float(ms[best]), Chain((small, mid, target), budgets, order=order)


def _prices(
    estimates: Estimates, small: int, mid: int, n: np.ndarray, m: np.ndarray, order: Order
) -> np.ndarray:
    """Return [n, m] milliseconds a token."""
    target, last = estimates.target, estimates.survival.shape[2] - 1
    s, q = estimates.survival[small, target], estimates.survival[mid, target]
    from_s, from_q = np.cumsum(s) - 1.0, np.cumsum(q) - 1.0  # tokens kept of a run of that length
    draft_s, draft_q = estimates.draft_ms[small], estimates.draft_ms[mid]
    if order == "horizontal":
        length, drafting = m + n, draft_q[m] + draft_s[n]
        tokens = 1.0 + from_q[m] + q[m] * from_s[n]
    else:
        length, drafting = m * (n + 1), m * (draft_s[n] + draft_q[1])
        block = s[n] * q[1]  # probability that all of a block is kept
        blocks = sum(np.where(r < m, block**r, 0.0) for r in range(m.size))
        tokens = 1.0 + (from_s[n] + block) * blocks
    call = estimates.verify_ms[mid, target, np.minimum(length, last)]
    return (drafting + call) / tokens
