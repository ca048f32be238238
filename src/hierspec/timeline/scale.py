"""Seconds to places on paper: wide enough to tell neighbours apart, not wider than a limit."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from .story import Call, Story

MARGIN, NARROWEST, WIDEST = 10.0, 720.0, 16000.0
COLUMN = 7.0  # of cells


@dataclass(frozen=True, slots=True)
class Scale:
    """Linear; pixels."""

    start: float
    per_second: float
    width: float

    def x(self, seconds: float) -> float:
        return MARGIN + (seconds - self.start) * self.per_second


def scale_of(story: Story) -> Scale:
    """Most columns of cells get their full width; the closest quarter may be narrower."""
    start = min(call.began for call in story.calls)
    span = max(call.began + call.seconds for call in story.calls) - start or 1.0
    gaps = sorted(
        after.began - call.began
        for calls in rows(story).values()
        for call, after in pairwise([call for call in calls if call.cells])
        if after.began > call.began
    )
    wanted = (COLUMN + 2) / gaps[len(gaps) // 4] * span if gaps else NARROWEST
    inner = min(max(wanted, NARROWEST), WIDEST)
    return Scale(start, inner / span, inner + 2 * MARGIN + COLUMN)


def rows(story: Story) -> dict[int, list[Call]]:
    """Calls by level, in order of time."""
    out: dict[int, list[Call]] = {index: [] for index in story.levels}
    for call in story.calls:
        out[call.index].append(call)
    return out


def room(calls: list[Call], scale: Scale) -> list[float]:
    """How far each call's neighbour on the right is, pixels."""
    nexts = [call.began for call in calls[1:]] + [float("inf")]
    return [
        max(after - call.began, 0.0) * scale.per_second
        for call, after in zip(calls, nexts, strict=True)
    ]


def ticks(scale: Scale, seconds: float) -> list[float]:
    """Round times at least 80 pixels apart, from 0."""
    at_least = 80 / scale.per_second
    power = 10.0**-12
    while power * 10 <= at_least:
        power *= 10
    step = next(power * m for m in (1, 2, 5, 10) if power * m >= at_least)
    return [i * step for i in range(int(seconds / step) + 1)]
