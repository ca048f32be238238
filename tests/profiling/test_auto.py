"""``--hierarchy auto``: what is tried, measured once, kept and read again."""

from __future__ import annotations

import copy
import dataclasses
import json
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from ngram_tables import bigrams
from profiling_cases import SMALL, Stop, V, save_model
from transformers import AutoModelForCausalLM

from hierspec import HierarchyConfig, HierspecError, TargetConfig, cli
from hierspec.config.in_memory import ModelInMemory
from hierspec.lm.native import compiler, library
from hierspec.methods.quantized import QuantizedConfig
from hierspec.planner.estimates import Chain, ideal
from hierspec.planner.online.prices import default_catch_up
from hierspec.planner.search import plan
from hierspec.profiling import agreement, auto, costs, priors, rates
from hierspec.profiling import measure as measuring
from hierspec.profiling.candidates import choose_candidates, default_names, parse
from hierspec.profiling.stages import Stages


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HIERSPEC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(auto, "QUICK", SMALL)
    return tmp_path / "cache" / "profiles"


def test_auto_measures_once_and_each_temperature_once(family, cache):
    target, stages = TargetConfig(model=family["target"]), []

    def choose(temperature):
        stages.clear()
        return auto.choose(
            target, ["exit:1"], temperature=temperature,
            report=lambda stage, share: stages.append(stage),
        )  # fmt: skip

    first = choose(0.0)
    assert first.measured_now
    assert any(stage.startswith("costs\nso far: ") for stage in stages)
    assert first.path.parent == cache
    assert first.config.target.model == family["target"]
    second = choose(0.0)
    assert not second.measured_now
    assert stages == []
    assert second.config == first.config
    other = choose(0.9)
    assert other.measured_now
    assert other.profile.measured_at == [0.0, 0.9]
    assert other.profile.measured(0.0) == first.profile.measured(0.0)
    assert not choose(0.8).measured_now  # near enough
    first.path.write_text(first.path.read_text()[:1000])
    again = choose(0.0)
    assert again.measured_now
    assert again.profile.measured_at == [0.0]


def test_a_damaged_profile_is_measured_anew(family, cache):
    def choose():
        return auto.choose(TargetConfig(model=family["target"]), ["exit:1"])

    path = choose().path
    whole = path.read_text()
    for damaged in (
        whole.replace("temperatures", "temperaturer"),
        whole.replace('"mean": ', '"mean": 9'),
    ):
        assert damaged != whole
        path.write_text(damaged)
        assert choose().measured_now
        assert not choose().measured_now
    old = json.loads(whole)
    del old["checksum"]  # of an older version
    path.write_text(json.dumps(old))
    assert not choose().measured_now


def _interrupt(*_, **__):
    raise KeyboardInterrupt


PRIORS = ["calls", "acceptance", "checks"]
INTERRUPTED = {  # what was being done → where, and what the plan so far rests on
    "loading": (measuring, "load", PRIORS),
    "single calls": (costs, "single_calls", PRIORS),
    "texts": (rates, "continuations", PRIORS[1:]),
    "agreement": (agreement, "agreements", PRIORS[1:]),
    "checks": (Stages, "time_calls", PRIORS[2:]),
}


@pytest.mark.parametrize("moment", INTERRUPTED)
def test_an_interruption_leaves_a_plan_that_says_what_it_rests_on(
    moment, family, cache, monkeypatch, capsys
):
    argv = ["generate", "abcabc", "--target", family["target"], "--max-new-tokens", "6"]
    asked = [*argv, "--draft", "suffix", "--draft", "exit:1", "--hierarchy", "auto"]
    *where, priors = INTERRUPTED[moment]
    with monkeypatch.context() as patch:
        patch.setattr(*where, _interrupt)
        assert cli.run(asked) == 130
    *progress, note, last = capsys.readouterr().err.splitlines()
    assert last == "interrupted: the same command continues where it stopped"
    (plan_file,) = cache.glob("*-plan.json")
    (said,) = {line.partition("so far: ")[2] for line in progress[-1:]}
    assert said.endswith(f"(not yet measured: {', '.join(priors)})")
    assert note == f"--hierarchy {plan_file} runs the plan so far ({said})"
    assert json.loads(plan_file.read_text())["priors"] == priors
    assert "acceptance" not in priors or HierarchyConfig.load(plan_file).levels

    texts = []
    for hierarchy in (str(plan_file), "autoregressive"):
        assert cli.run([*argv, "--hierarchy", hierarchy, "--json"]) == 0
        texts.append(json.loads(capsys.readouterr().out)["token_ids"])
    assert texts[0] == texts[1]

    path = plan_file.with_name(plan_file.name.replace("-plan", ""))
    kept = json.loads(path.read_text()) if path.exists() else {}
    assert not kept.get("temperatures")
    assert "priors" not in json.dumps(kept)
    target = TargetConfig(model=family["target"])
    with monkeypatch.context() as patch:
        done = list(INTERRUPTED).index(moment)
        for module, name, _ in list(INTERRUPTED.values())[1:done]:
            patch.setattr(module, name, lambda *_, **__: pytest.fail("measured before"))
        found = auto.choose(target, ["suffix", "exit:1"])
    assert found.measured_now
    assert found.plan.to_dict()["priors"] == []
    assert not plan_file.exists()
    assert "priors" not in path.read_text()


