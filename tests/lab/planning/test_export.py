"""A plan in other engines' words: the right keys, and the best that they can express."""

from __future__ import annotations

import ast
import json
import shlex
from dataclasses import replace

import numpy as np
import pytest

from hierspec.config import methods
from hierspec.config.levels import method_name
from hierspec.methods.prompt_lookup import PromptLookupConfig
from hierspec.planner.estimates import Chain, ideal
from hierspec.planner.latency import latency
from hierspec.planner.plan import Plan, PricedChain
from hierspec_lab.planning.export import (
    ENGINES,
    export,
    inexpressible,
    without_sharing,
)

NGRAM = {"method": "ngram_table", "max_order": 3}
LOOKUP = {"method": "prompt_lookup", "prompt_lookup_min": 1, "prompt_lookup_max": 5}
DRAFT = {"method": "draft_model", "model": "lab/a draft"}
EXIT = {"method": "early_exit", "exit_layer": 8}
TARGET = {"model": "lab/target"}
COSTS = (0.01, 0.1, 2.0, 4.0, 20.0)
RATES = [
    [None, None, 0.6, 0.55, 0.5],
    [None, None, 0.6, 0.5, 0.4],
    [None, None, None, 0.9, 0.8],
    [None, None, None, None, 0.85],
    [None] * 5,
]
ESTIMATES = ideal(COSTS, RATES, ["ngram", "lookup", "draft", "exit", "target"], max_budget=12)
MODELS = [NGRAM, LOOKUP, DRAFT, EXIT, TARGET]


def planned(estimates=ESTIMATES, levels=(0, 2, 4), budgets=(2, 6), **options) -> Plan:
    chain = Chain(levels, budgets, **options)
    return Plan(estimates, PricedChain(chain, latency(estimates, chain)), ())


def brute(estimates, drafters) -> tuple[float, tuple[int, ...], tuple[int, ...]]:
    target = estimates.target
    chains = [Chain((target,))]
    chains += [Chain((i, target), (n,)) for i in drafters for n in range(1, 13)]
    priced = [(latency(estimates, chain).ms_per_token, chain) for chain in chains]
    ms, chain = min(priced, key=lambda pair: pair[0])
    return ms, chain.models, chain.budgets


@pytest.mark.parametrize(("engine", "drafters"), [("vllm", (1, 2)), ("transformers", (1, 2, 3))])
@pytest.mark.parametrize("seed", range(6))
def test_the_best_expressible_setting_is_chosen(engine, drafters, seed):
    generator = np.random.default_rng(seed)
    rates = [[r if r is None else generator.uniform(0.1, 0.95) for r in row] for row in RATES]
    costs = [*np.sort(generator.uniform(0.05, 12, 4)), 20.0]
    estimates = ideal(costs, rates, max_budget=12)
    out = export(planned(estimates), engine, MODELS)
    ms, levels, budgets = brute(estimates, drafters)
    assert (out["latency"], tuple(out["levels"])) == (ms, levels)
    assert tuple(out["num_speculative_tokens"]) == budgets
    assert out["speedup"] == pytest.approx(20.0 / ms)


def test_vllm_takes_one_draft_model():
    out = export(planned(), "vllm", MODELS)
    budget = out["num_speculative_tokens"][0]
    speculative = {
        "method": "draft_model",
        "model": "lab/a draft",
        "num_speculative_tokens": budget,
    }
    assert out["configuration"] == {"speculative_config": speculative}
    assert out["names"] == ["draft", "target"]
    words = shlex.split(out["command"])
    assert words[:4] == ["vllm", "serve", "lab/target", "--speculative-config"]
    assert json.loads(words[4]) == speculative
    ast.parse(out["python"])
    assert f"speculative_config={speculative!r}" in out["python"]


def test_vllm_takes_prompt_lookup():
    out = export(planned(), "vllm", [NGRAM, LOOKUP, None, EXIT, TARGET])
    assert out["configuration"]["speculative_config"] == {
        "method": "ngram",
        "num_speculative_tokens": out["num_speculative_tokens"][0],
        "prompt_lookup_max": 5,
        "prompt_lookup_min": 1,
    }


def test_transformers_reads_the_budget_from_the_drafters_own_generation_config():
    out = export(planned(), "transformers", [NGRAM, LOOKUP, DRAFT, None, TARGET])
    own = {
        "num_assistant_tokens": out["num_speculative_tokens"][0],
        "num_assistant_tokens_schedule": "constant",
        "assistant_confidence_threshold": 0.0,
    }
    assert out["configuration"] == {
        "generate": {"assistant_model": "lab/a draft"},
        "assistant_generation_config": own,
    }
    ast.parse(out["python"])
    assert f"assistant.generation_config.update(**{own!r})" in out["python"]
    assert "assistant_model=assistant" in out["python"]


