"""The profile file, what interrupts it, and what is built on it: hierarchies, auto, the command."""

from __future__ import annotations

import dataclasses
import json
import threading
from pathlib import Path

import numpy as np
import pytest
from fakes import bytes_tokenizer
from profiling_cases import PROMPTS, SMALL, V, save_model

from hierspec import Hierarchy, HierarchyConfig, TargetConfig, cli
from hierspec.config.build import build
from hierspec.drafters.ngram_table import NgramModel
from hierspec.lm.lean import kernels
from hierspec.planner.estimates import Chain
from hierspec.planner.latency import latency
from hierspec.planner.online.prices import default_catch_up
from hierspec.planner.search import ALL_VARIATIONS, plan
from hierspec.profiling import agreement, auto, costs, rates
from hierspec.profiling.candidates import choose_candidates, load, parse
from hierspec.profiling.measure import _merge_file, measure
from hierspec.profiling.memory import memory
from hierspec.profiling.profile import from_dict, load_profile, save
from hierspec.utils.testing import tiny_model

# The file


@pytest.fixture
def file(whole, tmp_path):
    path = tmp_path / "profile.json"
    save(whole, path)
    return path


def test_a_profile_survives_its_file(whole, file):
    profile = load_profile(file)
    assert profile.data.to_dict() == json.loads(json.dumps(whole))
    assert profile.temperatures == [0.0, 1.0]
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
        ({"hardware": 3}, "damaged: hardware must be an object, not 3"),
        ({"target": {}}, "damaged: target: 'model' is missing"),
        (
            {"models": [{"name": "x", "level": {"method": "magic"}}]},
            "damaged: models[0].level: method is 'magic'; there are: draft_model",
        ),
    ],
)
def test_files_that_are_no_profiles(whole, file, change, words):
    save({**whole, **change}, file)
    for force in (False, True):
        with pytest.raises(ValueError, match=r"^[^\n]*$") as error:
            load_profile(file, force=force)
        assert words in str(error.value)
        assert str(file) in str(error.value)


