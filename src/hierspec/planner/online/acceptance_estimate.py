"""Acceptance on one text, estimated from the text's own rounds and the estimates for all texts.

For a pair (i drafts for k) the estimates hold a survival curve, that is the rate at which each
position of a draft passes once those before it have. A text is assumed to shift all positions of a
pair by one number, in log-odds. Its tests (positions up to and with the first rejection), older
ones discounted, estimate that number: the pass rate is a Beta posterior around what the curve
predicts at the positions tested. Pairs share part of their shift, so that a pair never tried on
this text is judged by the others. A change in the text is noticed by two running sums of
log-likelihood ratios (Page's CUSUM), one for a lower rate, one for a higher: when either passes
a threshold, only the tests since it began to rise are kept.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from hierspec.core.windows import Counts
from hierspec.planner.estimates import Estimates

Tests = tuple[float, float, float]  # passed, all, and passes predicted
_NO_TESTS: Tests = (0.0, 0.0, 0.0)
STEP = 0.25  # log-odds: shifts are rounded to multiples, so that prices can be cached
_WEIGHT = 8.0  # tests that the estimates are worth; it stands for how much texts differ
_HALF_LIFE = 128.0  # tests after which one counts half; for a pair not in use, tokens
_SHARED = 0.5  # part of the common shift that a pair starts from
_CHANGE = math.log(4.0)  # log-odds by which a changed rate differs
_ALARM = 6.9  # nats: a false alarm in some thousands of tests
_EDGE = 1e-6  # rates stay this far from 0 and 1, where log-odds end


@dataclass(frozen=True, slots=True)
class ChangeScore:
    """Page's CUSUM: nats that speak for a lower, or a higher, rate since ``tests`` began."""

    nats: float = 0.0
    tests: Tests = _NO_TESTS


@dataclass(frozen=True, slots=True)
class Evidence:
    """The tests of one pair on a text, older ones discounted."""

    tests: Tests = _NO_TESTS
    fall: ChangeScore = ChangeScore()
    rise: ChangeScore = ChangeScore()


def add_tests(evidence: Evidence, predicted: np.ndarray, counts: Counts) -> Evidence:
    """Add a round's tests to the evidence on a pair.

    Args:
        predicted: [L+1] passes that the estimates expect of the first n positions.
    """
    num_tests = counts.accepted + counts.rejected
    if not num_tests:
        return evidence
    expected = counts.drafts * interpolate(predicted, num_tests / counts.drafts)
    new: Tests = (counts.accepted, num_tests, expected)
    passed, old_tests, _ = evidence.tests
    rate = (passed + _WEIGHT * expected / num_tests) / (old_tests + _WEIGHT)
    fall = _add_to_score(evidence.fall, _log_ratio(rate, -_CHANGE, counts), new)
    rise = _add_to_score(evidence.rise, _log_ratio(rate, _CHANGE, counts), new)
    for score in (fall, rise):
        if score.nats > _ALARM:
            return Evidence(score.tests)
    return Evidence(_add_tests(evidence.tests, new, 0.5 ** (num_tests / _HALF_LIFE)), fall, rise)


def fade(evidence: Evidence, tokens: float) -> Evidence:
    """Return the evidence on a pair, discounted for tokens written without it."""
    keep = 0.5 ** (tokens / _HALF_LIFE)
    return replace(evidence, tests=_add_tests(evidence.tests, _NO_TESTS, keep))


def shifts_of(evidence: tuple[Evidence, ...]) -> tuple[int, ...]:
    """Return the shift of every pair, in steps."""
    total = _NO_TESTS
    for pair in evidence:
        total = _add_tests(total, pair.tests)
    common_shift = _SHARED * _shift(total, 0.0)
    return tuple(round(_shift(pair.tests, common_shift) / STEP) for pair in evidence)


def _shift(tests: Tests, start: float) -> float:
    """Return posterior minus predicted pass rate in log-odds; ``start`` is the prior shift."""
    passed, num_tests, predicted = tests
    if not num_tests:
        return start
    prior = _logit(predicted / num_tests)
    believed = 1.0 / (1.0 + math.exp(-prior - start))
    return _logit((passed + _WEIGHT * believed) / (num_tests + _WEIGHT)) - prior


def _add_tests(old: Tests, new: Tests, keep: float = 1.0) -> Tests:
    return (keep * old[0] + new[0], keep * old[1] + new[1], keep * old[2] + new[2])


def _add_to_score(score: ChangeScore, nats: float, new: Tests) -> ChangeScore:
    """Add a round to a score; it restarts at 0 whenever nothing speaks for a change."""
    total = score.nats + nats
    return ChangeScore(total, _add_tests(score.tests, new)) if total > 0.0 else ChangeScore()


def _log_ratio(rate: float, change: float, counts: Counts) -> float:
    """Return a round's log-likelihood ratio, in nats, for a rate ``change`` log-odds away."""
    rate = min(max(rate, 0.01), 0.99)
    new = 1.0 / (1.0 + math.exp(-_logit(rate) - change))
    passed, failed = math.log(new / rate), math.log((1 - new) / (1 - rate))
    return counts.accepted * passed + counts.rejected * failed


def predict_passes(estimates: Estimates, drafter: int, verifier: int) -> np.ndarray:
    """Return passes expected of the first n positions tested, [L+1]: sums of the rates.

    The end of a draft is no test: where a drafter stops by itself, a position is tested only if
    the draft is that long.
    """
    if (joint := estimates.joint_survival.get(drafter)) is None:
        rates = _rates(estimates.survival[drafter, verifier])
    else:
        passed = joint[verifier].sum(0)
        tested = passed[:-1] - np.diagonal(joint[verifier])[:-1]
        rates = np.clip(passed[1:] / np.maximum(tested, 1e-300), _EDGE, 1.0 - _EDGE)
    return np.concatenate([[0.0], np.cumsum(rates)])


def shift_survival(estimates: Estimates, shifts: dict[tuple[int, int], float]) -> Estimates:
    """Shift the survival of some pairs in estimates, in log-odds of every rate."""
    survival, joints = estimates.survival.copy(), dict(estimates.joint_survival)
    for (i, k), shift in shifts.items():
        survival[i, k] = _shift_curve(survival[i, k], shift)
        if i in joints:
            joints[i] = joints[i].copy()
            joints[i][k] = _shift_curve(joints[i][k], shift)
    return replace(estimates, survival=survival, joint_survival=joints)


def interpolate(curve: np.ndarray, x: float) -> float:
    """Return a curve over 0, 1, 2, … between its points; its last value beyond them."""
    low = int(x)
    if low >= len(curve) - 1:
        return float(curve[-1])
    return float(curve[low] + (x - low) * (curve[low + 1] - curve[low]))


def _rates(curve: np.ndarray) -> np.ndarray:
    """Convert survival [..., L+1] to the rate at which each position passes, [..., L]."""
    rates = curve[..., 1:] / np.maximum(curve[..., :-1], 1e-300)
    return np.clip(rates, _EDGE, 1.0 - _EDGE)


def _shift_curve(curve: np.ndarray, shift: float) -> np.ndarray:
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