@pytest.mark.skipif(library.load() is None, reason="no C compiler here")
def test_kernels_that_turn_out_not_to_compile(family, cache, tmp_path, monkeypatch):
    """A compiler works, so that copies are planned with; but not on the kernels."""
    script = tmp_path / "cc"
    script.write_text('#!/bin/sh\ncase "$*" in *kernels.c*) exit 1;; esac\nexec cc "$@"\n')
    script.chmod(0o755)
    monkeypatch.setenv("CC", str(script))
    stages, target = [], TargetConfig(model=family["target"], dtype="float32")

    def fresh():
        for cached in (library.load, compiler.find):
            cached.cache_clear()

    fresh()
    try:
        with pytest.warns(library.NoKernelsWarning):
            found = auto.choose(target, report=lambda stage, share: stages.append(stage))
        fresh()
        with (
            pytest.warns(library.NoKernelsWarning),
            pytest.raises(HierspecError, match="8 or 4 bits"),
        ):
            auto.choose(target, ["quantized:5"])
    finally:
        fresh()
    assert "so far: " in stages[0]
    assert {one.name for one in found.profile.models[:-1]} == {"suffix", "prompt-lookup"}
    assert found.measured_now


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_a_plan_from_priors_is_the_planners_own(family, cache, temperature):
    named = [parse(name) for name in ("quantized", "suffix")]
    found = priors.profile(TargetConfig(model=family["target"]), named, temperature, SMALL)
    *drafts, target = found.models
    assert [model.name for model in drafts] == ["suffix", "quantized"]
    assert drafts[1].call_ms == target.call_ms / 2
    copied, suffix = (one.level.prior_acceptance[temperature > 0] for one in named)
    problem = ideal(
        [model.call_ms for model in found.models],
        [[0, suffix, suffix], [0, 0, copied], [0, 0, 0]],
        max_budget=SMALL.max_speculative_tokens,
    )
    rows = 1 + np.arange(problem.longest + 1) / priors.ROWS
    problem = dataclasses.replace(problem, verify_ms=problem.verify_ms * rows)
    answer, expected = plan(found.estimates(temperature)), plan(problem)
    assert answer.best.chain == expected.best.chain
    assert answer.best.ms == pytest.approx(expected.best.ms)
    assert (answer.to_dict()["priors"], expected.to_dict()["priors"]) == (PRIORS, [])


def test_loaded_models_are_measured_once_for_the_weights_they_have(family, cache):
    model, draft = (
        AutoModelForCausalLM.from_pretrained(family[name], dtype=torch.float32)
        for name in ("target", "draft")
    )

    def choose(*drafts):
        names = [ModelInMemory(one) for one in drafts]
        return auto.choose(TargetConfig(model=ModelInMemory(model)), [*names, "prompt-lookup"])

    first = choose(draft)
    assert first.measured_now
    second = choose(draft)
    assert not second.measured_now
    whole = Chain((0, 1, 2), (1, 1))
    for found in (first, second):
        config = found.hierarchy(whole)
        models = [config.target.model, *(one.model for one in config.levels if one.files)]
        assert models == [ModelInMemory(model), ModelInMemory(draft)]
    with torch.no_grad():
        model.model.norm.weight.mul_(2)
    assert choose(draft).measured_now
    with pytest.raises(HierspecError, match="two loaded models have the same name"):
        choose(copy.deepcopy(model))


