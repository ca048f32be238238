"""All states of running means, grouped into the few regions that a round can distinguish.

P5's running threshold keeps a sum and a count, which grow with the text. But a round only compares:
does an entropy e exceed the mean, after k more values that sum to S? With mean μ and weight u =
1/count that is the line μ + (S − k·e)·u = e in the (u, μ) plane. In a region that none of a round's
lines cuts, all states give the same round; so regions are split along these lines until every state
lies in a region that was enumerated. (States on a line act as those just above it: only a value
*above* the mean stops a draft.)

The regions contain states that no text leads to, such as fractional counts. A proof over all of
them is a proof; a lossy round in one of them may be unreachable (:func:`.proof.search_reachable`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, ClassVar, NamedTuple

from hierspec.core.nodes import Verify, walk
from hierspec.core.proposals import States
from hierspec.core.windows import MEAN_ROUNDING, Signal

from .interpreter import Outcome
from .recording import RecordingInterpreter, WindowRecord, is_running, replace_windows, windows

_MIN_AREA = 1e-12  # of a region: smaller ones come from rounding

Polygon = tuple[tuple[float, float], ...]  # convex, corners (u, μ) in order
Region = tuple[Polygon | None, ...]  # one per running mean; None: nothing was rejected yet


class Comparison(NamedTuple):
    """An entropy compared with a running mean: not above it where μ + slope·u ≥ entropy.

    ``mean`` is the node index of the window whose running mean it is.
    """

    mean: int
    slope: float
    entropy: float
    exceeded: bool


@dataclass(frozen=True, slots=True, eq=False)
class RunningMean:
    """The adaptive :class:`windows.EntropyWindow`, from a mean and weight at the round's start.

    Its state is (μ, u, S, k): S and k are of the values that the round itself has added. A
    negative u means that no value was added before the round.
    """

    index: int
    record: WindowRecord
    signal: ClassVar[Signal | None] = "entropy"
    fixed_length: ClassVar[bool] = False

    def init(self) -> tuple[float, ...]:
        return (0.0, -1.0, 0.0, 0.0)

    def stops(self, signals: Sequence[float], state: tuple[float, ...]) -> bool:
        mean, weight, total, count = state
        if weight < 0.0:
            limit = (total / count if count else 0.0) + MEAN_ROUNDING
        else:
            limit = (mean + total * weight) / (1.0 + count * weight)
        for value in signals:
            exceeded = value > limit
            if weight >= 0.0 and not math.isnan(value):
                slope = total - count * value
                self.record.add(Comparison(self.index, slope, value, exceeded))
            if exceeded:
                return True
        return False

    def observe(
        self, state: tuple[float, ...], signals: Sequence[float], num_accepted: int
    ) -> tuple[float, ...]:
        if num_accepted >= len(signals):
            return state
        return (*state[:2], state[2] + signals[num_accepted], state[3] + 1.0)


class ComparingInterpreter(RecordingInterpreter):
    """The exact interpreter; it records which comparisons each round depends on.

    Attributes:
        means: node indices of the windows with a running mean.
    """

    def __init__(self, root: Verify, vocab_size: int) -> None:
        record = WindowRecord()

        def comparing(node: Any) -> Any:
            return RunningMean(node.index, record) if is_running(node.window) else node.window

        super().__init__(replace_windows(root, comparing), vocab_size, record)
        by_node = windows(self.root)
        self.means = tuple(i for i, w in sorted(by_node.items()) if isinstance(w, RunningMean))
        size = 1 + max(node.index for node in walk(self.root))
        self._start = [by_node[i].init() if i in by_node else () for i in range(size)]

    def states(self, region: Region) -> States:
        """Return window states at one point of a region."""
        states = list(self._start)
        for index, polygon in zip(self.means, region, strict=True):
            if polygon is not None:
                weight, mean = _centre(polygon)
                states[index] = (mean, weight, 0.0, 0.0)
        return tuple(states)


def outcomes_by_region(
    interpreter: ComparingInterpreter, context: tuple[int, ...], limit: int
) -> Iterator[list[Outcome]]:
    """Yield a round's outcomes for every region of states that it distinguishes."""
    max_entropy = math.log(interpreter.vocab_size)
    all_states: Polygon = ((0.0, 0.0), (1.0, 0.0), (1.0, max_entropy), (0.0, max_entropy))
    waiting: list[Region] = list(product((None, all_states), repeat=len(interpreter.means)))
    while waiting:
        region = waiting.pop()
        states = interpreter.states(region)
        outcomes, comparisons = interpreter.recorded_round(context, limit, states)
        waiting += _other_regions(region, interpreter.means, comparisons)
        yield outcomes


def _other_regions(
    region: Region, means: tuple[int, ...], comparisons: Iterable[Comparison]
) -> Iterator[Region]:
    """Split off the parts of a region where one of these comparisons has the other result."""
    for comparison in sorted(comparisons):
        index = means.index(comparison.mean)
        polygon = region[index]
        if polygon is None:
            continue
        other_side = _clip(polygon, comparison, above=comparison.exceeded)
        if other_side:
            yield (*region[:index], other_side, *region[index + 1 :])
        same_side = _clip(polygon, comparison, above=not comparison.exceeded)
        if not same_side:
            return
        region = (*region[:index], same_side, *region[index + 1 :])


def _clip(polygon: Polygon, line: Comparison, above: bool) -> Polygon:
    """Return the part of a convex polygon above a line, or below it; empty if negligible."""
    sign = 1.0 if above else -1.0
    heights = [sign * (mean + line.slope * u - line.entropy) for u, mean in polygon]
    part: list[tuple[float, float]] = []
    for i, ((u, mean), height) in enumerate(zip(polygon, heights, strict=True)):
        (last_u, last_mean), last_height = polygon[i - 1], heights[i - 1]
        if (height >= 0.0) != (last_height >= 0.0):
            t = last_height / (last_height - height)
            part.append((last_u + t * (u - last_u), last_mean + t * (mean - last_mean)))
        if height >= 0.0:
            part.append((u, mean))
    return tuple(part) if _area(part) > _MIN_AREA else ()


def _area(polygon: Sequence[tuple[float, float]]) -> float:
    edges = zip(polygon, (*polygon[1:], *polygon[:1]), strict=True)
    return abs(sum(u * next_mean - next_u * mean for (u, mean), (next_u, next_mean) in edges)) / 2.0


def _centre(polygon: Polygon) -> tuple[float, float]:
    return (
        sum(u for u, _ in polygon) / len(polygon),
        sum(mean for _, mean in polygon) / len(polygon),
    )
