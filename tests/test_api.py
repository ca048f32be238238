"""What Python users hold: arguments, events, counters, threads, and mistakes in a line."""

import copy
import math
import multiprocessing
import pickle
import re
import threading

import pytest
import torch
from tiny_hierarchies import PROMPTS, built, draft
from tiny_models import save_tiny, tiny_model

from hierspec import Hierarchy, HierspecError, SamplingParams, preset
from hierspec.config.vocabulary import VocabularyWarning


@pytest.fixture(scope="module")
def plain_one(tiny_family):
    return built(tiny_family, "autoregressive")


def test_arguments_come_in_many_forms(plain_one):
    expected = plain_one.generate([5, 9], max_new_tokens=4, seed=1)
    for prompt in ((5, 9), torch.tensor([5, 9]), torch.tensor([5, 9]).numpy()):
        result = plain_one.generate(
            prompt, max_new_tokens=4, seed=1, stop=None, sampling={"temperature": 0}
        )
        assert result.token_ids == expected.token_ids
    rows = plain_one.generate_batch(torch.tensor([[5, 9], [5, 9]]), max_new_tokens=4)
    assert [row.token_ids for row in rows] == [expected.token_ids] * 2
    with pytest.raises(ValueError, match=r"write \[prompt\]"):
        plain_one.generate_batch("abc")
    by_path = Hierarchy.from_preset("autoregressive", target=plain_one.config.target.model)
    assert by_path.config.target.dtype == "auto"
    with pytest.raises(ValueError, match="did you mean 'target'"):
        Hierarchy.from_preset("autoregressive", targt="x")


@pytest.mark.parametrize("copied", [copy.deepcopy, pickle.dumps])
def test_a_copy_is_loaded_from_the_config(plain_one, copied):
    with pytest.raises(ValueError, match=r"from its config, Hierarchy\(hierarchy\.config\)"):
        copied(plain_one)
    expected = plain_one.generate([5], max_new_tokens=3).token_ids
    for again in (Hierarchy(plain_one.config), copy.copy(plain_one)):
        assert again.generate([5], max_new_tokens=3).token_ids == expected


def _ask(hierarchy, threads, answers):
    torch.set_num_threads(threads)
    try:
        answers.put(hierarchy.generate([5], max_new_tokens=3).token_ids)
    except HierspecError as error:
        answers.put(str(error))


def test_a_forked_process_has_no_threads_of_torch(plain_one):
    expected = plain_one.generate([5], max_new_tokens=3).token_ids
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    for threads in (2, 1):
        child = context.Process(target=_ask, args=(plain_one, threads, answers))
        child.start()
        child.join(60)
    assert "forked" in answers.get()
    assert answers.get() == expected


def test_a_deep_copy_of_a_configuration_keeps_its_loaded_model():
    model = tiny_model("llama", layers=1)
    config = copy.deepcopy(Hierarchy(model, drafts=[]).config)
    assert config.target.model.model is model


def test_a_presets_name_is_a_configuration():
    assert Hierarchy.from_config("autoregressive").config == preset("autoregressive")


def test_each_prompt_may_have_parameters_of_its_own(plain_one):
    banned = [SamplingParams.make(logit_bias={token: -math.inf}) for token in range(2)]
    each = plain_one.generate_batch([[5], [5]], sampling=banned, max_new_tokens=30, ignore_eos=True)
    alone = [plain_one.generate([5], sampling=one, max_new_tokens=30, ignore_eos=True)
             for one in banned]  # fmt: skip
    assert [r.token_ids for r in each] == [r.token_ids for r in alone]
    with pytest.raises(ValueError, match="2 entries for 1 prompts"):
        plain_one.start([[5]], sampling=banned)


