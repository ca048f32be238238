"""What one text shows about acceptance, joined to what the estimates say of all texts.

For a pair (i drafts for k) the estimates hold a survival curve, that is the rate at which each
position of a draft passes once those before it have. A text is assumed to shift all positions of a
pair by one number, in log-odds. Its tests (positions up to and with the first rejection), older
ones discounted, estimate that number: the pass rate is a Beta posterior around what the curve
predicts at the very positions tested. Pairs share part of their shift, so that one which was
never tried on this text is judged by the others. A text that turns is noticed by two running sums
of log-likelihood ratios (Page's CUSUM), one for a lower rate, one for a higher: when either is
sure, only what was seen since it began to rise is believed.

What rounds cost as the estimates price them: at worst, once they are over, and catching up.

No clock is read, so that what online control decides can be repeated.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from hierspec.core.windows import Counts
from hierspec.planner.estimates import Chain, Estimates

Tests = tuple[float, float, float]  # passed, made, and passes predicted
_NO_TESTS: Tests = (0.0, 0.0, 0.0)
_TURN = math.log(4.0)  # log-odds by which the rates looked out for differ
_SURE = 6.9  # nats: a false alarm in some thousands of tests
_EDGE = 1e-6  # rates stay this far from 0 and 1, where log-odds end


@dataclass(frozen=True, slots=True)
class Turn:
    """How much speaks for a lower, or a higher, rate since ``tests`` began."""

    nats: float = 0.0
    tests: Tests = _NO_TESTS


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a text showed of one pair; older tests discounted."""

    tests: Tests = _NO_TESTS
    fall: Turn = Turn()
    rise: Turn = Turn()


@dataclass(frozen=True, slots=True)
class Belief:
    """How far and how fast a text's own tests outweigh the estimates.

    Attributes:
        weight: tests that the estimates are worth; it stands for how much texts differ.
        half_life: tests after which one counts half; for a pair that others replaced, tokens.
        shared: part of the common shift that a pair starts from.
        step: log-odds between the shifts told apart, so that prices can be kept.
    """

    weight: float = 8.0
    half_life: float = 128.0
    shared: float = 0.5
    step: float = 0.25

    def learnt(self, before: Evidence, predicted: np.ndarray, seen: Counts) -> Evidence:
        """The evidence with a round's tests added.

        Args:
            predicted: [L+1] passes that the estimates expect of the first n positions.
        """
        made = seen.kept + seen.rejected
        if not made:
            return before
        expected = seen.drafts * at(predicted, made / seen.drafts)
        new: Tests = (seen.kept, made, expected)
        passed, tests, _ = before.tests
        known = (passed + self.weight * expected / made) / (tests + self.weight)
        fall = _turned(before.fall, _nats(known, -_TURN, seen), new)
        rise = _turned(before.rise, _nats(known, _TURN, seen), new)
        for turn in (fall, rise):
            if turn.nats > _SURE:
                return Evidence(turn.tests)
        return Evidence(_sum(before.tests, new, 0.5 ** (made / self.half_life)), fall, rise)

    def faded(self, before: Evidence, tokens: float) -> Evidence:
        """The evidence on a pair that took no part while this many tokens were written."""
        keep = 0.5 ** (tokens / self.half_life)
        return replace(before, tests=_sum(before.tests, _NO_TESTS, keep))

    def shifts(self, evidence: tuple[Evidence, ...]) -> tuple[int, ...]:
        """The shift of every pair, in steps."""
        total = _NO_TESTS
        for one in evidence:
            total = _sum(total, one.tests)
        common = self.shared * self._shift(total, 0.0)
        return tuple(round(self._shift(one.tests, common) / self.step) for one in evidence)

    def _shift(self, tests: Tests, start: float) -> float:
        """Log-odds between the posterior pass rate and the predicted one; ``start``: a priori."""
        passed, made, hoped = tests
        if not made:
            return start
        prior = _logit(hoped / made)
        believed = 1.0 / (1.0 + math.exp(-prior - start))
        return _logit((passed + self.weight * believed) / (made + self.weight)) - prior


def _sum(old: Tests, new: Tests, keep: float = 1.0) -> Tests:
    return (keep * old[0] + new[0], keep * old[1] + new[1], keep * old[2] + new[2])


def _turned(turn: Turn, nats: float, new: Tests) -> Turn:
    """Page's CUSUM: begin anew whenever nothing speaks for the turn."""
    total = turn.nats + nats
    return Turn(total, _sum(turn.tests, new)) if total > 0.0 else Turn()


def _nats(rate: float, turn: float, seen: Counts) -> float:
    """Nats by which a round speaks for a rate ``turn`` log-odds away."""
    rate = min(max(rate, 0.01), 0.99)
    other = 1.0 / (1.0 + math.exp(-_logit(rate) - turn))
    return seen.kept * math.log(other / rate) + seen.rejected * math.log((1 - other) / (1 - rate))


