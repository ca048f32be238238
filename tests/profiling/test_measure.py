"""A whole measurement."""

from __future__ import annotations

import numpy as np
import pytest
from profiling_cases import PROMPTS, SMALL, V

from hierspec import TargetConfig
from hierspec.planner.search import ALL_VARIATIONS, plan
from hierspec.profiling.candidates import load, parse
from hierspec.profiling.measure import measure
from hierspec.profiling.profile import from_dict
from hierspec.profiling.settings import ProfileSettings
from hierspec.profiling.stages import Stages
from hierspec.utils.testing import tiny_model


def by_name(data, label):
    names = [model["name"] for model in data["models"]]
    return {
        (names[pair["drafter"]], names[pair["verifier"]]): {
            k: v for k, v in pair.items() if k not in ("drafter", "verifier")
        }
        for pair in data["temperatures"][label]["pairs"]
    }


def test_the_same_seed_gives_the_same_rates(family, everything, whole, loaded):
    again = measure(
        TargetConfig(model=family["target"]), everything, PROMPTS, [1.0], SMALL, loaded=loaded
    )
    first, second = by_name(whole, "1.0"), by_name(again, "1.0")
    target = family["target"]
    # Which models may verify which others depends on times; what the target says does not.
    for candidate in everything:
        assert first[candidate.name, target] == second[candidate.name, target]


def test_everything_in_one_go(family, everything, whole):
    models = whole["models"]
    assert {m["name"] for m in models} == {*(c.name for c in everything), family["target"]}
    assert (models[-1]["name"], models[-1]["level"]) == (family["target"], None)
    at = {m["name"]: i for i, m in enumerate(models)}
    assert at["prompt-lookup"] == 0
    assert at["exit:1"] < at["exit:2"]
    assert models[at["exit:1"]]["owner"] == family["target"]
    assert models[at["prompt-lookup"]]["weights"] is None
    trunk = sum(p.numel() for p in tiny_model("llama", layers=3, vocab_size=V).parameters())
    assert whole["memory"][family["target"]] == 8 * trunk
    assert whole["memory"]["prompt_lookup"] == 0
    for measured in whole["temperatures"].values():
        last = len(models) - 1
        found = {(p["drafter"], p["verifier"]) for p in measured["pairs"]}
        assert {(i, last) for i in range(last)} <= found
        timed = {(row["drafter"], row["verifier"]) for row in measured["costs"]}
        assert timed == found | {(None, k) for k in range(1, last + 1)}
        for pair in measured["pairs"]:
            block, tokenwise = (np.array(pair["survival"][rule]) for rule in ("block", "tokenwise"))
            assert block[0] == tokenwise[0] == 1
            assert (np.diff(tokenwise) <= 1e-9).all()
            assert (block >= tokenwise - 1e-6).all()
            means = np.array([part["tokenwise"] for part in pair["classes"]])
            np.testing.assert_allclose(np.full(4, 0.25) @ means, tokenwise, atol=2e-6)
        assert measured["token_ms"] >= 0


def test_an_exit_of_the_whole_trunk_is_always_right(family, loaded):
    target = TargetConfig(model=family["target"])
    data = measure(target, [parse("exit:3")], PROMPTS, [1.0], SMALL, loaded=loaded)
    (pair,) = data["temperatures"]["1.0"]["pairs"]
    assert pair["acceptance"] == pytest.approx(1)
    np.testing.assert_allclose(pair["survival"]["block"], 1)
    assert pair["kept"] == pair["lengths"] == [3] * pair["drafts"]


def test_prompt_lookup_alone(family, loaded):
    target = TargetConfig(model=family["target"])
    data = measure(target, [parse("prompt-lookup")], PROMPTS, [0.0], SMALL, loaded=loaded)
    estimates = from_dict(data).estimates(0.0)
    answer = plan(estimates, variations=ALL_VARIATIONS)
    assert len(data["temperatures"]["0.0"]["pairs"][0]["classes"]) == 4  # one for each place
    assert answer.best.ms <= estimates.plain_ms + 1e-9


def test_bad_requests(family, loaded):
    target, exits = TargetConfig(model=family["target"]), [parse("exit:1")]
    with pytest.raises(ValueError, match="no candidates"):
        measure(target, [], PROMPTS, [0.0], SMALL)
    with pytest.raises(ValueError, match="no prompt to measure on"):
        measure(target, exits, ["", ""], [0.0], SMALL, loaded=loaded)
    long = ProfileSettings(max_speculative_tokens=32, rounds=8)
    with pytest.raises(ValueError, match="contexts of 256 tokens have no room"):
        measure(target, exits, PROMPTS, [0.0], long, loaded=loaded)
    for wrong in ({"tokens": 0}, {"max_speculative_tokens": 33}, {"min_ratio": float("nan")}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            ProfileSettings(**wrong)


def test_empty_prompts_do_not_use_up_those_asked_for(family, loaded):
    target = TargetConfig(model=family["target"])
    data = measure(target, [parse("exit:1")], ["", "", *PROMPTS], [0.0], SMALL, loaded=loaded)
    assert data["prompts"]["count"] == 2


def test_prompts_without_room_for_what_is_written_are_left_out(tiny_family):
    """A long prompt does not cut the texts of all others short."""
    pool = load(TargetConfig(model=tiny_family["target"]), [parse("prompt-lookup")])
    longest = pool.entrants[-1].model.max_length
    settings = ProfileSettings(tokens=12, rounds=1, max_speculative_tokens=2)
    prompts = [[1, 2, 3], [4] * (longest - 15), [5, 6]]
    stages = Stages(pool, prompts, settings, lambda *_: None)
    assert (stages.prompts, stages.tokens) == ([[1, 2, 3], [5, 6]], 12)
    alone = Stages(pool, prompts[1:2], settings, lambda *_: None)
    assert (alone.prompts, alone.tokens) == (prompts[1:2], 6)
