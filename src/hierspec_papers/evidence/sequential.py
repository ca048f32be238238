"""When to stop measuring: intervals at planned looks, verdicts, and prompts needed.

An effect is a mean over prompts (of differences, or of logarithms of ratios, paired by prompt).
Looking several times and stopping at the first good result would find effects that are not there
more often than 5 % of the time. So the looks are planned, :data:`LOOKS`, and the interval at each
has the level 1 − .05 / len(LOOKS) (Bonferroni): all of them hold together with at least 95 %
probability, whenever one stops.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

LOOKS = (24, 36, 48, 60)  # prompts; never fewer for a claim, never more
ERROR = 0.05  # of all looks together
POWER = 0.8

Kind = Literal["more", "same"]
Verdict = Literal["holds", "does not hold", "undecided"]


def quantile(probability: float, freedom: int) -> float:
    """Return Student's t quantile, from the normal one by Wallace's approximation (1959).

    It is the inverse of :func:`hierspec.bench.summary.z_score`; its error is below a per cent
    from 8 degrees of freedom on.
    """
    z = statistics.NormalDist().inv_cdf(probability)
    scaled = z * (8 * freedom + 3) / (8 * freedom + 1)
    return math.copysign(math.sqrt(freedom * math.expm1(scaled * scaled / freedom)), z)


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over prompts with its interval.

    Attributes:
        value, low, high: the mean and the ends of its interval.
        deviation: of a single prompt.
        n: prompts.
    """

    value: float
    low: float
    high: float
    deviation: float
    n: int


def estimate(values: Sequence[float], looks: int = len(LOOKS)) -> Estimate:
    """Return the mean with its interval at level 1 − :data:`ERROR` / ``looks``.

    Raises:
        ValueError: fewer than two values.
    """
    n = len(values)
    if n < 2:
        raise ValueError("an interval needs two prompts or more")
    mean, deviation = statistics.fmean(values), statistics.stdev(values)
    half = quantile(1 - ERROR / looks / 2, n - 1) * deviation / math.sqrt(n)
    return Estimate(mean, mean - half, mean + half, deviation, n)


def verdict(found: Estimate, smallest: float, kind: Kind = "more") -> Verdict:
    """Decide a claim by an interval.

    Args:
        smallest: the smallest difference that matters, above 0, in the effect's unit.
        kind: ``"more"``: the claim is an effect above 0. It holds where the interval excludes 0
            from below, and does not where it excludes every effect of ``smallest`` and more.
            ``"same"``: the claim is no effect that matters; it holds where the interval lies
            within ± ``smallest``, and does not where it lies outside.
    """
    if found.n < LOOKS[0]:
        return "undecided"
    if kind == "more":
        if found.high < smallest:  # even where it lies above 0: less than matters
            return "does not hold"
        return "holds" if found.low > 0 else "undecided"
    if -smallest < found.low and found.high < smallest:
        return "holds"
    return "does not hold" if found.low > smallest or found.high < -smallest else "undecided"


def prompts_needed(deviation: float, smallest: float, looks: int = len(LOOKS)) -> int:
    """Return how many prompts show an effect of ``smallest`` with probability :data:`POWER`.

    Args:
        deviation: of a single prompt, as measured.
    """
    if deviation == 0:
        return 2
    normal = statistics.NormalDist()
    z = normal.inv_cdf(1 - ERROR / looks / 2) + normal.inv_cdf(POWER)
    return max(2, math.ceil((z * deviation / smallest) ** 2))