def test_transformers_takes_early_exits_and_prompt_lookup():
    out = export(planned(), "transformers", [NGRAM, None, None, EXIT, TARGET])
    assert out["configuration"]["generate"] == {"assistant_early_exit": 8}
    assert "num_assistant_tokens" in out["configuration"]["target_generation_config"]
    assert "target.generation_config.update(" in out["python"]
    out = export(planned(), "transformers", [NGRAM, LOOKUP, None, None, TARGET])
    assert out["configuration"]["generate"] == {
        "prompt_lookup_num_tokens": out["num_speculative_tokens"][0],
        "max_matching_ngram_size": 5,
    }
    ast.parse(out["python"])


def test_the_options_are_transformers_own():
    transformers = pytest.importorskip("transformers")
    config = transformers.GenerationConfig()
    for models in ([NGRAM, LOOKUP, None, None, TARGET], [NGRAM, None, None, EXIT, TARGET]):
        for options in export(planned(), "transformers", models)["configuration"].values():
            assert config.update(**options) == {}  # what it does not know, it returns


@pytest.mark.parametrize("engine", ENGINES)
def test_plain_decoding_where_nothing_else_pays(engine):
    out = export(planned(), engine, [None, None, None, None, TARGET])
    assert out["configuration"] == {}
    assert (out["levels"], out["num_speculative_tokens"]) == ([4], [])
    assert out["speedup"] == 1.0
    assert "specul" not in out.get("command", "")
    assert "assistant" not in out["python"]
    ast.parse(out["python"])


def test_the_note_says_what_is_missing_and_what_it_costs():
    plan = planned()
    out = export(plan, "vllm", MODELS)
    assert (
        "vLLM cannot express 3 levels (ngram → draft → target) or an n-gram table." in out["note"]
    )
    assert out["loss_percent"] == pytest.approx(100 * (out["latency"] / plan.best.ms - 1))
    assert f"{out['loss_percent']:.1f} % slower a token than the full plan" in out["note"]


def test_the_note_of_a_plan_that_can_be_expressed():
    levels, budgets = brute(ESTIMATES, (1, 2))[1:]
    out = export(planned(levels=levels, budgets=budgets), "vllm", MODELS)
    assert out["loss_percent"] == 0
    assert out["note"].startswith("This is the whole plan: nothing is lost.")


def test_orders_tails_temperatures_and_windows_are_named():
    plan = planned(levels=(2, 3, 4), budgets=(2, 2), order="interleaved")
    assert "the interleaved order" in export(plan, "transformers", MODELS)["note"]
    plan = planned(levels=(1, 2, 4), budgets=(2, 2), tail=3)
    assert "a tail of the smallest model" in export(plan, "transformers", MODELS)["note"]
    plan = planned(levels=(2, 4), budgets=(4,))
    hot = [NGRAM, LOOKUP, {**DRAFT, "temperature": 0.9}, EXIT, TARGET]
    out = export(plan, "vllm", hot)
    assert "a temperature of the drafter's own" in out["note"]
    assert 2 not in out["levels"]
    windowed = [NGRAM, LOOKUP, {**DRAFT, "window": {"kind": "entropy"}}, EXIT, TARGET]
    assert "the entropy window" in export(plan, "vllm", windowed)["note"]
    headed = [NGRAM, LOOKUP, DRAFT, {**EXIT, "head": "heads"}, TARGET]
    plan = planned(levels=(3, 4), budgets=(4,))
    assert "a trained head of the exit's own" in export(plan, "transformers", headed)["note"]


def test_zoo_names_are_explained():
    models = [NGRAM, None, {**DRAFT, "model": "zoo:mid"}, None, {"model": "zoo:large"}]
    assert "give other engines a directory" in export(planned(), "vllm", models)["note"]


def test_an_early_exit_is_priced_without_a_shared_trunk():
    verify = np.array(ESTIMATES.verify_ms)
    verify[3, 4] = 16.0  # the exit's layers cost 4 of the target's 20
    shared = replace(ESTIMATES, verify_ms=verify)
    assert without_sharing(shared, 3).verify_ms[3, 4] == pytest.approx(np.full(65, 20.0))
    assert without_sharing(ESTIMATES, 3).verify_ms[3, 4] == pytest.approx(verify[2, 4])
    out = export(planned(shared), "transformers", [None, None, None, EXIT, TARGET])
    assert out["latency"] == brute(ESTIMATES, (3,))[0]
    assert "computes the exit's layers again" in out["note"]


