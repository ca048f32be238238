"""Every state that running means can be in, as the few kinds that a round can tell apart.

P5's running threshold remembers a sum and a count, which grow for as long as the text does. But a
round only compares: does an entropy e exceed the mean, after k more values that sum to S? With
mean μ and weight u = 1/count that is the line μ + (S − k·e)·u = e in the (u, μ) plane. In a region
that none of a round's lines cuts, all states give the same round; so regions are split along these
lines until every state lies in a region that was tried. (States on a line act as those just above
it: only a value *above* the mean stops a draft.)

The regions hold states that no text leads to, such as fractional counts. A proof over all of them
is a proof; a lossy round in one of them may be unreachable (:func:`.proof.search_reachable`).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any, ClassVar, NamedTuple

from hierspec.core.nodes import Concatenate, Draft, Node, Verify, walk
from hierspec.core.proposals import States
from hierspec.core.windows import MEAN_ROUNDING, Counting, EntropyWindow, Signal

from .interpreter import ExactInterpreter, Outcome

_SLIVER = 1e-12  # area of a region that only rounding has made

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


@dataclass(slots=True)
class Comparisons:
    """The comparisons made by the coroutine that runs now."""

    met: set[Comparison] = field(default_factory=set)


@dataclass(frozen=True, slots=True, eq=False)
class RunningMean:
    """The adaptive :class:`windows.EntropyWindow`, from a mean and weight at the round's start.

    Its state is (μ, u, S, k): S and k are of the values that the round itself has added. A
    negative u means that there was none before.
    """

    index: int
    record: Comparisons
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
                self.record.met.add(Comparison(self.index, slope, value, exceeded))
            if exceeded:
                return True
        return False

    def observe(
        self, state: tuple[float, ...], signals: Sequence[float], num_accepted: int
    ) -> tuple[float, ...]:
        if num_accepted >= len(signals):
            return state
        return (*state[:2], state[2] + signals[num_accepted], state[3] + 1.0)


class RecordingInterpreter(ExactInterpreter):
    """The exact interpreter; it records which comparisons each round depends on.

    Attributes:
        means: node indices of the windows with a running mean.
    """

    def __init__(self, root: Verify, vocab_size: int) -> None:
        self._record = Comparisons()
        self._met: dict[int, frozenset[Comparison]] = {}  # by the identity of memoised outcomes
        root = _with_recording_windows(root, self._record)
        super().__init__(root, vocab_size)
        found = windows(root)
        self.means = tuple(i for i, w in sorted(found.items()) if isinstance(w, RunningMean))
        size = 1 + max(node.index for node in walk(root))
        self._start = [found[i].init() if i in found else () for i in range(size)]

    def states(self, region: Region) -> States:
        """Return window states at one point of a region."""
        states = list(self._start)
        for index, polygon in zip(self.means, region, strict=True):
            if polygon is not None:
                weight, mean = _centre(polygon)
                states[index] = (mean, weight, 0.0, 0.0)
        return tuple(states)

    def recorded_round(
        self, context: tuple[int, ...], limit: int, states: States
    ) -> tuple[list[Outcome], frozenset[Comparison]]:
        """Return the outcomes of :meth:`round`, and the comparisons made on the way."""
        return self._run_recorded(lambda: self.round(context, limit, states))

    def proposals(
        self, node: Node, context: tuple[int, ...], limit: int, states: States
    ) -> list[Outcome]:
        if limit <= 0:  # nothing happens, and nothing is kept
            return super().proposals(node, context, limit, states)
        ask = super().proposals
        return self._run_recorded(lambda: ask(node, context, limit, states))[0]

    def _run_recorded(self, run: Any) -> tuple[list[Outcome], frozenset[Comparison]]:
        outer, self._record.met = self._record.met, set()
        found = run()
        # Memoised outcomes are one list for good, and running them again compares nothing.
        met = self._met.setdefault(id(found), frozenset(self._record.met))
        self._record.met = outer
        outer |= met
        return found, met


def outcomes_by_region(
    interpreter: RecordingInterpreter, context: tuple[int, ...], limit: int
) -> Iterator[list[Outcome]]:
    """Yield a round's outcomes for every region of states that it tells apart."""
    highest = math.log(interpreter.vocab_size)
    all_states: Polygon = ((0.0, 0.0), (1.0, 0.0), (1.0, highest), (0.0, highest))
    waiting: list[Region] = list(product((None, all_states), repeat=len(interpreter.means)))
    while waiting:
        region = waiting.pop()
        states = interpreter.states(region)
        outcomes, met = interpreter.recorded_round(context, limit, states)
        waiting += _untried(region, interpreter.means, met)
        yield outcomes


def _untried(
    region: Region, means: tuple[int, ...], made: frozenset[Comparison]
) -> Iterator[Region]:
    """Split off the parts of a region where one of these comparisons comes out otherwise."""
    for comparison in sorted(made):
        place = means.index(comparison.mean)
        polygon = region[place]
        if polygon is None:
            continue
        other = _clip(polygon, comparison, above=comparison.exceeded)
        if other:
            yield (*region[:place], other, *region[place + 1 :])
        same = _clip(polygon, comparison, above=not comparison.exceeded)
        if not same:
            return
        region = (*region[:place], same, *region[place + 1 :])


def _clip(polygon: Polygon, line: Comparison, above: bool) -> Polygon:
    """Return the part of a convex polygon above a line, or below it; empty if it is a sliver."""
    sign = 1.0 if above else -1.0
    heights = [sign * (mean + line.slope * u - line.entropy) for u, mean in polygon]
    out: list[tuple[float, float]] = []
    for i, (corner, height) in enumerate(zip(polygon, heights, strict=True)):
        before, previous = polygon[i - 1], heights[i - 1]
        if (height >= 0.0) != (previous >= 0.0):
            t = previous / (previous - height)
            out.append(
                (before[0] + t * (corner[0] - before[0]), before[1] + t * (corner[1] - before[1]))
            )
        if height >= 0.0:
            out.append(corner)
    return tuple(out) if _area(out) > _SLIVER else ()


def _area(polygon: Sequence[tuple[float, float]]) -> float:
    around = zip(polygon, (*polygon[1:], *polygon[:1]), strict=True)
    return abs(sum(u * y - x * mean for (u, mean), (x, y) in around)) / 2.0


def _centre(polygon: Polygon) -> tuple[float, float]:
    """Return a point well inside: the mean of the corners."""
    return (
        sum(u for u, _ in polygon) / len(polygon),
        sum(mean for _, mean in polygon) / len(polygon),
    )


def _with_recording_windows(node: Any, record: Comparisons) -> Any:
    """Rebuild a tree with adaptive windows that record what they compare."""
    if isinstance(node, Concatenate):
        parts = tuple(_with_recording_windows(part, record) for part in node.parts)
        return dataclasses.replace(node, parts=parts)
    window = node.window
    if is_running(window):
        window = RunningMean(node.index, record)
    if isinstance(node, Draft):
        return dataclasses.replace(node, window=window)
    below = None if node.below is None else _with_recording_windows(node.below, record)
    return dataclasses.replace(node, window=window, below=below)


def windows(root: Node) -> dict[int, Any]:
    """Return the windows of a tree by node index."""
    return {n.index: n.window for n in walk(root) if not isinstance(n, Concatenate)}


def is_running(window: Any) -> bool:
    """Return whether a window's threshold is a running mean."""
    inner = window.inner if isinstance(window, Counting) else window
    return isinstance(inner, EntropyWindow) and inner.threshold is None
