"""A whole measurement: what is in it, what is refused, and how an interrupted one goes on."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
from profiling_cases import PROMPTS, SMALL, EveryPair, Stop, V, save_model
from tiny_models import tiny_model

from hierspec import TargetConfig
from hierspec.planner.search import Variations, plan
from hierspec.profiling import agreement, costs, rates
from hierspec.profiling.candidates import load, parse
from hierspec.profiling.measure import measure
from hierspec.profiling.profile import from_dict, load_profile
from hierspec.profiling.settings import ProfileSettings
from hierspec.profiling.stages import Stages


def by_name(data, label):
    names = [model["name"] for model in data["models"]]
    return {
        (names[pair["drafter"]], names[pair["verifier"]]): {
            k: v for k, v in pair.items() if k not in ("drafter", "verifier")
        }
        for pair in data["temperatures"][label]["pairs"]
    }


def test_the_same_seed_gives_the_same_rates(family, everything, whole, loaded):
    target = TargetConfig(model=family["target"])
    again = measure(target, everything, PROMPTS, [1.0], SMALL, loaded=loaded, stages=EveryPair)
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
    data = measure(
        target, [parse("exit:3")], PROMPTS, [1.0], SMALL, loaded=loaded, stages=EveryPair
    )
    (pair,) = data["temperatures"]["1.0"]["pairs"]
    assert pair["acceptance"] == pytest.approx(1)
    np.testing.assert_allclose(pair["survival"]["block"], 1)
    assert pair["kept"] == pair["lengths"] == [3] * pair["drafts"]


def test_prompt_lookup_alone(family, loaded):
    target = TargetConfig(model=family["target"])
    data = measure(target, [parse("prompt-lookup")], PROMPTS, [0.0], SMALL, loaded=loaded)
    estimates = from_dict(data).estimates(0.0)
    answer = plan(estimates, variations=Variations(tail=4, dropped_bonus=True))
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
    longest = pool.members[-1].model.max_length
    settings = ProfileSettings(tokens=12, rounds=1, max_speculative_tokens=2)
    prompts = [[1, 2, 3], [4] * (longest - 15), [5, 6]]
    stages = Stages(pool, prompts, settings, lambda *_: None)
    assert (stages.prompts, stages.tokens) == ([[1, 2, 3], [5, 6]], 12)
    alone = Stages(pool, prompts[1:2], settings, lambda *_: None)
    assert (alone.prompts, alone.tokens) == (prompts[1:2], 6)


def test_an_interrupted_run_goes_on_where_it_was(family, loaded, tmp_path, monkeypatch):
    path = tmp_path / "profile.json"
    request = (TargetConfig(model=family["target"]), [parse("exit:1"), parse("exit:2")])

    def stopping(stage, share):
        if stage == "costs" and share > 0.5:  # at the second temperature
            raise Stop

    with pytest.raises(Stop):
        measure(*request, PROMPTS, [0.0, 1.0], SMALL, path=path, loaded=loaded, report=stopping)
    with pytest.raises(ValueError, match="is not finished"):
        load_profile(path)
    partial = json.loads(path.read_text())

    def unwanted(*_, **__):
        raise AssertionError("measured before")

    monkeypatch.setattr(agreement, "agreements", unwanted)
    for name in ("continuations", "follow_drafts"):
        monkeypatch.setattr(rates, name, unwanted)
    monkeypatch.setattr(costs, "single_calls", unwanted)
    shares = []
    data = measure(
        *request, PROMPTS, [0.0, 1.0], SMALL, path=path, loaded=loaded,
        report=lambda stage, share: shares.append(share),
    )  # fmt: skip
    assert json.loads(json.dumps(data)).items() <= load_profile(path).to_dict().items()
    assert set(data["temperatures"]) == {"0.0", "1.0"}
    assert data["temperatures"]["0.0"] == partial["temperatures"]["0.0"]
    assert data["models"] == partial["models"]
    assert "stages" not in data
    assert shares == sorted(shares)
    assert shares[-1] == 1.0


def test_costs_timed_once_are_planned_from_and_then_made_more_accurate(
    family, loaded, tmp_path, monkeypatch
):
    path, settings = tmp_path / "profile.json", dataclasses.replace(SMALL, repeats=3)
    request = (TargetConfig(model=family["target"]), [parse("exit:1"), parse("prompt-lookup")])
    time_calls, shares = costs.time_calls, []

    def stopping(*args, seed=0, **options):
        if seed == 1:  # the second repetition
            raise Stop
        return time_calls(*args, seed=seed, **options)

    monkeypatch.setattr(costs, "time_calls", stopping)
    with pytest.raises(Stop):
        measure(
            *request, PROMPTS, [0.0], settings, path=path, loaded=loaded,
            report=lambda stage, share: shares.append(share),
        )  # fmt: skip
    assert shares == sorted(shares)
    assert 0.2 < shares[-1] < 0.8
    profile = load_profile(path)
    assert profile.estimates(0.0).plain_ms > 0
    monkeypatch.setattr(costs, "time_calls", lambda *_, **__: pytest.fail("measured before"))
    data = measure(*request, PROMPTS, [0.0], settings, path=path, loaded=loaded)
    assert data["temperatures"] == profile.to_dict()["temperatures"]
    assert "stages" not in data


def test_a_finished_profile_grows_and_stays_usable_meanwhile(family, loaded, tmp_path):
    path = tmp_path / "profile.json"
    request = (TargetConfig(model=family["target"]), [parse("exit:1"), parse(family["draft"])])
    first = measure(*request, PROMPTS, [0.0], SMALL, path=path, loaded=loaded)

    def stopping(stage, share):
        if stage == "costs":
            raise Stop

    with pytest.raises(Stop):
        measure(*request, PROMPTS, [1.0], SMALL, path=path, loaded=loaded, report=stopping)
    assert load_profile(path).measured_at == [0.0]
    grown = measure(*request, PROMPTS, [0.0, 1.0], SMALL, path=path, loaded=loaded)
    assert load_profile(path).measured_at == [0.0, 1.0]
    assert grown["temperatures"]["0.0"] == json.loads(json.dumps(first))["temperatures"]["0.0"]
    assert grown["models"] == first["models"]  # the numbers of pairs mean the same models


def test_models_keep_their_numbers_although_times_have_changed(
    family, loaded, tmp_path, monkeypatch
):
    path = tmp_path / "profile.json"
    request = (TargetConfig(model=family["target"]), [parse("exit:1"), parse(family["draft"])])
    monkeypatch.setattr(costs, "single_calls", lambda *_: [1.0, 2.0, 9.0])
    first = measure(*request, PROMPTS, [0.0], SMALL, path=path, loaded=loaded)
    monkeypatch.setattr(costs, "single_calls", lambda *_: [2.0, 1.0, 9.0])
    grown = measure(*request, PROMPTS, [0.0, 1.0], SMALL, path=path, loaded=loaded)
    assert [m["name"] for m in grown["models"]] == [m["name"] for m in first["models"]]
    names = [m["name"] for m in grown["models"]]
    assert names[0] == "exit:1"


def test_another_request_starts_anew(family, loaded, tmp_path):
    path = tmp_path / "profile.json"
    target = TargetConfig(model=family["target"])
    measure(target, [parse("exit:1")], PROMPTS, [0.0], SMALL, path=path, loaded=loaded)
    measure(target, [parse("exit:2")], PROMPTS, [1.0], SMALL, path=path, loaded=loaded)
    profile = load_profile(path)
    assert profile.measured_at == [1.0]
    assert [model.name for model in profile.models] == ["exit:2", family["target"]]


def test_changed_weights_start_anew(family, tmp_path):
    path, folder = tmp_path / "profile.json", tmp_path / "model"
    save_model(folder)
    request = (TargetConfig(model=str(folder)), [parse("exit:1")], PROMPTS)
    measure(*request, [0.0], SMALL, path=path)
    save_model(folder, noise=0.1)
    measure(*request, [1.0], SMALL, path=path)
    assert load_profile(path).measured_at == [1.0]