@pytest.mark.parametrize(
    ("prompt", "options", "says"),
    [
        ([], {}, "prompt is empty"),
        ([96], {}, "outside the target's vocabulary"),
        ([-1], {}, "outside the target's vocabulary"),
        ([3] * 512, {}, "context holds 512"),
        ("text", {}, "no tokenizer"),
        ([3], {"temperature": -1}, "temperature"),
        ([3], {"max_new_tokens": 0}, "max_new_tokens"),
        ([3], {"stop": "x"}, "stop strings need a tokenizer"),
        ([3], {"temprature": 1}, "did you mean 'temperature'"),
        ([3], {"max_new_token": 1}, "did you mean 'max_new_tokens'"),
        (None, {}, "a text or a list of token ids"),
        (5, {}, "a text or a list of token ids"),
        ([[3, 4]], {}, "all of them to generate_batch"),
        ([5.7], {}, "not a token id"),
        (["5"], {}, "not a token id"),
        ([True], {}, "not a token id"),
        (torch.tensor([[3, 4]]), {}, "one row of token ids"),
        (torch.tensor([0.5]), {}, "not a token id"),
        ([3], {"max_new_tokens": True}, "max_new_tokens"),
        ([3], {"seed": "a"}, "seed must be an integer"),
        ([3], {"seed": 1.5}, "seed must be an integer"),
        ([3], {"seed": -(2**63) - 1}, "at most 64 bits"),
        ([3], {"seed": 2**64}, "at most 64 bits"),
        ([3], {"stop": 5}, "stop must be a text"),
        ([3], {"eos_token_id": "2"}, "not a token id"),
        ([3], {"eos_token_id": -1}, "at least 0"),
        ([3], {"stop_token_ids": "2"}, "stop_token_ids holds '2'"),
        ([3], {"stop_token_ids": [3, -1]}, "stop_token_ids must be at least 0"),
        ([3], {"stop_token_ids": 96}, "stop_token_ids: 96 is not a token of the target"),
        ([3], {"sampling": 5}, "sampling must be"),
        ([3], {"sampling": {"heat": 1}}, "unknown key 'heat'"),
        ([3], {"sampling": {}, "top_k": 1}, "not both"),
        ([3], {"logit_bias": 5}, "logit_bias must map"),
        ([3], {"logit_bias": {3.7: 1.0}}, "logit_bias must map"),
        ([3], {"logits_processors": 3}, "must be a list"),
        ([3], {"logits_processors": [lambda ids, row: None]}, "returned None"),
        ([3], {"logits_processors": [lambda ids, row: row * math.nan]}, "made .*'s scores NaN"),
    ],
    ids=lambda value: re.sub(r" at 0x\w+", "", str(value)),
)
def test_mistakes_are_one_clear_line(plain_one, prompt, options, says):
    with pytest.raises(ValueError, match=says) as caught:
        plain_one.generate(prompt, **options)
    assert "\n" not in str(caught.value)


def test_a_generation_runs_once(plain_one):
    generation = plain_one.start([[5]], max_new_tokens=3)
    assert len(list(generation)) == 3
    with pytest.raises(ValueError, match="runs once"):
        list(generation)
    assert generation.results()[0].num_tokens == 3


def test_an_abandoned_stream_frees_its_caches_and_is_cancelled(tiny_family):
    hierarchy = built(tiny_family, "hierarchy")
    generation = hierarchy.start([PROMPTS[0]], max_new_tokens=30, ignore_eos=True)
    events = iter(generation)
    some = [next(events) for _ in range(5)]
    events.close()
    (result,) = generation.results()
    assert result.finish_reason == "cancelled"
    assert result.token_ids == tuple(event.token_id for event in some)
    assert not generation.requests[0].slots


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma2"])  # kernels, lean, own layers
def test_torchs_defaults_change_nothing(family):
    dtype = torch.float64 if family == "qwen3" else torch.float32
    model, small = (tiny_model(family, layers=layers, dtype=dtype) for layers in (3, 1))
    several = {"method": "draft_model", "model": small, "num_speculative_tokens": 3}
    stacks = [
        lambda: Hierarchy(model, drafts=["suffix", "exit:1"]),
        lambda: Hierarchy(
            {"target": model, "levels": [{**several, "num_drafts": 2}], "verify": "traversal"}
        ),
    ]
    if family == "llama":
        stacks.append(lambda: Hierarchy(model, drafts=["quantized:4"]))
    calls = [{}, {"temperature": 0.8, "seed": 4, "top_p": 0.8, "logprobs": 2}]

    def texts(stack):
        fast = stack()
        return [
            fast.generate([5, 9, 7, 5, 9], max_new_tokens=8, ignore_eos=True, **call).token_ids
            for call in calls
        ]

    for stack in stacks:
        expected = texts(stack)
        with torch.device("meta"):
            assert texts(stack) == expected
        torch.set_default_dtype(torch.bfloat16)
        try:
            assert texts(stack) == expected
        finally:
            torch.set_default_dtype(torch.float32)
        if family == "llama":
            with torch.autocast("cpu", dtype=torch.bfloat16):
                assert texts(stack) == expected


def test_threads_share_a_hierarchy(tiny_family):
    hierarchy = built(tiny_family, "hierarchy")
    options = {"max_new_tokens": 25, "temperature": 1.0, "seed": 3, "ignore_eos": True}
    expected = [hierarchy.generate(prompt, **options).token_ids for prompt in PROMPTS[:4]]
    got = [None] * 4

    def work(i):
        got[i] = hierarchy.generate(PROMPTS[i], **options).token_ids

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == expected


def test_a_processor_may_have_parameters(tiny_family):
    hierarchy = built(tiny_family, "hierarchy")
    bias = torch.nn.Parameter(torch.tensor(1.0))
    options = {"max_new_tokens": 5, "ignore_eos": True, "temperature": 1.0, "seed": 1}
    plain = hierarchy.generate(PROMPTS[0], **options)
    moved = hierarchy.generate(PROMPTS[0], logits_processors=[lambda _, s: s + bias], **options)
    assert moved.token_ids == plain.token_ids


def test_a_processor_that_calls_its_own_hierarchy_is_told(tiny_family):
    hierarchy = built(tiny_family, "hierarchy")

    def asks_itself(ids, scores):
        hierarchy.generate(PROMPTS[0], max_new_tokens=2)
        return scores

    options = {"max_new_tokens": 5, "ignore_eos": True}
    with pytest.raises(HierspecError, match="call another Hierarchy"):
        hierarchy.generate(PROMPTS[0], logits_processors=[asks_itself], **options)
    assert hierarchy.generate(PROMPTS[0], **options).num_tokens == 5  # the lock is free again


