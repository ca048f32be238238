"""The exact latency of many chains at once: :func:`latency` for a search that asks thousands.

Levels are carried upwards for all chains together, in arrays ``[tokens, chains]``, and a draft's
verification needs two vectors where :mod:`.latency` builds a matrix: with N the length handed up,
``rejected[m]``: m kept, then a rejection; ``full[n]``: n tokens, all kept.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np

from .estimates import Chain, Estimates
from .latency import latency


class Quotes:
    """Milliseconds a token of chains, each computed once.

    Attributes:
        known: everything asked so far; infinite where a level cannot draft for the next.
    """

    def __init__(self, estimates: Estimates) -> None:
        self.estimates = estimates
        self.known: dict[Chain, float] = {}
        self._parts = [Quotes(one) for one in estimates.classes]
        survival = estimates.survival
        self._size = survival.shape[2]
        self._survival = np.ascontiguousarray(survival.transpose(2, 0, 1))  # [L+1, from, by]
        lost = np.zeros_like(self._survival)
        lost[:-1] = self._survival[:-1] - self._survival[1:]
        self._lost = lost  # the next token is the first one rejected
        self._draft = estimates.draft_ms.T
        self._verify = np.ascontiguousarray(estimates.verify_ms.transpose(2, 0, 1))
        self._windows: dict[tuple[int, int, int], tuple[np.ndarray, np.ndarray, np.ndarray]] = {}

    def ask(self, chains: Iterable[Chain]) -> np.ndarray:
        """[n] milliseconds a token, as :func:`latency` gives them."""
        chains = list(chains)
        if self._parts:
            ms = np.mean([part.ask(chains) for part in self._parts], axis=0)
            self.known.update(zip(chains, ms.tolist(), strict=True))
            return ms
        groups: dict[tuple[int, int], list[Chain]] = defaultdict(list)
        for chain in {chain: None for chain in chains if chain not in self.known}:
            if chain.plain or self._special(chain):
                self.known[chain] = self._alone(chain)
            else:
                groups[len(chain.budgets), chain.tail].append(chain)
        for group in groups.values():
            ms = self._together(group)
            self.known.update(zip(group, np.where(np.isnan(ms), np.inf, ms).tolist(), strict=True))
        return np.array([self.known[chain] for chain in chains])

    def _special(self, chain: Chain) -> bool:
        """Rare shapes that are not worth vectors: P2's orders, and tails that stop early."""
        return chain.order != "chain" or (
            chain.tail > 0 and chain.levels[0] in self.estimates.windows
        )

    def _alone(self, chain: Chain) -> float:
        try:
            ms = latency(self.estimates, chain).ms_per_token
        except ValueError:  # some level cannot draft for the next
            return np.inf
        return ms if ms == ms else np.inf

    def _together(self, chains: Sequence[Chain]) -> np.ndarray:
        """[B] for chains of one depth and one tail."""
        models = np.array([chain.levels for chain in chains]).T  # [depth + 1, B]
        budgets = np.array([chain.budgets for chain in chains]).T  # [depth, B]
        bonus = np.array(
            [[model not in chain.dropped_bonus for model in chain.levels] for chain in chains]
        ).T
        tail = chains[0].tail
        # A level holds at most T - 1 tokens before its last round, which adds N + 1.
        longest = int(budgets.sum(0).max()) + tail * (len(budgets) - 1)
        cap = min(self._size - 1, longest)
        rows = np.arange(len(chains))
        steps = np.arange(cap + 1)[:, None]

        lengths = (steps == budgets[0]).astype(np.float64)
        ms = self._draft[budgets[0], models[0]].astype(np.float64)
        stopping = [b for b in rows if models[0, b] in self.estimates.windows]
        for b in stopping:
            law, _, _ = self._window(int(models[0, b]), int(models[1, b]), int(budgets[0, b]))
            lengths[:, b] = _fit(law, cap)
            ms[b] = law @ self.estimates.draft_ms[models[0, b]]

        for level, (by, model) in enumerate(pairwise(models)):
            full = lengths * self._survival[: cap + 1, by, model]
            # [m]: P(N > m) (S(m) - S(m+1))
            more = np.zeros_like(lengths)
            more[:-1] = lengths[:0:-1].cumsum(0)[::-1]
            rejected = more * self._lost[: cap + 1, by, model]
            if level == 0:
                for b in stopping:
                    _, r, f = self._window(int(by[b]), int(model[b]), int(budgets[0, b]))
                    rejected[:, b], full[:, b] = _fit(r, cap), _fit(f, cap)
            elif tail:
                small = models[0]
                full, rejected = self._tailed(full, rejected, small, model, tail, cap)
                lengths = _shifted(lengths, tail)
                ms = ms + self._draft[tail, small]
            ms = ms + (lengths * self._verify[: cap + 1, by, model]).sum(0)
            if level == len(budgets) - 1:
                tokens = ((steps + 1) * (rejected + full)).sum(0)  # corrected or bonus included
                return np.divide(ms, tokens, out=np.full_like(ms, np.inf), where=tokens > 0)
            gain = _gain(rejected, full, bonus[level + 1])
            rounds, lengths = _renewal(gain, budgets[level + 1])
            ms = ms * rounds
        raise AssertionError("a chain ends with its target")

    def _tailed(
        self,
        full: np.ndarray,
        rejected: np.ndarray,
        small: np.ndarray,
        model: np.ndarray,
        tail: int,
        cap: int,
    ) -> tuple[np.ndarray, np.ndarray]:
        """``tail`` tokens of the smallest model after what was fully kept."""
        for j in range(tail):
            lost = _shifted(full, j) * self._lost[j, small, model]
            lost[cap] = 0.0  # beyond the cap: counted as fully kept below
            rejected = rejected + lost
        kept = np.zeros_like(full)
        kept[tail:] = full[: cap + 1 - tail] * self._survival[tail, small, model]
        for n in range(max(0, cap + 1 - tail), cap + 1):  # drafts that the cap cuts
            kept[cap] += full[n] * self._survival[cap - n, small, model]
        return kept, rejected

    def _window(self, i: int, k: int, budget: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Law of the length, and its (rejected, full), of a drafter that stops by itself."""
        if (i, k, budget) not in self._windows:
            law, kept = self._cut(i, self.estimates.target, budget), self._cut(i, k, budget)
            full = np.diagonal(kept).copy()
            lost = kept.copy()
            lost[:, :-1] -= kept[:, 1:]
            rejected = np.tril(lost, -1).sum(0)
            self._windows[i, k, budget] = law[:, 0], rejected, full
        return self._windows[i, k, budget]

    def _cut(self, i: int, k: int, budget: int) -> np.ndarray:
        """[L+1, L+1] joint law of length and kept tokens, the draft cut at ``budget``."""
        window = self.estimates.windows[i]
        cut = min(budget, window.shape[1] - 1)
        joint = np.zeros((self._size, self._size))
        joint[:cut, : cut + 1] = window[k, :cut, : cut + 1]
        joint[cut, : cut + 1] = window[k, cut:, : cut + 1].sum(0)
        return joint


def _fit(vector: np.ndarray, cap: int) -> np.ndarray:
    return vector[: cap + 1]  # a draft is never longer than its budget, which the cap covers


def _shifted(rows: np.ndarray, by: int) -> np.ndarray:
    """Moved up by ``by`` tokens; what passes the end stays there."""
    if not by:
        return rows.copy()
    out = np.zeros_like(rows)
    out[by:] = rows[:-by]
    out[-1] += rows[len(rows) - by :].sum(0)
    return out


def _gain(rejected: np.ndarray, full: np.ndarray, bonus: np.ndarray) -> np.ndarray:
    """Law of the tokens that one round adds, [L+1, B]."""
    plus_one = rejected + full * bonus
    gain = np.zeros_like(full)
    gain[1:] = plus_one[:-1]
    gain[-1] += plus_one[-1]
    if not bonus.all():
        gain += full * ~bonus
        gain[1] += gain[0]  # an empty draft still yields one token
        gain[0] = 0.0
    return gain


def _renewal(gain: np.ndarray, budgets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Expected rounds [B] until a level holds its budget, and the law of what it holds [L+1, B]."""
    size, count = gain.shape
    most = int(budgets.max())
    visits = np.zeros((most, count))
    visits[0] = 1.0
    for s in range(1, most):
        visits[s] = (visits[:s] * gain[s:0:-1]).sum(0)
    visits *= np.arange(most)[:, None] < budgets
    above = gain[::-1].cumsum(0)[::-1]  # [x]: P(gain ≥ x)
    lengths = visits[0] * gain
    for s in range(1, most):
        lengths[s:] += visits[s] * gain[: size - s]
        lengths[-1] += visits[s] * above[size - s]
    lengths *= np.arange(size)[:, None] >= budgets
    return visits.sum(0), lengths
