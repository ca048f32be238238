"""What a hierarchy costs per token: the exact model, overshoot and measured curves included.

A level hands up an :class:`Offer`: how long it is, how much of it the level above keeps, and what
it cost. Rounds of a level are independent, so its number of rounds is a renewal count, and the
length of what it hands up is the renewal's overshoot (MATH §4). With independent acceptances and
fixed prices this is exact for the algorithm; with measured survival curves and length-dependent
costs it is the general model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np

from hierspec.errors import HierspecError

from .estimates import Chain, Estimates

Kept = Callable[[int], np.ndarray]


@dataclass(frozen=True, slots=True, eq=False)
class Offer:
    """What a level hands up.

    Attributes:
        lengths: [L+1] law of its length.
        kept: ``kept(k)[n, m]``, [L+1, L+1]: probability that it is n tokens long and model k keeps
            the first m of them (0 for m > n).
        spent: [K+1] expected milliseconds of each model.
    """

    lengths: np.ndarray
    kept: Kept
    spent: np.ndarray


@dataclass(frozen=True, slots=True)
class Latency:
    """The price of a chain.

    Attributes:
        ms_per_token: expected milliseconds a token.
        tokens_per_call: expected tokens per call of the target.
        spent: milliseconds a token of each of the chain's levels, smallest first.
    """

    ms_per_token: float
    tokens_per_call: float
    spent: tuple[float, ...]


def latency(estimates: Estimates, chain: Chain) -> Latency:
    """The exact price of ``chain``, or the general one where curves and costs are measured.

    Raises:
        ValueError: a level cannot draft for the one above it.
    """
    if estimates.classes:
        return _mean([latency(one, chain) for one in estimates.classes])
    target = chain.levels[-1]
    if chain.plain:
        ms = estimates.plain_ms if target == estimates.target else estimates.draft_ms[target, 1]
        return Latency(float(ms), 1.0, (float(ms),))
    offer, below = handed_up(estimates, chain)
    kept = offer.kept(target)
    tokens = float(kept.sum())  # Σ_m P(first m kept), the corrected or bonus token included
    spent = offer.spent.copy()
    spent[target] += _call_ms(estimates, below, target, offer.lengths)
    per_token = spent / tokens
    levels = tuple(float(per_token[i]) for i in chain.levels)
    return Latency(float(per_token.sum()), tokens, levels)


def _mean(parts: Sequence[Latency]) -> Latency:
    """Over kinds of text with equally many tokens: costs average by token, so do calls."""
    calls = sum(1.0 / part.tokens_per_call for part in parts)
    levels = zip(*(part.spent for part in parts), strict=True)
    return Latency(
        sum(part.ms_per_token for part in parts) / len(parts),
        len(parts) / calls,
        tuple(sum(level) / len(parts) for level in levels),
    )


def handed_up(estimates: Estimates, chain: Chain) -> tuple[Offer, int]:
    """What the target is offered, and the model that hands it up."""
    *models, _ = chain.levels
    if chain.order == "interleaved":
        (small, mid), (n, m) = models, chain.budgets
        block = (drafted(estimates, small, n), drafted(estimates, mid, 1))
        return reduce(joined, block * m), mid
    if chain.order == "horizontal":
        (small, mid), (n, m) = models, chain.budgets
        return joined(drafted(estimates, mid, m), drafted(estimates, small, n)), mid
    offer, below = drafted(estimates, models[0], chain.budgets[0]), models[0]
    for model, budget in zip(models[1:], chain.budgets[1:], strict=True):
        offer = verified(
            estimates, offer, below, model, budget, bonus=model not in chain.dropped_bonus
        )
        if chain.tail:
            offer = joined(offer, drafted(estimates, models[0], chain.tail))
        below = model
    return offer, below


def drafted(estimates: Estimates, model: int, budget: int) -> Offer:
    """``budget`` tokens one by one, or fewer where the drafter has a window of its own."""
    size = estimates.survival.shape[2]
    window = estimates.windows.get(model)

    def kept(k: int) -> np.ndarray:
        out = np.zeros((size, size))
        if window is None:
            out[budget, : budget + 1] = estimates.survival[model, k, : budget + 1]
        else:
            cut = min(budget, window.shape[1] - 1)
            out[:cut, : cut + 1] = window[k, :cut, : cut + 1]
            out[cut, : cut + 1] = window[k, cut:, : cut + 1].sum(0)
        return out

    lengths = np.zeros(size)
    if window is None:
        lengths[budget] = 1.0
    else:  # the law of the length is whoever's column m = 0
        lengths += kept(estimates.target)[:, 0]
    return _offer(lengths, kept, model, estimates, lengths @ estimates.draft_ms[model])


def verified(
    estimates: Estimates, below: Offer, by: int, model: int, budget: int, bonus: bool = True
) -> Offer:
    """Rounds of ``model`` over what ``by`` hands up, until it holds at least ``budget`` tokens."""
    gain = round_gain(below.kept(model), bonus)
    rounds, lengths = renewal(gain, budget)

    def kept(k: int) -> np.ndarray:
        out = np.tril(np.broadcast_to(estimates.survival[model, k], (len(lengths),) * 2))
        return lengths[:, None] * out

    offer = _offer(
        lengths, kept, model, estimates, _call_ms(estimates, by, model, below.lengths) * rounds
    )
    return replace(offer, spent=offer.spent + below.spent * rounds)


def joined(first: Offer, second: Offer) -> Offer:
    """A run of one, then a run of another."""
    size = len(first.lengths)

    def shifted(rows: np.ndarray, n: int) -> np.ndarray:
        out = np.zeros_like(rows)
        if n < size:
            out[n:] = rows[: size - n]
        out[-1] += rows[max(0, size - n) :].sum(0)
        return out

    lengths = sum(p * shifted(second.lengths, n) for n, p in enumerate(first.lengths) if p)

    def kept(k: int) -> np.ndarray:
        a, b = first.kept(k), second.kept(k)
        out = np.zeros((size, size))
        for n in np.flatnonzero(first.lengths).tolist():
            out[:, : n + 1] += np.outer(shifted(second.lengths, n), a[n, : n + 1])
            tail = shifted(b, n)[:, 1 : size - n]
            out[:, n + 1 :] += a[n, n] * tail
        return np.tril(out)

    return Offer(np.asarray(lengths), kept, first.spent + second.spent)


def round_gain(kept: np.ndarray, bonus: bool = True) -> np.ndarray:
    """Law of the tokens that one round adds, [L+1], from the joint law of length and kept tokens.

    Kept tokens and the corrected or bonus one; without bonus a fully kept draft adds only itself.
    """
    full = np.diagonal(kept).copy()
    rejected = kept.copy()
    rejected[:, :-1] -= kept[:, 1:]
    np.fill_diagonal(rejected, 0.0)
    exactly = np.tril(rejected, -1).sum(0)  # [m]: m kept, then a rejection
    gain = np.zeros(len(kept))
    gain[1:] = exactly[:-1]
    gain[-1] += exactly[-1]
    if bonus:
        gain[1:] += full[:-1]
        gain[-1] += full[-1]
    else:
        gain += full
        gain[1] += gain[0]  # an empty draft still yields one token
        gain[0] = 0.0
    return gain


def renewal(gain: np.ndarray, budget: int) -> tuple[float, np.ndarray]:
    """Expected rounds until at least ``budget`` tokens are there, and the law of how many [L+1]."""
    size = len(gain)
    visits = np.zeros(budget)  # u(s): probability that some round ends with s tokens
    visits[0] = 1.0
    for s in range(1, budget):
        visits[s] = visits[:s] @ gain[s:0:-1][:s] if s < size else 0.0
    lengths = np.zeros(size)
    for s, u in enumerate(visits):
        beyond = gain[budget - s :]
        stop = min(size, budget + len(beyond))
        lengths[budget:stop] += u * beyond[: stop - budget]
        lengths[-1] += u * beyond[stop - budget :].sum()
    return float(visits.sum()), lengths


def _offer(lengths: np.ndarray, kept: Kept, model: int, estimates: Estimates, ms: float) -> Offer:
    spent = np.zeros(len(estimates.names))
    spent[model] = ms
    return Offer(lengths, kept, spent)


def _call_ms(estimates: Estimates, by: int, model: int, lengths: np.ndarray) -> float:
    if not estimates.can_draft(by, model):
        names = estimates.names
        raise HierspecError(f"nothing is known of {names[by]}'s drafts for {names[model]}")
    return float(lengths @ estimates.verify_ms[by, model])