def test_levels_on_the_targets_cache_have_nothing_to_read(family, cache):
    """However long the prompt: what drafts then is chosen as for a short one."""
    found = auto.choose(
        TargetConfig(model=family["target"]),
        ["prompt-lookup", "exit:1", "quantized", family["draft"]],
    )
    estimates = found.profile.estimates(0.0)
    along = dict(zip(estimates.names, estimates.on_target_cache, strict=True))
    target = estimates.names[-1]
    assert along == {"prompt-lookup": False, "exit:1": True, "quantized": True,
                     family["draft"]: False, target: True}  # fmt: skip
    rows = np.arange(estimates.verify_ms.shape[2], dtype=float)  # a row more, a millisecond more
    priced = dataclasses.replace(
        estimates,
        verify_ms=np.broadcast_to(rows, estimates.verify_ms.shape),
        draft_ms=np.ones_like(estimates.draft_ms),  # noise may have left nothing of a step
    )
    reading = dict(zip(estimates.names, default_catch_up(priced), strict=True))
    assert reading["exit:1"] == reading["quantized"] == reading[target] == 0.0
    assert reading[family["draft"]] > 0.0


def test_auto_keeps_targets_apart(family, cache, tmp_path, monkeypatch):
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
    with monkeypatch.context() as patch:
        patch.setattr(auto, "QUICK", dataclasses.replace(SMALL, seed=1))
        assert auto.cache_path(TargetConfig(model=other), [parse("exit:1")]) != before
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
        auto.choose(TargetConfig(model=family["target"]), ["exit:1"])

    def homeless(_):
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("HIERSPEC_CACHE")
    monkeypatch.setattr(Path, "expanduser", homeless)
    with pytest.raises(ValueError, match=hint):
        auto.cache_folder("profiles")


def test_auto_goes_by_the_tables_contents(family, cache, tmp_path):
    target, copy = TargetConfig(model=family["target"]), tmp_path / "table.safetensors"
    bigrams(np.arange(V), V).save(copy)
    before = auto.cache_path(target, [parse(f"ngram:{copy}")])
    bigrams(np.arange(V)[::-1], V).save(copy)
    assert auto.cache_path(target, [parse(f"ngram:{copy}")]) != before


def test_there_are_no_copies_of_what_the_kernels_do_not_run(family, cache, monkeypatch):
    model = family["target"]  # saved in float64
    with monkeypatch.context() as patch:
        patch.setattr(library, "is_expected", lambda: True)
        patch.setattr(library, "load", lambda: "a library")
        for changes in (
            {},
            {"dtype": "float64"},
            {"dtype": "float32", "backend": "hf"},
            {"dtype": "float32", "backend": "lean"},
        ):
            target = TargetConfig(model=model, device="cpu", **changes)
            assert default_names(target) == ["prompt-lookup", "suffix"]
            assert QuantizedConfig.default_levels(target) == ()
        runs = TargetConfig(model=model, device="cpu", dtype="bfloat16")
        assert "quantized" in default_names(runs)
        assert QuantizedConfig.default_levels(runs)
    for dtype in ("float64", "auto"):
        found = auto.choose(TargetConfig(model=model, dtype=dtype))
        assert {one.name for one in found.profile.models[:-1]} == {"suffix", "prompt-lookup"}


def test_what_auto_tries_where_nothing_is_named(family, cache, monkeypatch):
    def names(target, *drafts):
        dtype = "auto" if target.startswith("zoo:") else "float32"
        config = TargetConfig(model=target, dtype=dtype)
        return [candidate.name for candidate in choose_candidates(config, drafts)]

    assert names("somewhere/model") == ["prompt-lookup", "suffix"]
    copies = ["quantized:5,calibrate=false"] * (library.load() is not None) + ["quantized"]
    assert names(family["target"]) == ["prompt-lookup", "suffix", *copies]
    assert names("zoo:tiny") == ["zoo:tiny-draft", "exit:1", "prompt-lookup"], "its entry's own"
    assert names("zoo:tiny", "a/b") == ["exit:1", "prompt-lookup", "a/b"]
    draft = family["draft"]
    assert names(family["target"], draft) == ["prompt-lookup", "suffix", draft, *copies]
    assert names(family["target"], draft, "suffix") == [draft, "suffix"], "a list of the user's own"
    monkeypatch.delenv("HIERSPEC_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert str(auto.cache_folder("profiles")) == "/somewhere/hierspec/profiles"


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


def test_control_continues_no_token_tree():
    rates = [[0, 0.3, 0.3], [0, 0, 0.8], [0, 0, 0]]
    estimates = dataclasses.replace(ideal([0.01, 2, 33], rates), multi_drafters=frozenset({1}))
    estimates.survival[0, 1] = np.nan  # a look-up cannot draft for a tree
    configs = [parse("suffix").level, parse("m").level, None]
    profile = SimpleNamespace(models=[SimpleNamespace(config=config) for config in configs])
    given = Chain((1, 2), (5,))
    best = SimpleNamespace(best=SimpleNamespace(chain=given), estimates=estimates)
    assert auto.control_chain(profile, best) == given
