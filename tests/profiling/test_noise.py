"""A machine with other work to do shows in the costs, and users are told."""

from __future__ import annotations

import pytest

from hierspec.profiling.noise import busy_message, noise, spread
from hierspec.profiling.schema import AtTemperature, MeasuredContext, MeasuredCost, TimeSummary


def cost(low, high, count=12):
    times = TimeSummary(mean=1.0, median=1.0, low=low, high=high, count=count)
    return MeasuredCost(drafter=None, verifier=0, draft={}, check={0: times})


def test_the_spread_is_the_median_over_calls():
    assert spread([cost(0.9, 1.1), cost(0.95, 1.0), cost(0.5, 2.5)]) == pytest.approx(0.2)
    assert spread([cost(0.1, 9.0, count=2)]) == 0.0  # two samples spread by chance


@pytest.mark.parametrize(
    ("spread_of_calls", "load", "words"),
    [
        (0.05, [0.3], ""),
        (0.5, [0.3], "50 % apart"),
        (0.05, [9.0], "load average was 9"),
        (0.1, [], ""),
    ],
)
def test_what_is_said(spread_of_calls, load, words):
    found = noise([cost(1.0, 1.0 + spread_of_calls)], load)
    quiet = AtTemperature(
        pairs=[], costs=[], context=MeasuredContext(tokens=1, long=1, slopes=[]), token_ms=0.0
    )
    busy = quiet.model_copy(update={"noise": found.model_copy(update={"cores": 2})})
    sentence = busy_message([busy, quiet])
    assert bool(sentence) == bool(words)
    assert words in sentence
