"""Profiles of chat models: on their answers to questions, with whatever drafts for them."""

import dataclasses
from types import SimpleNamespace

import pytest
import torch
from chat_models import save_chat
from profiling_cases import EveryPair

from hierspec.config.schema import TargetConfig
from hierspec.errors import HierspecError
from hierspec.lm.native import library
from hierspec.planner.plan import PricedChain
from hierspec.profiling import auto
from hierspec.profiling.candidates import choose_candidates, default_names, parse
from hierspec.profiling.settings import ProfileSettings
from hierspec.profiling.texts import CHATS, chats
from hierspec.zoo import trained

QUICK = ProfileSettings(
    max_speculative_tokens=4, tokens=8, places=2, rounds=1, prompts=2, repeats=1, classes=1
)


@pytest.fixture
def model(tmp_path, monkeypatch):
    monkeypatch.setenv("HIERSPEC_CACHE", str(tmp_path / "cache"))
    return save_chat(tmp_path / "model")


def test_auto_measures_the_answers_of_a_chat_model(model, monkeypatch):
    seen = []
    measure = auto.measure

    def spied(target, chosen, prompts, *rest, **options):
        seen.extend(prompts)
        return measure(target, chosen, prompts, *rest, **options, stages=EveryPair)

    monkeypatch.setattr(auto, "measure", spied)
    monkeypatch.setattr(auto, "QUICK", QUICK)
    found = auto.choose(TargetConfig(model=model), ["prompt-lookup", "exit:1", "exit:2"],
                        chat=True)  # fmt: skip
    assert found.measured_now
    assert len(seen) == len(CHATS)
    assert all(isinstance(prompt, list) for prompt in seen)
    target, own = TargetConfig(model=model), [parse("prompt-lookup")]
    assert auto.cache_path(target, own) != auto.cache_path(target, own, chat=True)
    plan = found.plan
    if len(plan.best.chain.models) > 2:
        assert plan.stacked is None
        assert plan.three_levels_note == ""
    else:
        assert isinstance(plan.stacked, PricedChain)
        assert plan.stacked.ms >= plan.best.ms
        assert "three levels do not pay here" in plan.three_levels_note
        assert len(plan.to_dict()["three_levels"]["names"]) > 2


def test_a_model_without_a_template_is_refused():
    with pytest.raises(HierspecError, match="no chat template"):
        chats(object())


def test_what_is_shipped_for_a_model_is_a_candidate(monkeypatch):
    file, smollm2 = SimpleNamespace(exits=(5, 10)), TargetConfig(model="zoo:smollm2")
    names = ("zoo:smollm2-eagle3", "zoo:smollm2-heads", "zoo:smollm2-small")
    monkeypatch.setattr(trained, "drafters_for", lambda target: names)
    monkeypatch.setattr("hierspec.config.exit_heads.read", lambda name: file)
    monkeypatch.setattr("hierspec.config.checkpoints.can_be_copied", lambda target: True)
    stored = SimpleNamespace(dtype=torch.bfloat16)
    monkeypatch.setattr("hierspec.config.checkpoints.model_config", lambda model: stored)
    monkeypatch.setattr(library, "is_expected", lambda: False)
    monkeypatch.setattr("hierspec.zoo.registry.bits_in_file", lambda model: 5.0)
    monkeypatch.setattr("hierspec.utils.machine.device", lambda name: torch.device("cpu"))
    assert default_names(smollm2) == [
        "prompt-lookup",
        "suffix",
        "zoo:smollm2-eagle3",
        "exit:5,head=zoo:smollm2-heads",
        "exit:10,head=zoo:smollm2-heads",
        "zoo:smollm2-small",  # without kernels no copy pays
    ]
    monkeypatch.setattr(library, "is_expected", lambda: True)
    assert default_names(smollm2)[-1] == "zoo:smollm2-small", "no copy is in fewer bits"
    assert default_names(dataclasses.replace(smollm2, dtype="bfloat16"))[-2:] == [
        "quantized:5,calibrate=false",
        "quantized",
    ]
    assert not any(name.startswith("exit:") for name in default_names(smollm2))
    monkeypatch.setattr("hierspec.utils.machine.device", lambda name: torch.device("cuda"))
    assert default_names(smollm2)[-2:] == ["quantized:4,calibrate=false", "quantized"]
    assert "exit:5,head=zoo:smollm2-heads" in default_names(smollm2)
    assert parse("exit:5,head=zoo:smollm2-heads").level.head == "zoo:smollm2-heads"


def test_a_tree_is_tried_where_rows_cost_little(monkeypatch):
    target = TargetConfig(model="zoo:tiny")

    def trees(*names):
        return [c.name for c in choose_candidates(target, names) if c.makes_several]

    monkeypatch.setattr("hierspec.utils.machine.device", lambda name: torch.device("cpu"))
    assert trees() == []
    monkeypatch.setattr("hierspec.utils.machine.device", lambda name: torch.device("cuda"))
    assert trees() == ["zoo:tiny-draft,num_drafts=4"]
    assert trees("a/b", "zoo:tiny-draft") == ["a/b,num_drafts=4"]
    assert trees("a/b,window=entropy", "zoo:tiny-draft") == ["zoo:tiny-draft,num_drafts=4"]
    assert trees("a/b", "a/b,num_drafts=4") == ["a/b,num_drafts=4"]
    assert trees("ngram", "a/b") == [], "a list of the user's own is the whole list"
    tree = next(c for c in choose_candidates(target, ["a/b"]) if c.makes_several)
    assert tree == parse("a/b,num_drafts=4")