def test_what_a_level_leaves_out_has_the_hierarchy_files_defaults():
    models = [None, {"method": "prompt_lookup"}, None, None, TARGET]
    own = export(planned(), "vllm", models)["configuration"]["speculative_config"]
    default = PromptLookupConfig(num_speculative_tokens=1)
    assert own["prompt_lookup_max"] == default.prompt_lookup_max
    assert own["prompt_lookup_min"] == default.prompt_lookup_min
    own = export(planned(), "transformers", models)["configuration"]["generate"]
    assert own["max_matching_ngram_size"] == default.prompt_lookup_max
    levels = [None, None, {**DRAFT, "num_speculative_tokens": 3, "verify": "block"}, None, TARGET]
    assert export(planned(), "vllm", levels) == export(
        planned(), "vllm", [*[None] * 2, DRAFT, None, TARGET]
    )
    dtypes = [*[None] * 2, {**DRAFT, "dtype": "float16"}, None, {**TARGET, "dtype": "bfloat16"}]
    python = export(planned(), "transformers", dtypes)["python"]
    assert "'lab/target', dtype='bfloat16')" in python
    assert "'lab/a draft', dtype='float16')" in python


@pytest.mark.parametrize("engine", ENGINES)
def test_limits_of_the_search_hold_for_the_setting_too(engine):
    sizes = [1, 1, 30, 1, 100]  # as it pays best, the draft is taken where it fits
    known = ideal(COSTS, RATES, max_budget=12, memory=sizes)
    plan = planned(known, levels=(1, 4), budgets=(2,))
    models = [NGRAM, LOOKUP, DRAFT, None, TARGET]
    for memory, levels in ((None, [2, 4]), (130, [2, 4]), (129, [1, 4])):
        assert export(plan, engine, models, None, memory)["levels"] == levels
    assert export(plan, engine, models, 2)["levels"] == [2, 4]
    alone = export(planned(known, (4,), ()), engine, models, 1)
    assert (alone["levels"], alone["configuration"]) == ([4], {})


def test_of_a_gguf_file_the_folder_and_the_name_are_given_apart():
    models = [None, None, {**DRAFT, "model": "small/d.gguf"}, None, {"model": "/m/t.gguf"}]
    python = export(planned(), "transformers", models)["python"]
    ast.parse(python)
    loaded = "ForCausalLM.from_pretrained('{}', gguf_file='{}')"
    assert "tokenizer = AutoTokenizer.from_pretrained('/m', gguf_file='t.gguf')" in python
    assert loaded.format("/m", "t.gguf") in python
    assert loaded.format("small", "d.gguf") in python
    assert export(planned(), "vllm", models)["command"].startswith("vllm serve /m/t.gguf ")


def test_mistakes_are_named():
    with pytest.raises(ValueError, match="'sglang'; there are: vllm, transformers"):
        export(planned(), "sglang", MODELS)
    with pytest.raises(ValueError, match="the plan's 5 models"):
        export(planned(), "vllm", MODELS[1:])
    with pytest.raises(ValueError, match="end with the target"):
        export(planned(), "vllm", [*MODELS[:-1], None])
    with pytest.raises(ValueError, match="method is 'magic'"):
        export(planned(), "vllm", [{"method": "magic"}, *MODELS[1:]])
    with pytest.raises(ValueError, match=r"models\[3\]: unknown key 'layer'; did you mean"):
        export(planned(), "vllm", [*MODELS[:3], {**EXIT, "layer": 3}, TARGET])
    with pytest.raises(ValueError, match=r"models\[4\]: unknown key 'dtyp'; did you mean 'dtype'"):
        export(planned(), "vllm", [*MODELS[:4], {**TARGET, "dtyp": "float16"}])


def test_what_other_engines_compute_again_is_priced_in_every_class():
    known = ideal([2.0, 10.0], [[0, 0.8], [0, 0]])
    verify = known.verify_ms.copy()
    verify[0, 1] = 5.0  # the exit's layers are not run again here
    known = replace(known, verify_ms=verify)
    chain = Chain((0, 1), (4,))
    alone = latency(without_sharing(known, 0), chain).ms_per_token
    kinds = latency(without_sharing(replace(known, classes=(known, known)), 0), chain)
    assert kinds.ms_per_token == pytest.approx(alone)
    assert alone > 1.2 * latency(known, chain).ms_per_token


def test_every_candidate_of_a_profile_is_taken_or_passed_over():
    from hierspec.profiling.candidates import parse

    names = ["m", "exit:1", "ngram", "prompt-lookup", "suffix", "quantized", "quantized:4"]
    levels = [parse(name).level for name in [*names, "eagle3:folder"]]
    planned = {method_name(level) for level in methods.built_in() if level.capabilities.planned}
    assert {level.method for level in levels} == planned
    for engine in ENGINES.values():
        refused = {level.method for level in levels if inexpressible(engine, level)}
        assert "quantized" in refused
        assert refused == {level.method for level in levels if not engine.can_draft(level)}
