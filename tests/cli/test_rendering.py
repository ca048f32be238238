"""An estimate of the time left is not taken back: it never rises by more than half."""

import itertools
import random

import pytest

from hierspec.cli import rendering


def told(monkeypatch, steps):
    """Return the seconds left that are shown at each (time, share); ``None`` where nothing is."""
    clock = [0.0]
    monkeypatch.setattr(rendering.time, "monotonic", lambda: clock[0])
    left, shown = rendering._TimeLeft(), []
    for now, share in steps:
        clock[0] = now
        text = left.text(share).removeprefix(", about ").removesuffix(" left")
        number, _, unit = text.partition(" ")
        shown.append(float(number) * (60 if unit == "min" else 1) if number else None)
    return shown


@pytest.mark.parametrize("first", [0.0, 0.6])  # what an earlier run has done
@pytest.mark.parametrize("seed", range(10))
def test_it_never_rises_by_more_than_half(monkeypatch, seed, first):
    rng, now, share, steps = random.Random(seed), 0.0, first, []
    while share < 1:
        steps.append((now, share))
        now += rng.expovariate(1 / rng.choice([0.5, 3, 60]))
        share += rng.choice([0, 0.01, 0.2]) * rng.random()
    shown = [seconds for seconds in told(monkeypatch, steps) if seconds is not None]
    for before, after in itertools.pairwise(shown):
        assert after <= 1.5 * before + (30.5 if after >= 90 else 1)  # rounded to minutes, seconds


@pytest.mark.parametrize("first", [0.0, 0.6])
def test_at_a_steady_pace_it_is_right_from_the_start(monkeypatch, first):
    """However long the models load, and however much an earlier run has done."""
    steps = [(0.0, first)] + [(50.0 + i, first + (1 - first) * i / 100) for i in range(1, 100)]
    shown = told(monkeypatch, steps)
    wanted = {i: s for i, s in enumerate(shown) if s is not None}
    assert len(wanted) > 80
    assert all(abs(s - (100 - i)) <= 30 for i, s in wanted.items())
