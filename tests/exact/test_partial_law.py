"""The engine's law with models that know a part of the vocabulary, and say −∞ for the rest."""

from __future__ import annotations

import math

import pytest
from engine_cases import (
    BATCHES,
    MULTI_DRAFT,
    READ_UNDER,
    READINGS,
    TIGHT,
    WINDOWS,
    remembered,
    requests_for_drafts,
    tv,
)
from engine_paths import VERIFYING, like
from fakes.tables import Ahead, Device
from tabular_cases import chain, models

from hierspec.core.nodes import Draft, Verify
from hierspec.lm.tabular import TabularModel
from hierspec.sampling.parameters import SamplingParams
from hierspec.verifiers.registry import get

KNOWN = {"one token": (1,), "two tokens": (0, 2)}
PART_READINGS = {
    **{name: READINGS[name] for name in ("top-k", "all", "repetition", "processor", "bias")},
    "plain": {"temperature": 1.0},
    "greedy": {"temperature": 0.0},
    "none of its tokens": {"temperature": 1.0, "logit_bias": ((0, -math.inf), (2, -math.inf))},
    "one of its tokens": {"temperature": 1.0, "logit_bias": ((0, -math.inf), (1, math.log(2)))},
}


def part_of(table: TabularModel, known: tuple[int, ...], kind=TabularModel) -> TabularModel:
    """What a table says of some tokens, of no others."""
    laws = {}
    for key, law in table.table().items():
        left = [p if i in known else 0.0 for i, p in enumerate(law)]
        laws[key] = [p / sum(left) for p in left]
    found = kind(table.vocab_size, table.order, laws)
    found.partial = True
    return found


# With one token left to say there is one text: long enough that a recorded decision is made again.
PART_HORIZONS = {"none of its tokens": 6}


@pytest.mark.parametrize("reading", PART_READINGS)
@pytest.mark.parametrize("path", ["short", "recorded"])
@pytest.mark.parametrize(("rule", "window"), [*READ_UNDER, ("tokenwise", "confidence")])
def test_a_part_of_the_vocabulary(rule, window, reading, path):
    params = SamplingParams(**PART_READINGS[reading])
    small, target = models("random", 2, seed=3)
    small = part_of(small, KNOWN["two tokens"])
    root = chain([small, like(TabularModel, target)], [rule], [2], [WINDOWS[window]])
    horizon = PART_HORIZONS.get(reading, 3)
    assert tv(root, horizon, params, BATCHES[3], path, states=remembered(root)) < TIGHT


@pytest.mark.parametrize("rule", ["tokenwise", "block", "naive"])
@pytest.mark.parametrize("known", KNOWN)
@pytest.mark.parametrize("path", VERIFYING)
def test_a_part_of_the_vocabulary_on_every_path(path, known, rule):
    small, target = models("random", 2, seed=3)
    root = chain([part_of(small, KNOWN[known]), target], [rule], [2])
    assert tv(root, 3, path=path) < TIGHT


@pytest.mark.parametrize("drafter", [Ahead, Device])
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("known", KNOWN)
def test_a_part_of_the_vocabulary_drafted_ahead(known, window, drafter):
    small, target = models("random", 2, seed=3)
    small = part_of(small, KNOWN[known], drafter)
    root = chain([small, target], ["block"], [2], [WINDOWS[window]])
    with requests_for_drafts() as requests:
        assert tv(root, 3, states=remembered(root)) < TIGHT
    assert requests


@pytest.mark.parametrize("path", ["short", "recorded"])
@pytest.mark.parametrize("first", ["tokenwise", "block", "leading"])
@pytest.mark.parametrize("reading", ["plain", "none of its tokens", "greedy"])
def test_a_part_of_the_vocabulary_in_the_middle(reading, first, path):
    """It verifies drafts that it could not have made."""
    small, mid, target = models("random", 3, seed=4)
    tables = [small, part_of(mid, (0, 2)), like(TabularModel, target)]
    rule = get(first, top_m=2) if first == "leading" else first
    root = chain(tables, [rule, "block"], [1, 2])
    horizon = PART_HORIZONS.get(reading, 3)
    assert tv(root, horizon, SamplingParams(**PART_READINGS[reading]), path=path) < TIGHT


@pytest.mark.parametrize("rule", MULTI_DRAFT)
@pytest.mark.parametrize("known", KNOWN)
def test_several_drafts_of_a_part(known, rule):
    """Also where there are fewer tokens to say than drafts to make."""
    small, target = models("random", 2, seed=5)
    leaf = Draft(0, "drafts", part_of(small, KNOWN[known]), 2, num_drafts=2).for_rule(get(rule))
    root = Verify(1, "target", target, 1, get(rule), leaf)
    assert tv(root, 3) < TIGHT
