"""When to stop measuring: intervals at planned looks, verdicts, and prompts needed.

An effect is a mean over prompts (of differences, or of logarithms of ratios, paired by prompt).
Looking several times and stopping at the first good result would find effects that do not exist
more often than 5 % of the time. So the looks are planned (:data:`LOOKS`), and the interval at each
has the level 1 − .05 / len(LOOKS) (Bonferroni): with at least 95 % probability all of them contain
the effect, at whichever look the measurement stops.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

LOOKS = (24, 36, 48, 60)  # numbers of prompts at which an experiment may stop
ERROR = 0.05  # probability that any interval of the planned looks misses the effect
POWER = 0.8  # probability that the needed prompts show the smallest effect that matters

Kind = Literal["more", "same", "no less"]
ClaimVerdict = Literal["holds", "does not hold", "undecided"]


def quantile(probability: float, freedom: int) -> float:
    """Return the quantile of Student's t distribution with ``freedom`` degrees of freedom.

    It is computed from the normal quantile by Wallace's approximation (1959), the inverse of
    :func:`hierspec_lab.bench.summary.z_score`; its error is below a per cent from 8 degrees of
    freedom on.
    """
    z = statistics.NormalDist().inv_cdf(probability)
    scaled = z * (8 * freedom + 3) / (8 * freedom + 1)
    return math.copysign(math.sqrt(freedom * math.expm1(scaled * scaled / freedom)), z)


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over prompts with its interval.

    Attributes:
        value, low, high: the mean and the ends of its interval.
        std: standard deviation of a single prompt's value.
        n: number of prompts.
    """

    value: float
    low: float
    high: float
    std: float
    n: int


def estimate(values: Sequence[float], looks: int = len(LOOKS)) -> Estimate:
    """Return the mean with its interval at level 1 − :data:`ERROR` / ``looks``.

    Raises:
        ValueError: fewer than two values.
    """
    n = len(values)
    if n < 2:
        raise ValueError("an interval needs two prompts or more")
    mean, std = statistics.fmean(values), statistics.stdev(values)
    half_width = quantile(1 - ERROR / looks / 2, n - 1) * std / math.sqrt(n)
    return Estimate(mean, mean - half_width, mean + half_width, std, n)


def judge_interval(effect: Estimate, smallest: float, kind: Kind = "more") -> ClaimVerdict:
    """Decide a claim by the interval of its effect.

    Args:
        smallest: the smallest difference that matters, above 0, in the effect's unit.
        kind: ``"more"`` claims an effect above 0: it holds where the whole interval is above 0,
            and does not hold where the whole interval is below ``smallest``.
            ``"same"`` claims that no effect matters: it holds where the interval lies within
            ± ``smallest``, and does not hold where it lies outside.
            ``"no less"`` claims that the effect is above −``smallest``: it holds where the whole
            interval is, and does not hold where the whole interval is below.
    """
    if effect.n < LOOKS[0]:
        return "undecided"
    if kind == "more":
        if effect.high < smallest:  # even if it is above 0, it is too small to matter
            return "does not hold"
        return "holds" if effect.low > 0 else "undecided"
    if kind == "no less":
        if effect.low > -smallest:
            return "holds"
        return "does not hold" if effect.high < -smallest else "undecided"
    if -smallest < effect.low and effect.high < smallest:
        return "holds"
    return "does not hold" if effect.low > smallest or effect.high < -smallest else "undecided"


def prompts_needed(std: float, smallest: float, looks: int = len(LOOKS)) -> int:
    """Return how many prompts show an effect of ``smallest`` with probability :data:`POWER`.

    Args:
        std: measured standard deviation of a single prompt's value.
    """
    if std == 0:
        return 2
    normal = statistics.NormalDist()
    z = normal.inv_cdf(1 - ERROR / looks / 2) + normal.inv_cdf(POWER)
    return max(2, math.ceil((z * std / smallest) ** 2))