def predicted(estimates: Estimates, drafter: int, verifier: int) -> np.ndarray:
    """Passes expected of the first n positions tested, [L+1]: sums of the rates."""
    curve = estimates.survival[drafter, verifier]
    return np.concatenate([[0.0], np.cumsum(_rates(curve))])


def shifted(estimates: Estimates, shifts: dict[tuple[int, int], float]) -> Estimates:
    """The estimates with the survival of some pairs shifted, in log-odds of every rate."""
    survival, windows = estimates.survival.copy(), dict(estimates.windows)
    for (i, k), shift in shifts.items():
        survival[i, k] = _shifted(survival[i, k], shift)
        if i in windows:
            windows[i] = windows[i].copy()
            windows[i][k] = _shifted(windows[i][k], shift)
    return replace(estimates, survival=survival, windows=windows)


def at(curve: np.ndarray, x: float) -> float:
    """A curve over 0, 1, 2, … between its points; its last value beyond them."""
    low = int(x)
    if low >= len(curve) - 1:
        return float(curve[-1])
    return float(curve[low] + (x - low) * (curve[low + 1] - curve[low]))


def _rates(curve: np.ndarray) -> np.ndarray:
    """Survival [..., L+1] → the rate at which each position passes, [..., L]."""
    rates = curve[..., 1:] / np.maximum(curve[..., :-1], 1e-300)
    return np.clip(rates, _EDGE, 1.0 - _EDGE)


def _shifted(curve: np.ndarray, shift: float) -> np.ndarray:
    if not shift:
        return curve
    rates = _rates(curve)
    odds = rates / (1.0 - rates) * math.exp(shift)
    passed = np.cumprod(odds / (1.0 + odds), axis=-1)
    out = np.where(curve[..., 1:] > 0.0, passed * curve[..., :1], 0.0)
    return np.concatenate([curve[..., :1], out], axis=-1)


def _logit(rate: float) -> float:
    rate = min(max(rate, _EDGE), 1.0 - _EDGE)
    return math.log(rate / (1.0 - rate))


def worst_ms(estimates: Estimates, chain: Chain) -> float:
    """A bound on one round: every draft rejected at its first token, every length the longest."""
    if chain.plain:
        return estimates.plain_ms
    by, longest = chain.levels[0], chain.budgets[0]
    spent = float(estimates.draft_ms[by, : longest + 1].max())
    budgets = (*chain.budgets[1:], 1)  # the target's round is one
    for model, budget in zip(chain.levels[1:], budgets, strict=True):
        spent = budget * (spent + float(estimates.verify_ms[by, model, : longest + 1].max()))
        by, longest = model, budget + longest
    return spent


def spent_ms(estimates: Estimates, chain: Chain, seen: Sequence[Counts], rounds: int) -> float:
    """What ``rounds`` rounds of the target cost, from what they did.

    Args:
        seen: what became of the drafts of each level below the target, smallest first.
    """
    total = 0.0
    for place, (counts, model) in enumerate(zip(seen, chain.levels, strict=False)):
        above = chain.levels[place + 1]
        if counts.drafts:
            mean = counts.drafted / counts.drafts
            total += counts.drafts * at(estimates.verify_ms[model, above], mean)
            if place == 0:
                total += counts.drafts * at(estimates.draft_ms[model], mean)
        if place + 1 < len(seen):  # rounds of a middle level that was given nothing to verify
            tokens = seen[place + 1].drafted - counts.kept
            answered = counts.rejected if above in chain.dropped_bonus else counts.drafts
            total += max(tokens - answered, 0.0) * float(estimates.draft_ms[above, 1])
    verified = seen[-1].drafts if seen else 0.0
    return total + max(rounds - verified, 0.0) * estimates.plain_ms


def default_catch_up(estimates: Estimates) -> list[float]:
    """Ms a model needs for each token it has to read: what a row adds to one of its calls.

    A level that runs on the target's own trunk has read what the target has. A model that
    verifies nobody is taken to read as much faster than it drafts as the target does.
    """
    target = estimates.target
    rows = [_row_ms(estimates, k) for k in range(target + 1)]
    ratio = (rows[target] or 0.0) / estimates.plain_ms
    out = []
    for i, row in enumerate(rows):
        trunk = bool(estimates.owners) and estimates.owners[i] == estimates.owners[target]
        one = float(estimates.draft_ms[i, 1])
        out.append(0.0 if trunk or i == target else ratio * one if row is None else row)
    return out


def _row_ms(estimates: Estimates, k: int) -> float | None:
    """What one more row adds to a call of model k; ``None`` where it verifies nobody."""
    last = min(8, estimates.verify_ms.shape[2] - 1)
    slopes = [
        (estimates.verify_ms[i, k, last] - estimates.verify_ms[i, k, 1]) / max(last - 1, 1)
        for i in range(k)
        if estimates.can_draft(i, k)
    ]
    slopes = [float(slope) for slope in slopes if np.isfinite(slope)]
    return max(min(slopes), 0.0) if slopes else None