def test_damaged_and_missing_files(file):
    text = file.read_text()
    for body in (text[: len(text) // 2], "[]", "", "\x00"):
        file.write_text(body)
        with pytest.raises(ValueError, match=r"not valid JSON|is not a profile"):
            load_profile(file)
    file.write_bytes(b"\xff\xfe\xff")
    with pytest.raises(ValueError, match="not valid JSON"):
        load_profile(file)
    with pytest.raises(ValueError, match="cannot read the profile"):
        load_profile(file.with_name("none.json"))


def test_a_profile_is_written_as_it_was_measured(whole):
    """Key for key: what is not there is not written as null or as its default."""
    written = from_dict(whole).data.to_dict()
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
    recorded = [json.loads((results / "unchanged.json").read_text())["profile"]]
    record = json.loads((results / "reproduce-p1-models.json").read_text())["record"]
    recorded += [data for key, data in record.items() if key.startswith("profile of ")]
    assert len(recorded) == 3
    for data in recorded:
        profile = from_dict(data)
        assert profile.data.to_dict() == data
        assert plan(profile.estimates(0.0)).best.ms > 0


def test_keys_of_other_versions_are_kept(whole):
    data = json.loads(json.dumps(whole))
    measured = data["temperatures"]["0.0"]
    parts = (data, data["models"][0], measured, measured["pairs"][0], measured["costs"][0])
    for part in (*parts, measured["pairs"][0]["classes"][0], measured["noise"]):
        part["later"] = {"key": [1]}
    assert from_dict(data).data.to_dict() == data


def test_a_profile_that_grows_keeps_the_keys_of_other_versions(family, loaded, tmp_path):
    path = tmp_path / "profile.json"
    request = (TargetConfig(model=family["target"]), [parse("exit:1")])
    data = measure(*request, PROMPTS, [0.0], SMALL, path=path, loaded=loaded)
    first = {"later": 1} | data
    first["temperatures"]["0.0"] = {"later": 2} | first["temperatures"]["0.0"]
    first["models"][0] = {"later": 3} | first["models"][0]
    save(first, path)
    grown = measure(*request, PROMPTS, [0.0, 1.0], SMALL, path=path, loaded=loaded)
    assert json.loads(path.read_text()) == grown
    assert list(grown) == list(first)
    del grown["temperatures"]["1.0"]
    assert json.dumps(grown) == json.dumps(first)


def test_records_of_a_profile(whole):
    profile = from_dict(whole)
    for temperature in (0.0, 1.0):
        records = profile.records(temperature)
        for pair in whole["temperatures"][repr(temperature)]["pairs"]:
            assert records.lengths[pair["drafter"]] == pair["lengths"]
            assert records.kept[pair["drafter"], pair["verifier"]] == pair["kept"]
    assert profile.records(0.9).kept == profile.records(1.0).kept


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
    with pytest.raises(ValueError, match="block and tokenwise"):
        from_dict(whole).estimates(0.0, rule="naive")


@pytest.mark.parametrize(
    ("key", "words"),
    [("processor", "processor was 'abacus'"), ("torch", "torch was 'abacus'"),
     ("hierspec", "hierspec was 'abacus'"), ("device", "device was 'abacus'")],
)  # fmt: skip
def test_profiles_of_other_machines(whole, file, key, words):
    save({**whole, "hardware": {**whole["hardware"], key: "abacus"}}, file)
    with pytest.raises(ValueError, match=r"add --force") as error:
        load_profile(file)
    assert words in str(error.value)
    assert load_profile(file, force=True).temperatures == [0.0, 1.0]


def test_profiles_of_other_weights(whole, file):
    others = [{**model, "weights": "0" * 16 if model["weights"] else None}
              for model in whole["models"]]  # fmt: skip
    save({**whole, "models": others}, file)
    with pytest.raises(ValueError, match=r"the weights of .* have changed"):
        load_profile(file)
    load_profile(file, force=True)


def test_models_are_found_by_their_names_not_their_owners(whole, file):
    def saved(**changes):
        named = [model["level"] and "model" in model["level"] for model in whole["models"]]
        models = [{**model, **changes} if name else model
                  for model, name in zip(whole["models"], named, strict=True)]  # fmt: skip
        save({**whole, "models": models}, file)

    saved(owner="draft (float32)")
    load_profile(file)
    saved(level={"method": "draft_model", "model": "models/none"})
    with pytest.raises(ValueError, match="'models/none' not found from here: run from the folder"):
        load_profile(file)


def test_a_plan_with_the_targets_int8_copy(family, loaded, tmp_path):
    """What it drafts, verifies and weighs; the profile holds while the target's files do."""
    target, path = TargetConfig(model=family["target"], dtype="float32"), tmp_path / "p.json"
    candidates = [parse("prompt-lookup"), parse("quantized")]
    data = measure(target, candidates, PROMPTS, [0.0], SMALL, path=path, loaded=loaded)
    profile = load_profile(path)
    number = next(i for i, m in enumerate(profile.models) if m.name == "quantized")
    copy, trunk = profile.models[number].owner, data["memory"][family["target"]]
    assert copy != family["target"]
    layers, head = 3 * 9216, -(-V // 16) * 16 * 32  # weights; the output matrix by 16 rows
    weighs = layers + head if kernels.load() else trunk // 4  # a byte a weight
    assert data["memory"][copy] == weighs
    (pair,) = [p for p in data["temperatures"]["0.0"]["pairs"]
               if (p["drafter"], p["verifier"]) == (number, 2)]  # fmt: skip
    assert pair["equal_argmax"] > 0.5
    estimates = profile.estimates()
    assert estimates.bytes([number, 2]) == trunk + weighs
    if kernels.load():  # of 4 bits, and a step and a lowest value in 16 bits for 32 weights
        fewer = load(target, [parse("quantized:4")], loaded)
        assert memory(fewer)[fewer.entrants[0].owner] == layers * 5 // 8 + head
    chain = Chain((number, 2), (2,))
    assert latency(estimates, chain).ms_per_token > 0
    answer = plan(estimates, memory=trunk)  # no room for a copy
    assert number not in answer.best.chain.models
    drafting = HierarchyConfig.from_dict(profile.hierarchy(chain))
    texts = [Hierarchy(build(config, loaded)).generate([5, 9, 7], max_new_tokens=8, ignore_eos=True)
             for config in (drafting, HierarchyConfig(target=target))]  # fmt: skip
    assert texts[0].token_ids == texts[1].token_ids
    data["models"][number]["weights"] = "0" * 16
    save(data, path)
    with pytest.raises(ValueError, match=r"the weights of .* have changed"):
        load_profile(path)


def test_threads_are_a_choice(whole, file):
    save({**whole, "hardware": {**whole["hardware"], "threads": 1000}}, file)
    load_profile(file)


# Interruptions


class Stop(Exception):  # noqa: N818 not an error
    pass


def test_an_interrupted_run_goes_on_where_it_was(family, loaded, tmp_path, monkeypatch):
    path = tmp_path / "profile.json"
    request = (TargetConfig(model=family["target"]), [parse("exit:1"), parse("exit:2")])

    def stopping(stage, share):
        if stage == "costs" and share > 0.75:  # at the second temperature
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
    assert load_profile(path).data.to_dict() == json.loads(json.dumps(data))
    assert set(data["temperatures"]) == {"0.0", "1.0"}
    assert data["temperatures"]["0.0"] == partial["temperatures"]["0.0"]
    assert data["models"] == partial["models"]
    assert "stages" not in data
    assert shares == sorted(shares)
    assert shares[-1] == 1.0


def test_a_finished_profile_grows_and_stays_usable_meanwhile(family, loaded, tmp_path):
    path = tmp_path / "profile.json"
    request = (TargetConfig(model=family["target"]), [parse("exit:1"), parse(family["draft"])])
    first = measure(*request, PROMPTS, [0.0], SMALL, path=path, loaded=loaded)

    def stopping(stage, share):
        if stage == "costs":
            raise Stop

    with pytest.raises(Stop):
        measure(*request, PROMPTS, [1.0], SMALL, path=path, loaded=loaded, report=stopping)
    assert load_profile(path).temperatures == [0.0]
    grown = measure(*request, PROMPTS, [0.0, 1.0], SMALL, path=path, loaded=loaded)
    assert load_profile(path).temperatures == [0.0, 1.0]
    assert grown["temperatures"]["0.0"] == json.loads(json.dumps(first))["temperatures"]["0.0"]
    assert grown["models"] == first["models"]  # the numbers of pairs mean the same models


def test_what_another_process_finishes_meanwhile_is_kept(family, loaded, tmp_path):
    path = tmp_path / "profile.json"
    request = (TargetConfig(model=family["target"]), [parse("exit:1"), parse(family["draft"])])

    def other(stage, share):
        if stage == "costs in a long context":
            measure(*request, PROMPTS, [1.0], SMALL, path=path, loaded=loaded)
            assert load_profile(path).temperatures == [1.0]

    data = measure(*request, PROMPTS, [0.0], SMALL, path=path, loaded=loaded, report=other)
    assert load_profile(path).data.to_dict() == data
    assert set(data["temperatures"]) == {"0.0", "1.0"}


def test_an_unfinished_measurement_replaces_no_finished_one(whole, file):
    mine = {**whole, "unfinished": True, "temperatures": {}}
    swapped = {**mine, "models": whole["models"][::-1]}
    assert not _merge_file(swapped, file)
    assert swapped["temperatures"] == {}
    assert _merge_file(mine, file)
    assert mine == load_profile(file).data.to_dict()
    assert _merge_file({**mine, "request": "another"}, file)


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
    assert profile.temperatures == [1.0]
    assert [model.name for model in profile.models] == ["exit:2", family["target"]]


def test_changed_weights_start_anew(family, tmp_path):
    path, folder = tmp_path / "profile.json", tmp_path / "model"
    save_model(folder)
    request = (TargetConfig(model=str(folder)), [parse("exit:1")], PROMPTS)
    measure(*request, [0.0], SMALL, path=path)
    save_model(folder, noise=0.1)
    with pytest.raises(ValueError, match="have changed"):
        load_profile(path)
    measure(*request, [1.0], SMALL, path=path)
    assert load_profile(path).temperatures == [1.0]


# Hierarchies


def chains(profile):
    """A chain of every shape, by model names."""
    at = {model.name: i for i, model in enumerate(profile.models)}
    last = len(at) - 1
    models = sorted(i for name, i in at.items() if name.startswith(("exit", "/")) and i < last
                    and "window" not in name)  # fmt: skip
    low, mid, high = models[:3]
    return {
        "plain": Chain((last,)),
        "single": Chain((low, last), (3,)),
        "lookup": Chain((at["prompt-lookup"], last), (3,)),
        "chain": Chain((low, mid, last), (2, 3)),
        "four": Chain((low, mid, high, last), (1, 2, 3)),
        "dropped": Chain((low, mid, last), (2, 3), dropped_bonus=(mid,)),
        "tail": Chain((low, mid, last), (2, 3), tail=2),
        "tails": Chain((low, mid, high, last), (2, 3, 4), tail=1),
        "interleaved": Chain((low, mid, last), (2, 2), order="interleaved"),
        "horizontal": Chain((low, mid, last), (2, 3), order="horizontal"),
        "window": Chain(
            (next(i for name, i in at.items() if name.endswith("entropy")), last), (3,)
        ),
    }


def test_every_shape_is_a_hierarchy_that_runs(whole, loaded):
    profile = from_dict(whole)
    prompt, texts = [72, 69, 76, 76, 79, 220, 72, 69], {}
    for name, chain in chains(profile).items():
        config = HierarchyConfig.from_dict(profile.hierarchy(chain))
        assert HierarchyConfig.from_dict(config.to_dict()) == config
        hierarchy = Hierarchy(build(config, loaded))
        result = hierarchy.generate(prompt, max_new_tokens=12, ignore_eos=True)
        texts[name] = result.token_ids
        budgets = [level.num_speculative_tokens for level in flat(config.levels)]
        if name in ("single", "lookup", "chain", "four", "dropped", "window"):
            assert budgets == list(chain.budgets)
    assert all(ids == texts["plain"] for ids in texts.values())
    assert len(texts["plain"]) == 12


def flat(levels):
    return [level for level in levels if hasattr(level, "num_speculative_tokens")]


def test_shapes_are_written_as_they_are_priced(whole):
    profile = from_dict(whole)
    shapes = {name: profile.hierarchy(chain) for name, chain in chains(profile).items()}
    assert shapes["plain"]["levels"] == []
    assert [level.get("bonus") for level in shapes["dropped"]["levels"]] == [None, False]
    (tail,) = shapes["tail"]["levels"]
    chain, (end,) = tail["parts"]
    assert [level["num_speculative_tokens"] for level in (*chain, end)] == [2, 3, 2]
    assert chain[1]["verify"] == shapes["tail"]["verify"] == "block"
    (inter,) = shapes["interleaved"]["levels"]
    sizes = [[level["num_speculative_tokens"] for level in part] for part in inter["parts"]]
    assert (inter["repeat"], sizes) == (2, [[2], [1]])
    (row,) = shapes["horizontal"]["levels"]
    assert [part[0]["num_speculative_tokens"] for part in row["parts"]] == [3, 2]
    first = profile.models[chains(profile)["horizontal"].models[1]].level
    assert row["parts"][0][0] == {**first, "num_speculative_tokens": 3}


def test_a_plan_of_every_shape_of_a_profile_runs(whole, loaded):
    profile = from_dict(whole)
    for temperature in profile.temperatures:
        answer = plan(profile.estimates(temperature), variations=ALL_VARIATIONS)
        assert answer.lower_bound <= answer.best.ms + 1e-9
        config = HierarchyConfig.from_dict(profile.hierarchy(answer.best.chain))
        hierarchy = Hierarchy(build(config, loaded))
        options = {"temperature": temperature, "seed": 1, "ignore_eos": True}
        assert hierarchy.generate([72, 69], max_new_tokens=5, **options).num_tokens == 5


# Auto


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HIERSPEC_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "profiles"


def test_auto_measures_once_and_each_temperature_once(family, cache):
    target, stages = TargetConfig(model=family["target"]), []

    def choose(temperature):
        stages.clear()
        return auto.choose(
            target, ["exit:1"], temperature=temperature, settings=SMALL,
            report=lambda stage, share: stages.append(stage),
        )  # fmt: skip

    first = choose(0.0)
    assert first.measured_now
    assert "costs" in stages
    assert first.path.parent == cache
    assert first.config.target.model == family["target"]
    second = choose(0.0)
    assert not second.measured_now
    assert stages == []
    assert second.config == first.config
    other = choose(0.9)
    assert other.measured_now
    assert other.profile.temperatures == [0.0, 0.9]
    assert other.profile.measured(0.0) == first.profile.measured(0.0)
    assert not choose(0.8).measured_now  # near enough
    first.path.write_text(first.path.read_text()[:1000])
    again = choose(0.0)
    assert again.measured_now
    assert again.profile.temperatures == [0.0]


def test_levels_on_the_targets_cache_have_nothing_to_read(family, cache):
    """However long the prompt: what drafts then is chosen as for a short one."""
    found = auto.choose(
        TargetConfig(model=family["target"]),
        ["prompt-lookup", "exit:1", "quantized", family["draft"]],
        settings=SMALL,
    )
    estimates = found.profile.estimates(0.0)
    along = dict(zip(estimates.names, estimates.on_target_cache, strict=True))
    target = estimates.names[-1]
    assert along == {"prompt-lookup": False, "exit:1": True, "quantized": True,
                     family["draft"]: False, target: True}  # fmt: skip
    rows = np.arange(estimates.verify_ms.shape[2], dtype=float)  # a row more, a millisecond more
    priced = dataclasses.replace(
        estimates, verify_ms=np.broadcast_to(rows, estimates.verify_ms.shape)
    )
    reading = dict(zip(estimates.names, default_catch_up(priced), strict=True))
    assert reading["exit:1"] == reading["quantized"] == reading[target] == 0.0
    assert reading[family["draft"]] > 0.0


def test_auto_keeps_targets_apart(family, cache, tmp_path):
    other = save_model(tmp_path / "other", noise=0.2)
    paths = {
        auto.cache_path(TargetConfig(model=model, **more), [parse(draft)])
        for model, more, draft in (
            (family["target"], {}, "exit:1"),
            (family["target"], {}, "exit:2"),
            (family["target"], {"dtype": "float32"}, "exit:1"),
            (other, {}, "exit:1"),
        )
    }
    assert len(paths) == 4
    before = auto.cache_path(TargetConfig(model=other), [parse("exit:1")])
    (tmp_path / "other" / "README.md").write_text("about")
    assert auto.cache_path(TargetConfig(model=other), [parse("exit:1")]) == before
    assert auto.cache_path(TargetConfig(model=other), [parse("exit:1")], SMALL) != before
    save_model(tmp_path / "other", noise=0.3)  # other weights in the same place
    assert auto.cache_path(TargetConfig(model=other), [parse("exit:1")]) != before
    for device in ("cuda:99", "abacus"):
        with pytest.raises(ValueError, match="is not available here"):
            auto.cache_path(TargetConfig(model=other, device=device), [parse("exit:1")])


def test_auto_loads_what_is_not_here_before_it_names_the_file(family, cache, monkeypatch):
    calls = []

    def path(*_):
        calls.append("path")
        raise Stop

    monkeypatch.setattr(auto, "load", lambda *_: calls.append("load"))
    monkeypatch.setattr(auto, "cache_path", path)
    for model, order in (("some/model", ["load", "path"]), (family["target"], ["path"])):
        calls.clear()
        with pytest.raises(Stop):
            auto.choose(TargetConfig(model=model), ["exit:1"])
        assert calls == order


def test_a_second_process_waits_for_the_first(tmp_path):
    path, order, said, waiting = tmp_path / "profile.json", [], [], threading.Event()

    def report(stage, share):
        said.append(stage)
        waiting.set()

    def second():
        with auto._measuring_lock(path, report):
            order.append("second")

    thread = threading.Thread(target=second)
    with auto._measuring_lock(path, report):
        thread.start()
        assert waiting.wait(10)
        order.append("first")
    thread.join(10)
    assert order == ["first", "second"]
    assert said == ["another process is measuring these models; waiting"]


def test_caches_that_cannot_be_written(family, tmp_path, monkeypatch):
    hint = "set HIERSPEC_CACHE to a folder that can be written$"
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HIERSPEC_CACHE", str(tmp_path / "file"))
    with pytest.raises(ValueError, match=f"^cannot write the profile to [^\n]*{hint}"):
        auto.choose(TargetConfig(model=family["target"]), ["exit:1"], settings=SMALL)

    def homeless(_):
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("HIERSPEC_CACHE")
    monkeypatch.setattr(Path, "expanduser", homeless)
    with pytest.raises(ValueError, match=hint):
        auto.cache_folder("profiles")


def test_auto_goes_by_the_tables_contents(family, cache, tmp_path):
    target, copy = TargetConfig(model=family["target"]), tmp_path / "table.safetensors"
    NgramModel.build([np.arange(V)], V).save(copy)
    before = auto.cache_path(target, [parse(f"ngram:{copy}")])
    NgramModel.build([np.arange(V)[::-1].copy()], V).save(copy)
    assert auto.cache_path(target, [parse(f"ngram:{copy}")]) != before


def test_what_auto_tries_where_nothing_is_named(family, cache, monkeypatch):
    def names(target, *drafts):
        return [candidate.name for candidate in choose_candidates(target, drafts)]

    assert names("somewhere/model") == ["prompt-lookup", "suffix"]
    copies = ["quantized:4"] * kernels.fast_in_4_bits() + ["quantized"]
    assert names(family["target"]) == ["prompt-lookup", "suffix", *copies]
    assert "zoo:trunk" in names("zoo:large")
    assert not {"zoo:trunk", "zoo:large"} & set(names("zoo:trunk"))
    assert "exit:4" in names("zoo:trunk")
    assert "zoo:small" not in names("zoo:small")
    draft = family["draft"]
    assert names(family["target"], draft) == ["prompt-lookup", "suffix", draft, *copies]
    assert names("zoo:large", "zoo:mid") == ["ngram", "prompt-lookup", "zoo:mid"]
    assert names(family["target"], draft, "suffix") == [draft, "suffix"], "a list of the user's own"
    monkeypatch.delenv("HIERSPEC_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert str(auto.cache_folder("profiles")) == "/somewhere/hierspec/profiles"


# The command


@pytest.fixture
def command(capsys, tmp_path, family):
    """Run ``hierspec profile`` on the tiny target: (status, output, error)."""
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("\n".join(map(json.dumps, PROMPTS)))
    quick = ["--max-speculative-tokens", "3", "--tokens", "8", "--places", "1", "--repeats", "1",
             "--num-prompts", "2", "--prompts", str(prompts)]  # fmt: skip

    def run(*argv, target=family["target"], output=tmp_path / "out" / "profile.json"):
        capsys.readouterr()
        status = cli.run(["profile", "--target", target, "-o", str(output), *quick, *argv])
        return status, *capsys.readouterr()

    return run


def test_from_the_command_to_a_running_hierarchy(command, family, tmp_path, capsys):
    path = tmp_path / "out" / "profile.json"
    draft = f"{family['draft']},temperature=0.8"
    status, out, err = command("--candidates", "exit:1", draft, "--temperature", "0")
    assert status == 0
    lines = err.splitlines()
    assert next(line for line in lines if "loading" in line).startswith("profiling ")
    assert any("drafts of exit:1" in line for line in lines)
    assert lines[-1] == f"written to {path}; next: hierspec plan {path}"
    assert "temperature 0" in out
    assert "exit:1" in out
    data = json.loads(path.read_text())
    assert data["prompts"]["name"] == "prompts.jsonl"
    assert len(data["prompts"]["sha256"]) == 64
    assert data["settings"]["max_speculative_tokens"] == 3
    assert cli.run(["plan", str(path), "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert {"levels", "num_speculative_tokens", "latency", "speedup", "lower_bound",
            "search_seconds", "hierarchy"} <= set(planned)  # fmt: skip
    chain = tmp_path / "hierarchy.json"
    runnable = from_dict(data).hierarchy(Chain((0, 2), (2,)))
    for hierarchy in (planned["hierarchy"], runnable):
        chain.write_text(json.dumps(hierarchy))
        argv = ["generate", "hello", "--hierarchy", str(chain), "--max-new-tokens", "4",
                "--json", "--ignore-eos"]  # fmt: skip
        assert cli.run(argv) == 0
        assert json.loads(capsys.readouterr().out)["num_tokens"] == 4


def test_names_with_brackets_are_shown_as_they_are(command, tmp_path):
    draft = save_model(tmp_path / "[bold]draft", noise=0.05)
    output = tmp_path / "[red]" / "p.json"
    status, out, err = command("--candidates", draft, "--temperature", "0", output=output)
    assert status == 0
    assert "[bold]draft" in out
    assert f"drafts of {draft}\n" in err
    assert f"written to {output};" in err


def test_the_profile_as_json(command):
    argv = ["--temperature", "1", "--temperature", "1.0", "--json"]
    status, out, _ = command("--candidates", "exit:1", *argv)
    assert status == 0
    data = json.loads(out)
    assert (data["kind"], list(data["temperatures"])) == ("hierspec-profile", ["1.0"])
    from_dict(data)


@pytest.mark.parametrize(
    ("candidates", "words"),
    [
        (["exit:9"], "between 1 and 3"),
        (["exit:x"], "exit:LAYER"),
        (["no/such-model"], "no/such-model"),
        (["ngram:none.safetensors"], "no n-gram table"),
        (["exit:1", "exit:1"], "given twice"),
        (['{"method": "concatenate"}'], "a concatenation is none"),
    ],
)
def test_bad_candidates_of_the_command(command, tmp_path, candidates, words):
    status, out, err = command("--candidates", *candidates)
    assert (status, out) == (2, "")
    assert words in err.splitlines()[-1]
    assert sum(line.startswith("hierspec: error: ") for line in err.splitlines()) == 1
    assert not (tmp_path / "out" / "profile.json").exists()


def test_bad_targets_of_the_command(command, tmp_path, family):
    bare = tmp_path / "bare"
    tiny_model("llama", seed=1, vocab_size=V).save_pretrained(bare)
    for target, words in ((str(bare), "no tokenizer beside it"), ("no/such-model", "no/such")):
        status, _, err = command("--candidates", "exit:1", target=target)
        assert status == 2
        assert words in err.splitlines()[-1]
    stranger = save_model(tmp_path / "stranger", tokenizer=bytes_tokenizer(shift=1))
    status, _, err = command("--candidates", stranger)
    assert status == 2
    assert "stranger" in err.splitlines()[-1]
    assert family["target"] in err.splitlines()[-1]


def test_bad_options_of_the_command(command, tmp_path):
    empty = tmp_path / "empty.jsonl"
    empty.write_text("\n")
    for argv, words in (
        (["--prompts", str(empty)], "holds no prompt"),
        (["--temperature", "-1"], "--temperature must be 0"),
        (["--max-speculative-tokens", "33"], "max-speculative-tokens"),
    ):
        status, _, err = command("--candidates", "exit:1", *argv)
        assert status == 2
        assert words in err.splitlines()[-1]


def test_a_path_that_cannot_be_written_is_found_out_at_once(command, tmp_path, monkeypatch):
    def unwanted(*_, **__):
        raise AssertionError("no model should be loaded before")

    monkeypatch.setattr("hierspec.profiling.measure.load", unwanted)
    (tmp_path / "file").write_text("")
    for output in (tmp_path, tmp_path / "file" / "profile.json"):
        status, _, err = command("--candidates", "exit:1", output=output)
        assert status == 2
        assert "cannot write the profile to" in err


def test_an_interrupt_says_how_to_go_on(command, tmp_path, monkeypatch):
    timed = costs.time_pairs

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(agreement, "agreements", interrupted)
    status, out, err = command("--candidates", "exit:1", "--temperature", "0")
    assert (status, out) == (130, "")
    assert err.splitlines()[-1] == "interrupted: the same command continues where it stopped"
    assert "Traceback" not in err
    monkeypatch.undo()
    path = tmp_path / "out" / "profile.json"
    assert cli.run(["plan", str(path)]) == 2
    assert "0.0 texts" in json.loads(path.read_text())["stages"]
    assert costs.time_pairs is timed
    status, _, _ = command("--candidates", "exit:1", "--temperature", "0")
    assert status == 0
    assert cli.run(["plan", str(path)]) == 0


def test_every_key_of_the_file_is_documented(whole):
    page = (Path(__file__).parents[2] / "docs" / "profiles.md").read_text()
    measured = whole["temperatures"]["1.0"]
    times = next(row for row in measured["costs"] if row["draft"])
    parts = [whole, whole["hardware"], whole["models"][0], measured, measured["context"], times]
    parts += [next(iter(times["check"].values())), *measured["context"]["slopes"][:1]]
    parts += measured["pairs"]
    for key in {key for part in parts for key in part}:
        assert f"`{key}`" in page, key


@pytest.mark.parametrize(
    ("levels", "expected"),
    [
        ((0, 3), (0, 2, 3)),  # a look-up alone: the best model above it
        ((2, 3), (0, 2, 3)),  # a model alone: the best look-up below it
        ((1, 2, 3), (0, 1, 2, 3)),
        ((0, 2, 3), (0, 2, 3)),
        ((3,), (3,)),
    ],
)
def test_control_has_a_level_more_at_hand(levels, expected):
    from types import SimpleNamespace

    from hierspec.planner.estimates import Chain, ideal

    rates = [[0, 0.5, 0.6, 0.6], [0, 0, 0.7, 0.5], [0, 0, 0, 0.9], [0, 0, 0, 0]]
    estimates = ideal([0.01, 2, 4, 33], rates)
    names = ["suffix", "m", "quantized"]
    configs = [*(parse(name).level for name in names), None]
    profile = SimpleNamespace(models=[SimpleNamespace(config=config) for config in configs])
    given = Chain(levels, (3,) * (len(levels) - 1))
    found = auto.control_chain(
        profile, SimpleNamespace(best=SimpleNamespace(chain=given), estimates=estimates)
    )
    assert found.models == expected
    assert (found == given) == (levels == expected)