def test_events_tell_who_wrote_what_and_add_up(tiny_family):
    hierarchy = built(tiny_family, "hierarchy")
    events = list(hierarchy.stream(PROMPTS[0], max_new_tokens=30, ignore_eos=True))
    assert [event.index for event in events] == list(range(30))
    assert [event.finish_reason for event in events[:-1]] == [None] * 29
    assert events[-1].finish_reason == "length"
    names = {tiny_family[name] for name in ("target", "draft", "small")}
    assert {event.level for event in events} == names


def test_counters_add_up(tiny_family):
    result = built(tiny_family, "hierarchy").generate(
        PROMPTS[0], max_new_tokens=61, ignore_eos=True
    )
    out = result.to_dict()
    small, middle = out["levels"]
    assert out["schema_version"] == 1
    # Every round but the prefill: kept tokens of the level below, and one more.
    assert middle["num_accepted_tokens"] + out["target_calls"] == pytest.approx(60, abs=11)
    assert out["mean_acceptance_length"] == pytest.approx(
        1 + middle["num_accepted_tokens"] / out["target_calls"]
    )
    assert out["target"]["calls"] == out["target_calls"]
    assert 0 < middle["acceptance_rate"] <= 1
    assert sum(small["num_accepted_tokens_per_pos"]) == small["num_accepted_tokens"]
    assert middle["num_draft_tokens"] >= middle["num_accepted_tokens"]


def test_what_a_stop_cuts_off_is_no_gain(tiny_family):
    hierarchy = built(tiny_family, "hierarchy")
    whole = hierarchy.generate(PROMPTS[1], max_new_tokens=40, ignore_eos=True)
    for end in whole.token_ids[3:9]:
        result = hierarchy.generate(PROMPTS[1], max_new_tokens=40, eos_token_id=end)
        gained = (result.num_tokens - 1) / result.target_calls if result.target_calls else 0.0
        assert result.mean_acceptance_length == gained
    both = hierarchy.generate_batch(PROMPTS[:2], max_new_tokens=9)
    assert [r.to_dict()["batch_size"] for r in both] == [2, 2]
    assert both[0].target == both[1].target


def test_lossy_rules_are_refused_where_they_would_show(tiny_family):
    target = {"model": tiny_family["target"], "dtype": "float64"}
    config = {"target": target, "levels": [draft(tiny_family["draft"], 3)], "verify": "leading"}
    hierarchy = Hierarchy.from_config(config)
    hierarchy.generate(PROMPTS[0], max_new_tokens=4)  # greedy: exact
    with pytest.raises(ValueError, match="changes the distribution of the output"):
        hierarchy.generate(PROMPTS[0], max_new_tokens=4, temperature=1.0)
    lossy = Hierarchy.from_config({**config, "allow_lossy": True})
    lossy.generate(PROMPTS[0], max_new_tokens=4, temperature=1.0)


def test_an_option_that_a_rule_lacks_is_refused(tiny_family):
    config = {"target": tiny_family["target"], "levels": [draft(tiny_family["draft"], 3)]}
    for rule, option in (("tokenwise", {"lenience": 2.0}), ("block", {"top_m": 4})):
        with pytest.raises(HierspecError, match=f"the rule '{rule}' has no {min(option)}"):
            Hierarchy.from_config({**config, "verify": rule, **option, "allow_lossy": True})


def test_nan_scores_are_reported_by_model(tiny_family, tmp_path):
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(tiny_family["target"])
    with torch.no_grad():
        model.lm_head.weight[3] = float("nan")
    model.save_pretrained(tmp_path / "broken")
    hierarchy = Hierarchy.from_config({"target": {"model": str(tmp_path / "broken")}})
    for temperature in (0.0, 1.0):
        with pytest.raises(ValueError, match="NaN scores"):
            hierarchy.generate(PROMPTS[0], max_new_tokens=4, temperature=temperature)
    with pytest.raises(ValueError, match="NaN or infinite scores: its weights are damaged"):
        Hierarchy.from_config({"target": {"model": str(tmp_path / "broken"), "backend": "hf"}})


def test_sizes_that_padding_hardly_explains_are_noted(tiny_family, tmp_path):
    other = save_tiny("llama", tmp_path / "other", vocab_size=400)
    config = {"target": {"model": tiny_family["target"]}, "levels": [draft(str(other), 4)]}
    with pytest.warns(VocabularyWarning, match="scores 400 tokens"):
        Hierarchy.from_config(config)


def test_a_table_over_another_vocabulary_is_refused(tiny_family):
    table = {"method": "ngram_table", "num_speculative_tokens": 2}
    with pytest.raises(ValueError, match=r"has 4096 tokens and .* has 96"):
        Hierarchy.from_config({"target": {"model": tiny_family["target"]}, "levels": [table]})
