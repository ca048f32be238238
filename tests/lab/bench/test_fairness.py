"""What makes a bench fair: turns, warming up, batches, tuning."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from types import SimpleNamespace

import pytest
from fake_methods import FakeBatchMethod, FakeMethod, fixed

from hierspec.config.schema import HierarchyConfig, TargetConfig
from hierspec.presets.registry import PRESETS
from hierspec_lab.bench.methods import grids
from hierspec_lab.bench.methods.base import RunRequest, Unavailable
from hierspec_lab.bench.methods.grids import is_ascending, varied_numbers
from hierspec_lab.bench.methods.ours import BenchModels
from hierspec_lab.bench.peers import catalogue as peers
from hierspec_lab.bench.peers import llama_cpp
from hierspec_lab.bench.prompt_split import choose
from hierspec_lab.bench.tuning import tune
from hierspec_lab.bench.turns import (
    balanced_rounds,
    grouped,
    repeated,
    run_in_turns,
    run_interleaved,
    tuning_groups,
    tuning_notes,
    turn_order,
)

PROMPTS = [[i] for i in range(5)]
NAMES = ["a", "b", "c"]

# Turns.


@pytest.mark.parametrize("count", range(1, 9))
@pytest.mark.parametrize("seed", [0, 7])
def test_orders_are_balanced(count, seed):
    each = 1 + (count % 2 and count > 1)
    for cycle in (0, 1):
        first = cycle * balanced_rounds(count)
        rows = [turn_order(count, first + i, seed) for i in range(balanced_rounds(count))]
        assert all(sorted(row) == list(range(count)) for row in rows)
        places = Counter((i, which) for row in rows for i, which in enumerate(row))
        assert len(places) == count**2
        assert set(places.values()) == {each}
        after = Counter(pair for row in rows for pair in itertools.pairwise(row))
        assert len(after) == count * (count - 1)
        assert set(after.values()) <= {each}


def test_orders_depend_on_the_seed_and_on_the_cycle():
    def rows(seed, first):
        return [turn_order(6, first + i, seed) for i in range(6)]

    assert rows(0, 0) == rows(0, 0)
    assert len({repr(rows(seed, first)) for seed in (0, 1) for first in (0, 6)}) == 4
    assert turn_order(0, 3, 0) == []


def taken(start=0, broken=(), **more):
    """What :func:`run_in_turns` gives, and what the methods were asked."""
    log = []

    def write(name):
        def breaks(prompt, request):
            if (name, tuple(prompt)) in broken:
                raise RuntimeError("no")
            return fixed(prompt, request)

        return breaks

    methods = [FakeMethod(name, write(name), log) for name in NAMES]
    found = run_in_turns(methods, grouped(PROMPTS, 1), RunRequest(2, seed=10), start, **more)
    return [(group, NAMES[which]) for group, which, _ in found], log


def test_turns_are_those_of_the_order_also_from_a_later_start():
    whole, asked = taken()
    expected = [(g, NAMES[i]) for g in range(5) for i in turn_order(3, g, 10)]
    assert whole == expected
    assert [(prompt[0], name) for name, prompt, _ in asked[3:]] == expected
    assert all(seed == 10 + prompt[0] for _, prompt, seed in asked[3:])
    for start in (1, 2, 4):
        later, asked_later = taken(start)
        assert later == whole[3 * start :]
        assert asked_later[3:] == asked[3 + 3 * start :]
    assert taken(5) == ([], [])


def test_turns_go_on_when_a_method_has_dropped_out():
    whole, _ = taken(broken={("b", (1,))})
    assert [name for group, name in whole if group == 1] == [NAMES[i] for i in turn_order(3, 1, 10)]
    left = ["a", "c"]
    for g in (2, 3, 4):  # as a bench that is continued without it would take them
        assert [name for group, name in whole if group == g] == [
            left[i] for i in turn_order(2, g, 10)
        ]


def test_warming_up_takes_no_run_that_counts():
    counted = {((i,), 10 + i) for i in range(5)}
    for more in ({}, {"warm_up": [[77]]}):
        _, asked = taken(**more)
        warm = [(prompt, seed) for _, prompt, seed in asked[:3]]
        assert warm == [((77,) if more else (4,), 15)] * 3
        assert counted.isdisjoint(warm)
    log = []
    alone = run_interleaved([FakeMethod("a", fixed, log)], [[9]], RunRequest(2, seed=3))
    assert [which for _, which, _ in alone] == [0]
    assert log == [("a", (9,), 4), ("a", (9,), 3)]


# Batches.


def test_groups_are_of_one_size():
    assert grouped(PROMPTS[:4], 2) == [[[0], [1]], [[2], [3]]]
    with pytest.raises(ValueError, match="--num-prompts 4 or 6"):
        grouped(PROMPTS, 2)
    with pytest.raises(ValueError, match="--num-prompts 8, or"):
        grouped(PROMPTS, 8)
    assert tuning_groups(PROMPTS, 2) == [[[0], [1]], [[2], [3]]]
    assert tuning_groups(PROMPTS, 8) == [PROMPTS]
    assert tuning_groups([], 2) == []
    assert repeated(PROMPTS[:2], 5) == [[0], [1], [0], [1], [0]]


def test_what_tuning_is_not_done_on_is_told():
    assert tuning_notes(4, 2) == tuning_notes(0, 2) == tuning_notes(3, 1) == []
    assert "1 of 5" in tuning_notes(5, 2)[0]
    assert "batches of 5, measured on batches of 8" in tuning_notes(5, 8)[0]


def test_tuning_takes_the_fastest_candidate():
    slow, fast = FakeMethod("slow", fixed, ms=3.0), FakeMethod("fast", fixed, ms=2.0)
    shares = []
    best, found = tune([slow, fast], grouped(PROMPTS, 1), RunRequest(4), shares.append)
    assert best is fast
    assert [trial.ms_per_token for trial in found.trials] == pytest.approx([3.0, 2.0])
    assert (found.prompts, found.batch_size) == (5, 1)
    assert shares[-1] == 1.0
    _, found = tune([FakeBatchMethod("x", fixed)], tuning_groups(PROMPTS, 2), RunRequest(4))
    assert (found.prompts, found.batch_size) == (4, 2)


def test_prompts_make_whole_batches_by_default(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n".join(json.dumps({"prompt": f"text {i}"}) for i in range(30)))

    def counts(**more):
        found = choose("zoo:small", path, **more)
        assert found.measured + found.tuning == tuple(
            f"text {i}" for i in range(len(found.measured + found.tuning))
        )
        profiling = len(found.profiling)
        assert found.profiling == tuple(f"text {len(found.measured) + i}" for i in range(profiling))
        assert profiling == min(max(16, len(found.tuning)), 30 - len(found.measured))
        return len(found.measured), len(found.tuning), found.notes

    assert counts() == (16, 4, ())
    assert counts(batch_size=8) == (16, 8, ())
    assert counts(batch_size=3) == (15, 6, ("15 prompts, not 16: whole batches of 3",))
    assert counts(batch_size=3, measured=6, tuning=4) == (6, 4, ())
    with pytest.raises(ValueError, match="32 to measure on and 32 others"):
        counts(batch_size=32)
    built_in = choose("zoo:small", batch_size=8)
    assert {len(built_in.measured) % 8, len(built_in.tuning) % 8} == {0}


# Tuning.

TUNED = sorted(set(PRESETS) - {"autoregressive"})


def zoo(*drafts):
    return BenchModels(TargetConfig(model="zoo:large"), drafts)


def levels(method):
    return HierarchyConfig.from_dict({"target": "x", **method.configuration}).levels


@pytest.mark.parametrize("drafts", [("a",), ("a", "b"), ("a", "b", "c", "d")])
@pytest.mark.parametrize("name", TUNED)
def test_every_preset_gets_as_many_trials_around_its_own(name, drafts):
    models = zoo(*drafts)
    if len(drafts) == 1 and name in ("pre-verify", "pre-self-verify", "interleaved", "horizontal"):
        with pytest.raises(Unavailable, match="two draft models"):
            grids.of_preset(PRESETS[name], models)
        return
    found = grids.of_preset(PRESETS[name], models)
    kit = grids.PresetModels(models.target, drafts, lambda: models.num_layers)
    config = PRESETS[name].make(kit)
    assert levels(found[0]) == config.levels
    tried = [tuple(varied_numbers(levels(method))) for method in found]
    assert len(set(tried)) == grids.TRIALS == 12
    assert tried == [
        tuple(varied_numbers(levels(m))) for m in grids.of_preset(PRESETS[name], models)
    ]
    assert all(is_ascending(levels(method)) for method in found)
    for own, values in zip(tried[0], zip(*tried, strict=True), strict=True):
        assert len(set(values)) >= 3
        assert max(values) > own
        assert min(values) < own or own == 1
        if len(tried[0]) > 1:
            assert (own + 1) // 2 <= min(values) <= max(values) <= max(2 * own, own + 2)
    assert {method.configuration["verify"] for method in found} == {config.verify}


def test_what_repeats_is_varied_too():
    found = grids.of_preset(PRESETS["interleaved"], zoo("a", "b"))
    repeats = [method.configuration["levels"][0].get("repeat", 1) for method in found]
    assert repeats[0] == 4
    assert {min(repeats), max(repeats)} == {2, 8}


def test_our_own_methods_get_as_many_trials():
    for drafts in (("a",), ("a", "b"), ("a", "b", "c")):
        given = zoo(*drafts)
        for found in (
            grids.single("x", given, "tokenwise"),
            grids.single("x", given, "block"),
            grids.chains("x", given),
        ):
            assert len({repr(method.configuration) for method in found}) == grids.TRIALS
    three = zoo("a", "b", "c")
    for method in [*grids.chains("x", three), *grids.single("x", three, "block")]:
        assert {level["method"] for level in method.configuration["levels"]} == {"draft_model"}
    stacked = {len(method.configuration["levels"]) for method in grids.chains("x", three)}
    assert stacked == {2, 3}
    uppers = {
        levels[-1]["num_speculative_tokens"]
        for levels in (method.configuration["levels"] for method in grids.chains("x", three))
    }
    assert uppers == set(grids.UPPER)
    with pytest.raises(Unavailable, match="--draft"):
        grids.single("x", zoo(), "block")


def test_a_table_may_draft_too_but_not_verify():
    given = zoo("ngram", "a", "prompt-lookup")
    chains = [method.configuration["levels"] for method in grids.chains("x", given)]
    assert len(chains) == grids.TRIALS
    assert {tuple(level["method"] for level in levels) for levels in chains} == {
        ("ngram_table", "draft_model")
    }
    alone = [method.configuration["levels"][0] for method in grids.single("x", given, "block")]
    assert [level["method"] for level in alone[::4]] == [
        "prompt_lookup",
        "draft_model",
        "ngram_table",
    ]
    assert given.draft_models == ("a",)
    for drafts in (("ngram",), ("a", "ngram")):
        with pytest.raises(Unavailable, match="--draft MODEL"):
            grids.chains("x", zoo(*drafts))


@pytest.mark.parametrize("drafts", [("a",), ("a", "b"), ("a", "b", "c", "d", "e")])
def test_other_engines_get_as_many_trials(drafts, monkeypatch):
    """vLLM half as many: ``docs/peers.md`` says why."""
    for module in ("llama_cpp", "sequential", "vllm"):
        monkeypatch.setattr(f"hierspec_lab.bench.peers.{module}.import_peer", lambda *args: None)
    monkeypatch.setattr("hierspec_lab.bench.peers.sequential.step_of", lambda method: None)
    sizes = {}
    for entry in peers():
        if entry.name.startswith("llama.cpp-file"):
            with pytest.raises(Unavailable, match="not read from a GGUF file"):
                entry.candidates(zoo(*drafts), 1.0)
            continue
        found = entry.candidates(zoo(*drafts), 1.0)
        assert len({repr(method.configuration) for method in found}) == len(found)
        sizes[entry.name] = len(found)
    tuned = {name: size for name, size in sizes.items() if size > 1}
    quantized = {f"llama.cpp-{kind}" for kind in llama_cpp.QUANTIZED}
    assert set(sizes) - set(tuned) == {"transformers", "llama.cpp", "vllm"} | quantized
    assert {tuned.pop("vllm-ngram"), tuned.pop("vllm-draft-model")} == {6}
    assert set(tuned.values()) == {12}


@pytest.mark.parametrize(("layers", "exits"), [(2, 1), (4, 2), (8, 3), (32, 3)])
def test_early_exits_get_as_many_trials_however_many_there_are(layers, exits, monkeypatch):
    config = SimpleNamespace(num_hidden_layers=layers, model_type="llama")
    monkeypatch.setattr("hierspec.config.target.model_config", lambda name: config)
    (entry,) = (entry for entry in peers() if entry.name == "transformers-early-exit")
    found = [method.configuration for method in entry.candidates(zoo(), 0.0)]
    assert len({repr(configuration) for configuration in found}) == grids.TRIALS
    assert len({one["generate"]["assistant_early_exit"] for one in found}) == exits
