"""The profile file: read and written as it is, refused where damaged or of another machine."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from profiling_cases import PROMPTS, SMALL

from hierspec import TargetConfig
from hierspec.planner.search import plan
from hierspec.profiling.candidates import parse
from hierspec.profiling.measure import measure
from hierspec.profiling.profile import from_dict, is_intact, load_profile, save


def test_a_profile_survives_its_file(whole, file):
    profile = load_profile(file)
    read = profile.to_dict()
    assert is_intact(read)
    assert read == json.loads(json.dumps(whole))
    assert profile.measured_at == [0.0, 1.0]
    assert profile.max_measured == SMALL.max_speculative_tokens
    assert [profile.nearest(t) for t in (0, 1e-4, 0.7, 3)] == [0, 1, 1, 1]
    first, second = from_dict(whole).estimates(1.0), profile.estimates(1.0)
    np.testing.assert_array_equal(first.verify_ms, second.verify_ms)
    np.testing.assert_array_equal(first.survival, second.survival)
    assert not list(file.parent.glob(".*.tmp"))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"unfinished": True}, "is not finished: give the same hierspec profile command again"),
        ({"kind": "hierspec-trace"}, "is not a profile: hierspec profile -o FILE writes one"),
        ({"schema_version": 99}, "schema version 99"),
        ({"temperatures": {}}, "damaged: temperatures must be"),
        ({"temperatures": {"hot": {}}}, "damaged: temperatures.hot: could not convert"),
        ({"temperatures": None}, "damaged: temperatures must be an object, not None"),
        (
            {"temperatures": {"-1": {}}},
            "damaged: temperatures['-1']: a temperature must be 0 (greedy)",
        ),
        ({"models": [{"name": "x"}]}, "damaged: models[0]: 'level' is missing"),
        ({"models": []}, "damaged: models must be a list of at least 1, not []"),
        ({"settings": None}, "damaged: settings must be an object, not None"),
        ({"settings": {}}, "damaged: settings: 'max_speculative_tokens' is missing"),
        (
            {"settings": {"max_speculative_tokens": 0}},
            "damaged: settings.max_speculative_tokens must be an integer of at least 1, not 0",
        ),
        ({"hardware": 3}, "damaged: hardware must be an object, not 3"),
        ({"target": {}}, "damaged: target: 'model' is missing"),
        (
            {"models": [{"name": "x", "level": {"method": "magic"}}]},
            "damaged: models[0].level: method is 'magic'; there are: ",
        ),
    ],
)
def test_files_that_are_no_profiles(whole, file, change, words):
    save({**whole, **change}, file)
    with pytest.raises(ValueError, match=r"^[^\n]*$") as error:
        load_profile(file)
    assert words in str(error.value)
    assert str(file) in str(error.value)


def test_damaged_and_missing_files(file):
    text = file.read_text()
    for body in (text[: len(text) // 2], "[]", "", "\x00"):
        file.write_text(body)
        with pytest.raises(ValueError, match=r"not valid JSON|is not a profile"):
            load_profile(file)
    file.write_bytes(b"\xff\xfe\xff")
    with pytest.raises(ValueError, match="not a text file"):
        load_profile(file)
    with pytest.raises(ValueError, match="cannot read the profile"):
        load_profile(file.with_name("none.json"))


def test_a_profile_is_written_as_it_was_measured(whole):
    """Key for key: what is not there is not written as null or as its default."""
    written = from_dict(whole).to_dict()
    assert json.dumps(written) == json.dumps(whole)
    times = whole["temperatures"]["0.0"]["costs"][-1]["check"]
    assert list(times) == ["1", "2", "3"]
    pairs = whole["temperatures"]["0.0"]["pairs"]
    assert (
        {"joint" in pair for pair in pairs}
        == {"acceptance" in pair for pair in pairs}
        == {
            True,
            False,
        }
    )


def test_the_recorded_profiles_are_read_and_written_as_they_are():
    results = Path(__file__).parents[2] / "benchmarks" / "results"
    record = json.loads((results / "reproduce-p1-models.json").read_text())["record"]
    recorded = [data for key, data in record.items() if key.startswith("profile of ")]
    assert len(recorded) == 2
    for data in recorded:
        profile = from_dict(data)
        assert profile.to_dict() == data
        assert plan(profile.estimates(0.0)).best.ms > 0


def test_keys_of_other_versions_are_kept(whole):
    data = json.loads(json.dumps(whole))
    measured = data["temperatures"]["0.0"]
    parts = (data, data["models"][0], measured, measured["pairs"][0], measured["costs"][0])
    for part in (*parts, measured["pairs"][0]["classes"][0], measured["noise"]):
        part["later"] = {"key": [1]}
    assert from_dict(data).to_dict() == data


def test_a_profile_that_grows_keeps_the_keys_of_other_versions(family, loaded, tmp_path):
    path = tmp_path / "profile.json"
    request = (TargetConfig(model=family["target"]), [parse("exit:1")])
    data = measure(*request, PROMPTS, [0.0], SMALL, path=path, loaded=loaded)
    first = {"later": 1} | data
    first["temperatures"]["0.0"] = {"later": 2} | first["temperatures"]["0.0"]
    first["models"][0] = {"later": 3} | first["models"][0]
    save(first, path)
    grown = measure(*request, PROMPTS, [0.0, 1.0], SMALL, path=path, loaded=loaded)
    read = json.loads(path.read_text())
    assert is_intact(read)
    assert read == grown
    assert list(grown) == list(first)
    del grown["temperatures"]["1.0"]
    assert json.dumps(grown) == json.dumps(first)


def test_a_measurement_without_its_parts_is_damaged(whole):
    for part in ("pairs", "costs", "context", "token_ms"):
        measured = {k: v for k, v in whole["temperatures"]["0.0"].items() if k != part}
        with pytest.raises(
            ValueError, match=rf"damaged: temperatures\['0\.0'\]: '{part}' is missing; "
        ):
            from_dict({**whole, "temperatures": {"0.0": measured}})
    alone = [row for row in whole["temperatures"]["0.0"]["costs"] if row["drafter"] is not None]
    measured = {**whole["temperatures"]["0.0"], "costs": alone}
    with pytest.raises(ValueError, match="damaged"):
        from_dict({**whole, "temperatures": {"0.0": measured}}).estimates(0.0)


def test_a_call_in_no_time_is_damaged(whole):
    data = json.loads(json.dumps(whole))
    data["temperatures"]["0.0"]["costs"][0]["check"]["0"]["mean"] = 0.0
    with pytest.raises(ValueError, match="mean must be a positive number, not 0"):
        from_dict(data)


@pytest.mark.parametrize("share", [-0.1, 1.5])
def test_a_share_that_is_none_is_damaged(whole, share):
    data = json.loads(json.dumps(whole))
    data["temperatures"]["0.0"]["pairs"][0]["survival"]["block"][-1] = share
    with pytest.raises(ValueError, match=f"must be a number from 0 to 1, not {share}"):
        from_dict(data)


def test_every_key_of_the_file_is_documented(whole):
    page = (Path(__file__).parents[2] / "docs" / "profiles.md").read_text()
    measured = whole["temperatures"]["1.0"]
    times = next(row for row in measured["costs"] if row["draft"])
    parts = [whole, whole["hardware"], whole["models"][0], measured, measured["context"], times]
    parts += [next(iter(times["check"].values())), *measured["context"]["slopes"][:1]]
    parts += measured["pairs"]
    for key in {key for part in parts for key in part}:
        assert f"`{key}`" in page, key
