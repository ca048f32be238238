"""The engine's law under every reading of scores: temperatures, truncation, penalties, greedy."""

from __future__ import annotations

import dataclasses

import pytest
from engine_cases import (
    ALIKE,
    BATCHES,
    READ_UNDER,
    READINGS,
    TIGHT,
    WINDOWS,
    remembered,
    requests_for_drafts,
    tv,
)
from engine_paths import like
from fakes.tables import Ahead, Device
from tabular_cases import chain, models

from hierspec.lm.tabular import TabularModel
from hierspec.sampling.parameters import SamplingParams


@pytest.mark.parametrize(
    ("drafter", "path", "batch"),
    [
        (TabularModel, "short", 1),
        *((TabularModel, path, 3) for path in ("short", "padded", "recorded")),
        *((Device, path, 3) for path in ("short", "recorded")),
    ],
)
@pytest.mark.parametrize("reading", READINGS)
@pytest.mark.parametrize(("rule", "window"), READ_UNDER)
def test_every_reading(rule, window, reading, path, drafter, batch):
    params = SamplingParams(**READINGS[reading])
    small, target = models("random", 2, seed=3)
    windows = [WINDOWS[window]]
    root = chain([like(drafter, small), like(TabularModel, target)], [rule], [2], windows)
    others = BATCHES[batch] if drafter is TabularModel else BATCHES[batch][:0]
    others = others or tuple(one._replace(params=params) for one in BATCHES[batch])
    with requests_for_drafts() as requests:
        assert tv(root, 3, params, others, path, states=remembered(root)) < TIGHT
    left = drafter is not TabularModel and not params.edits_scores
    assert bool(requests) is left


@pytest.mark.parametrize("rule", ["tokenwise", "block", "naive"])
@pytest.mark.parametrize("reading", ["repetition", "frequency", "processor", "top-k"])
def test_a_level_may_be_hotter(rule, reading):
    params = SamplingParams(**READINGS[reading])
    root = chain(models("peaked", 2, seed=3), [rule], [2])
    root = dataclasses.replace(root, below=dataclasses.replace(root.below, temperature=1.6))
    assert tv(root, 3, params, BATCHES[3]) < TIGHT


@pytest.mark.parametrize("rule", ["tokenwise", "block", "naive", "leading"])
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("drafter", [TabularModel, Ahead, Device])
@pytest.mark.parametrize("window", ["fixed", "entropy"])
def test_greedy(rule, batch, drafter, window):
    """One text, whatever the neighbours draw."""
    params = SamplingParams(temperature=0.0, repetition_penalty=1.2 if window == "fixed" else 1.0)
    small, target = models("random", 2, seed=8)
    root = chain([like(drafter, small), target], [rule], [2], [WINDOWS[window]])
    neighbours = ALIKE if batch == 3 else ()
    assert tv(root, 4, params, neighbours) == 0.0
