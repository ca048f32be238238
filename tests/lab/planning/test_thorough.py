"""What ``hierspec profile`` measures beyond what ``auto`` does."""

from __future__ import annotations

import numpy as np
import pytest
from profiling_cases import PROMPTS, SMALL, made, save_model

from hierspec import TargetConfig
from hierspec.planner.estimates import Chain
from hierspec.planner.latency import latency
from hierspec.profiling.candidates import parse
from hierspec.profiling.profile import from_dict
from hierspec_lab.planning import thorough
from hierspec_lab.planning.thorough import in_context, measure, under_tokenwise


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return TargetConfig(model=save_model(tmp_path_factory.mktemp("models") / "target"))


def test_every_pair_is_followed_and_timed_at_all_lengths(target, monkeypatch):
    monkeypatch.setattr(thorough, "LONG_CONTEXT", 200)
    monkeypatch.setattr("hierspec.profiling.stages.MIN_CONTEXT", 20)
    candidates = [parse(name) for name in ("exit:1", "exit:2", "exit:3", "prompt-lookup")]
    stages = []
    data = measure(
        target, candidates, PROMPTS, [1.0], SMALL, report=lambda stage, _: stages.append(stage)
    )
    assert {"drafts of exit:1", "costs in a long context"} <= set(stages)
    assert "drafts of prompt-lookup" not in stages  # followed along the texts
    measured, last = data["temperatures"]["1.0"], len(candidates)
    found = {(pair["drafter"], pair["verifier"]) for pair in measured["pairs"]}
    assert {(i, last) for i in range(last)} <= found
    timed = {(row["drafter"], row["verifier"]) for row in measured["costs"]}
    assert timed == found | {(None, k) for k in range(1, last + 1)}
    for pair in measured["pairs"]:
        assert ("acceptance_on_prompts" in pair) == ("acceptance" in pair)
    at = {model["name"]: i for i, model in enumerate(data["models"])}
    for row in measured["costs"]:
        if row["drafter"] not in (None, at["prompt-lookup"]):
            assert list(row["check"]) == ["1", "2", "3"]
    whole = next(p for p in measured["pairs"] if p["drafter"] == at["exit:3"])
    assert whole["acceptance_on_prompts"] == pytest.approx(1)
    assert whole["drafts"] == SMALL.places * SMALL.rounds * len(PROMPTS)
    assert measured["context"]["long"] == 200
    assert [row["model"] for row in measured["context"]["slopes"]] == [*range(1, last + 1)]


def profile(**changes):
    models, memory, measured = made(**changes)
    return from_dict(
        {
            "kind": "hierspec-profile",
            "schema_version": 1,
            "hardware": {},
            "target": {"model": "target"},
            "settings": {"max_speculative_tokens": 4},
            "temperatures": {"0.0": measured},
            "models": models,
            "memory": memory,
        }
    )


def estimated(found, context):
    return in_context(found, context).estimates()


def test_tokenwise_keeps_less():
    known, chain = profile(), Chain((0, 1), (2,))
    block, tokenwise = known.estimates(), under_tokenwise(known).estimates()
    np.testing.assert_allclose(
        tokenwise.survival[0, 1, :3], [1, (0.25 + 0.4) / 2, (0.0625 + 0.16) / 2]
    )
    assert latency(tokenwise, chain).ms_per_token > latency(block, chain).ms_per_token


def test_longer_contexts_cost_more():
    base, near, far = profile().estimates(), *(estimated(profile(), n) for n in (100, 300))
    np.testing.assert_array_equal(base.verify_ms, near.verify_ms)
    assert far.plain_ms == pytest.approx(base.plain_ms + 2)
    n = np.arange(5)
    np.testing.assert_allclose(far.draft_ms[0, :5] - base.draft_ms[0, :5], 0.2 * n)
    np.testing.assert_allclose(far.verify_ms[0, 1, :5] - base.verify_ms[0, 1, :5], 2 + 2 * n / 8)
    short = estimated(profile(), 1)
    assert 0 < short.plain_ms < base.plain_ms


def test_noise_in_slopes_makes_nothing_free_or_cheaper():
    context = {
        "tokens": 100,
        "long": 1000,
        "slopes": [
            {"model": 0, "ms_per_token_0": -0.5, "ms_per_token_8": -0.5},
            {"model": 1, "ms_per_token_0": 3.0, "ms_per_token_8": 5.0},
        ],
    }
    found = profile(context=context)
    base, far, near = found.estimates(), estimated(found, 4000), estimated(found, 0)
    np.testing.assert_array_equal(far.draft_ms[0], base.draft_ms[0])
    assert (near.verify_ms[0, 1] >= 0).all()
    assert near.plain_ms >= 0.25
