"""Milliseconds a token of a hierarchy, overshoot and measured curves included (MATH §4).

A level hands up drafts of random length, of which the level above accepts a random part. Rounds of
a level are independent, so its number of rounds is a renewal count, and the length of what it hands
up is the renewal's overshoot. With independent acceptances and fixed prices this is exact for the
algorithm; with measured survival curves and length-dependent costs it is the general model.

A search asks for thousands of chains, so chains of one shape are priced together, in arrays
[T, B]: T - 1 tokens are the longest hand-up, and each of B columns is a chain.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np

from .estimates import Chain, Estimates

Kept = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True, slots=True)
class Latency:
    """The price of a chain.

    Attributes:
        spent: milliseconds a token of each of the chain's levels, smallest first.
    """

    ms_per_token: float
    tokens_per_call: float
    spent: tuple[float, ...]


def latency(estimates: Estimates, chain: Chain) -> Latency:
    """Price ``chain``: exactly, or by the general model where curves and costs are measured.

    Raises:
        HierspecError: a level cannot draft for the one above it.
    """
    if estimates.classes:
        return _mean([latency(part, chain) for part in estimates.classes])
    estimates.validate(chain)
    ms, tokens = prices(estimates, [chain])
    return Latency(float(ms.sum()), float(tokens[0]), tuple(ms[:, 0].tolist()))


def _mean(parts: Sequence[Latency]) -> Latency:
    """Average over classes of text with equally many tokens: milliseconds and calls per token."""
    calls = sum(1.0 / part.tokens_per_call for part in parts)
    levels = zip(*(part.spent for part in parts), strict=True)
    return Latency(
        sum(part.ms_per_token for part in parts) / len(parts),
        len(parts) / calls,
        tuple(sum(level) / len(parts) for level in levels),
    )


class PriceCache:
    """Milliseconds a token of chains, each computed once.

    Attributes:
        ms_by_chain: every price computed so far; infinite where a level cannot draft for the next.
    """

    def __init__(self, estimates: Estimates) -> None:
        self.estimates = estimates
        self.ms_by_chain: dict[Chain, float] = {}
        self._classes = [PriceCache(part) for part in estimates.classes]

    def price(self, chains: Iterable[Chain]) -> np.ndarray:
        """Return [n] milliseconds a token, as :func:`latency` computes them."""
        chains = list(chains)
        if self._classes:
            ms = np.mean([part.price(chains) for part in self._classes], axis=0)
            self.ms_by_chain.update(zip(chains, ms.tolist(), strict=True))
            return ms
        groups: dict[tuple[object, ...], list[Chain]] = defaultdict(list)
        for chain in dict.fromkeys(chain for chain in chains if chain not in self.ms_by_chain):
            budgets = chain.budgets if chain.order == "interleaved" else ()
            groups[len(chain.budgets), chain.tail > 0, chain.order, budgets].append(chain)
        for group in groups.values():
            ms = prices(self.estimates, group)[0].sum(0)
            self.ms_by_chain.update(
                zip(group, np.where(np.isnan(ms), np.inf, ms).tolist(), strict=True)
            )
        return np.array([self.ms_by_chain[chain] for chain in chains])


def prices(estimates: Estimates, chains: Sequence[Chain]) -> tuple[np.ndarray, np.ndarray]:
    """Price chains of one shape: depth, order, all with tails or none; interleaved, also budgets.

    Returns:
        [levels, B] milliseconds a token of each level, smallest first (NaN or infinite where a
        level cannot draft for the next), and [B] tokens a call of the target.
    """
    if chains[0].plain:
        steps = [estimates.step_ms(chain.models[0]) for chain in chains]
        return np.array([steps]), np.ones(len(chains))
    stack = _Stack(estimates, chains)
    drafts = stack.hand_up()
    rejected, full = drafts.kept_by(stack.models[-1])
    tokens = ((stack.lengths + 1) * (rejected + full)).sum(0)  # the token of its own included
    spent = drafts.spent + stack.call_ms(drafts, len(stack.models) - 1)
    return np.divide(spent, tokens, out=np.full_like(spent, np.inf), where=tokens > 0), tokens


@dataclass(frozen=True, slots=True, eq=False)
class _Drafts:
    """The drafts that the levels priced so far hand up.

    Attributes:
        lengths: [T, B] distribution of the length.
        kept_by: of verifiers [B], two arrays [T, B]: the probability that exactly m tokens are
            accepted and the next one is rejected; and that there are n tokens, all of them
            accepted.
        spent: [levels, B] expected milliseconds of each level.
        owner: index of the level whose tokens they are; of several the largest.
    """

    lengths: np.ndarray
    kept_by: Callable[[np.ndarray], Kept]
    spent: np.ndarray
    owner: int


class _Stack:
    """Levels of B chains of one shape, carried upwards together."""

    def __init__(self, estimates: Estimates, chains: Sequence[Chain]) -> None:
        self.estimates, self.shape = estimates, chains[0]
        self.models = np.array([chain.models for chain in chains]).T  # [levels, B]
        self.budgets = np.array([chain.budgets for chain in chains]).T
        self.bonus = np.array(
            [[model not in chain.dropped_bonus for model in chain.models] for chain in chains]
        ).T
        # A level holds at most budget - 1 tokens before its last round, which adds all from below
        # and one.
        self.tails = np.array([chain.tail for chain in chains])
        longest = int((self.budgets.sum(0) + self.tails * (len(self.budgets) - 1)).max())
        if self.shape.order == "interleaved":
            longest = (self.shape.budgets[0] + 1) * self.shape.budgets[1]
        self.lengths = np.arange(min(estimates.longest, longest) + 1)[:, None]
        # Curves by length first, so that gathering many pairs gives [T, B].
        self._survival = estimates.survival.transpose(2, 0, 1)[: len(self.lengths)]
        self._verify = {
            bonus: estimates.check_ms(bonus).transpose(2, 0, 1)[: len(self.lengths)]
            for bonus in (True, False)
        }

    def hand_up(self) -> _Drafts:
        """Return the drafts that reach the target."""
        if self.shape.order != "chain":
            n, m = self.budgets
            if self.shape.order == "horizontal":
                return self.join(self.draft(1, m), self.draft(0, n))
            block = self.draft(0, n), self.draft(1, np.ones_like(n))
            return reduce(self.join, block * self.shape.budgets[1])
        drafts = self.draft(0, self.budgets[0])
        tail = self.draft(0, self.tails) if self.shape.tail else None
        for level in range(1, len(self.budgets)):
            drafts = self.verify(drafts, level)
            if tail is not None:
                drafts = self.join(drafts, tail)
        return drafts

    def draft(self, level: int, budgets: np.ndarray) -> _Drafts:
        """Draft ``budgets`` [B] tokens one by one, or fewer if the drafter stops by itself."""
        models = self.models[level]
        lengths = (self.lengths == budgets).astype(np.float64)
        ms = self.estimates.draft_ms[models, budgets].astype(np.float64)
        joints = [
            (np.flatnonzero(models == model), joint)
            for model, joint in self.estimates.joint_survival.items()
            if (models == model).any()
        ]
        for columns, joint in joints:
            stops = joint[self.estimates.target, :, :1]
            later = _fit(stops[::-1].cumsum(0)[::-1], len(lengths))  # stops there or later
            lengths[:, columns] = _cut_at_budget(
                _fit(stops, len(lengths)), later, self.lengths, budgets[columns]
            )
            costs = self.estimates.draft_ms[models[columns], : len(lengths)]
            ms[columns] = (lengths[:, columns] * costs.T).sum(0)

        def kept_by(verifiers: np.ndarray) -> Kept:
            rejected, full = self._kept(lengths, models, verifiers)
            for columns, joint in joints:
                joint = joint[verifiers[columns]]  # [columns, M+1, M+1]
                # [m]: at least m tokens and the first m accepted; m tokens in all, each of them
                # accepted.
                reached = _fit(joint.sum(1).T, len(lengths) + 1)
                ended = _fit(np.diagonal(joint, axis1=1, axis2=2).T, len(lengths))
                full[:, columns] = _cut_at_budget(
                    ended, reached[:-1], self.lengths, budgets[columns]
                )
                lost = reached[:-1] - ended - reached[1:]
                rejected[:, columns] = np.where(self.lengths < budgets[columns], lost, 0.0)
            return rejected, full

        return _Drafts(lengths, kept_by, self._row(level, ms), level)

    def verify(self, below: _Drafts, level: int) -> _Drafts:
        """Run rounds of a level on what is handed up to it until it holds its budget."""
        models, budgets = self.models[level], self.budgets[level]
        rejected, full = below.kept_by(models)
        rounds, lengths = _renewal(_gain(rejected, full, self.bonus[level]), budgets)
        return _Drafts(
            lengths,
            lambda verifiers: self._kept(lengths, models, verifiers),
            (below.spent + self.call_ms(below, level)) * rounds,
            level,
        )

    def join(self, first: _Drafts, second: _Drafts) -> _Drafts:
        """Join the drafts of two runs, of which the second is short."""

        def kept_by(verifiers: np.ndarray) -> Kept:
            rejected, full = first.kept_by(verifiers)
            lost, all_kept = (_convolve(full, part) for part in second.kept_by(verifiers))
            all_kept[-1] += lost[-1]  # tokens beyond the longest draft are not verified
            lost[-1] = 0.0
            return rejected + lost, all_kept

        return _Drafts(
            _convolve(first.lengths, second.lengths),
            kept_by,
            first.spent + second.spent,
            max(first.owner, second.owner),
        )

    def call_ms(self, drafts: _Drafts, level: int) -> np.ndarray:
        """Return [levels, B] milliseconds of one call of a level on ``drafts``."""
        pair = self.models[drafts.owner], self.models[level]
        verify = np.where(self.bonus[level], *(self._verify[b][:, *pair] for b in (True, False)))
        return self._row(level, (drafts.lengths * verify).sum(0))

    def _kept(self, lengths: np.ndarray, models: np.ndarray, verifiers: np.ndarray) -> Kept:
        """Return what is accepted of drafts whose length says nothing of their tokens."""
        survival = self._survival[:, models, verifiers]
        rejected = np.zeros_like(lengths)
        rejected[:-1] = lengths[:0:-1].cumsum(0)[::-1] * (survival[:-1] - survival[1:])
        return rejected, lengths * survival

    def _row(self, level: int, ms: np.ndarray) -> np.ndarray:
        """Return [levels, B] milliseconds: ``ms`` for one level, 0 for the others."""
        spent = np.zeros(self.models.shape)
        spent[level] = ms
        return spent


def _cut_at_budget(
    shorter: np.ndarray, full: np.ndarray, lengths: np.ndarray, budgets: np.ndarray
) -> np.ndarray:
    return np.where(lengths < budgets, shorter, np.where(lengths == budgets, full, 0.0))


def _fit(rows: np.ndarray, size: int) -> np.ndarray:
    out = np.zeros((size, rows.shape[1]))
    out[: len(rows)] = rows[:size]
    return out


def _convolve(rows: np.ndarray, short: np.ndarray) -> np.ndarray:
    """Return the distribution [T, B] of a sum, cut at the end; ``short`` has few nonzero rows."""
    out = np.zeros_like(rows)
    for n in np.flatnonzero(short.any(1)):
        out[n:] += rows[: len(rows) - n] * short[n]
        out[-1] += rows[len(rows) - n :].sum(0) * short[n]
    return out


def _gain(rejected: np.ndarray, full: np.ndarray, bonus: np.ndarray) -> np.ndarray:
    """Return the distribution [T, B] of tokens added by a round; no bonus: none after ``full``."""
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
    """Return expected rounds [B] until a level holds its budget, and its tokens' distribution."""
    size, count = gain.shape
    largest = int(budgets.max())
    visits = np.zeros((largest, count))  # u(s): probability that some round ends with s tokens
    visits[0] = 1.0
    for s in range(1, largest):
        visits[s] = (visits[:s] * gain[s:0:-1]).sum(0)
    visits *= np.arange(largest)[:, None] < budgets
    above = gain[::-1].cumsum(0)[::-1]  # [x]: P(gain ≥ x)
    lengths = visits[0] * gain
    for s in range(1, largest):
        lengths[s:] += visits[s] * gain[: size - s]
        lengths[-1] += visits[s] * above[size - s]
    lengths *= np.arange(size)[:, None] >= budgets
    return visits.sum(0), lengths
