"""EAGLE-3 as a leaf: the engine's output law is the target's, whatever verifies its drafts."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from eagle3_cases import LAYERS, save_drafter
from engine_cases import PROMPT, TIGHT
from engine_law import Neighbour, engine_law
from engine_paths import distance
from fakes.tables import ModelAsTable, TabledNetwork
from tiny_models import save_tiny

from hierspec.core.context import Context
from hierspec.core.nodes import Draft, Verify
from hierspec.core.windows import ConfidenceWindow, EntropyWindow, FixedWindow
from hierspec.lm.base import Query
from hierspec.lm.eagle3 import checkpoint
from hierspec.lm.eagle3.model import Eagle3Model
from hierspec.lm.load import load
from hierspec.lm.trunk.trunk import Trunk
from hierspec.sampling.parameters import SamplingParams
from hierspec.verifiers.registry import get

V = 3
RULES = ("tokenwise", "block", "naive")
WINDOWS = {
    "fixed": FixedWindow(),
    "entropy": EntropyWindow(threshold=0.6),
    "running entropy": EntropyWindow(),
    "confidence": ConfidenceWindow(floor=0.5),
}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A target of three tokens, float64, an exit of it, and a drafter that knows two of them."""
    folder = tmp_path_factory.mktemp("models")
    small = {"vocab_size": V, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    path = save_tiny("llama", folder / "target", layers=4, **small)
    backend = load(path)
    trunk = Trunk(backend, LAYERS)
    drafter = save_drafter(folder / "eagle3", backend.config, known=2)
    network = checkpoint.read_network(drafter)
    return trunk.view(), trunk.view(2), Eagle3Model(trunk, network, LAYERS, "eagle3")


def tv(root, target, horizon=3, params=None, **more):
    params = params or SamplingParams(temperature=1.0)
    found = engine_law(root, PROMPT, horizon, params, **more)
    assert sum(found.values()) == pytest.approx(1.0, abs=1e-9)
    return distance(found, ModelAsTable(target), PROMPT, horizon, params)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("stub", [False, True])
def test_every_rule_keeps_the_law(models, rule, stub):
    target, _, eagle = models
    leaf = TabledNetwork(target) if stub else eagle
    below = Draft(0, "eagle3", leaf, 2)
    root = Verify(1, "target", target, 1, get(rule), below)
    assert tv(root, target) < TIGHT


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("rule", ["tokenwise", "block"])
def test_every_window_keeps_the_law(models, window, rule):
    target, _, eagle = models
    below = Draft(0, "eagle3", eagle, 3, window=WINDOWS[window], temperature=0.7)
    root = Verify(1, "target", target, 1, get(rule), below)
    assert tv(root, target) < TIGHT


@pytest.mark.parametrize(("low", "high"), [*product(("tokenwise", "block"), repeat=2)])
@pytest.mark.parametrize("stub", [False, True])
def test_a_level_above_it_keeps_the_law(models, low, high, stub):
    target, exit_, eagle = models
    leaf = TabledNetwork(target) if stub else eagle
    below = Draft(0, "eagle3", leaf, 1)
    middle = Verify(1, "exit", exit_, 2, get(low), below)
    root = Verify(2, "target", target, 1, get(high), middle)
    assert tv(root, target) < TIGHT


def test_sampling_parameters_and_neighbours_change_nothing(models):
    target, _, eagle = models
    below = Draft(0, "eagle3", eagle, 2)
    root = Verify(1, "target", target, 1, get("block"), below)
    others = (
        Neighbour((0, 2, 1, 1), SamplingParams(temperature=0.6), num_tokens=2),
        Neighbour((2,), SamplingParams(temperature=0.0)),
    )
    for params in (
        SamplingParams(temperature=1.0),
        SamplingParams(temperature=0.8, top_k=2),
        SamplingParams(temperature=1.2, top_p=0.8, frequency_penalty=0.3),
    ):
        assert tv(root, target, params=params, neighbours=others) < TIGHT


def test_several_drafts_keep_the_law(models):
    target, _, eagle = models
    below = Draft(0, "eagle3", eagle, 1, num_drafts=2)
    root = Verify(1, "target", target, 1, get("rrs"), below)
    assert tv(root, target, horizon=2) < TIGHT


def test_the_drafter_is_what_is_drafted_from(models, monkeypatch):
    """The certificate would not notice a drafter that is never asked."""
    target, _, eagle = models
    asked, run = [], eagle._run_pending
    monkeypatch.setattr(eagle, "_run_pending", lambda states: asked.append(1) or run(states))
    below = Draft(0, "eagle3", eagle, 2)
    engine_law(Verify(1, "target", target, 1, get("block"), below), PROMPT, 3)
    assert asked
    slot = target.open()
    row = eagle.score([Query(slot, Context(PROMPT), len(PROMPT))])[0]
    assert int(torch.isinf(row).sum()) == 1
    target.cache_owner.close(slot)
