"""What a transformers user asks for: loaded models, options per prompt, and what is refused."""

import asyncio
import copy
import dataclasses
import inspect
import time
from functools import partial

import pytest
import torch
from fakes.engines import RecordingStreamer
from tiny_models import tiny_model
from transformers import (
    GenerationConfig,
    MaxLengthCriteria,
    StoppingCriteriaList,
    UnbatchedClassifierFreeGuidanceLogitsProcessor,
)

import hierspec
from hierspec import Hierarchy, HierspecError, TargetConfig
from hierspec.config.arguments import SAMPLING
from hierspec.config.call import CallOptions
from hierspec.config.checkpoints import load_tokenizer
from hierspec.config.drafts import levels
from hierspec.config.model_defaults import GenerationConfigWarning
from hierspec.config.schema import HierarchyConfig
from hierspec.core.nodes import walk_levels
from hierspec.zoo import registry

IDS = [5, 9, 7]
OPTIONS = {"max_new_tokens": 10, "ignore_eos": True}


@pytest.fixture(scope="module")
def model():
    model = tiny_model("llama", seed=1, dtype=torch.float64)
    model.generation_config.eos_token_id = None
    return model


@pytest.fixture(scope="module")
def small():
    return tiny_model("llama", seed=2, layers=1, dtype=torch.float64)


@pytest.fixture(scope="module")
def fast(model, small):
    return Hierarchy(model, drafts=[small, "ngram"])


def greedy(model, config=None, **options):
    ids = torch.tensor([IDS])
    options = options or ({} if config else {"max_new_tokens": 10, "do_sample": False})
    return tuple(model.generate(ids, generation_config=config, **options)[0, len(IDS) :].tolist())


def test_loaded_models_stand_wherever_a_name_may(model, small):
    expected = greedy(model)
    level = {"method": "draft_model", "model": small, "num_speculative_tokens": 3}
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    for hierarchy in (
        Hierarchy(model, drafts=[small, "ngram", "exit:1"]),
        Hierarchy(model),
        Hierarchy({"target": model, "levels": [level]}),
        Hierarchy.from_config({"target": {"model": model, "backend": "lean"}, "levels": [level]}),
        Hierarchy.from_preset("hierarchy", target=model, drafts=[small, small]),
    ):
        assert hierarchy.generate(IDS, **OPTIONS).token_ids == expected
    assert all(torch.equal(before[name], one) for name, one in model.state_dict().items())


def test_loaded_drafts_and_presets_in_custom_generate(model, small):
    expected = greedy(model)
    fast = {"max_new_tokens": 10, "do_sample": False, "custom_generate": hierspec.custom_generate}
    level = {"method": "draft_model", "model": small, "num_speculative_tokens": 3}
    for how in (
        {"hierarchy": "layerskip"},
        {"hierarchy": "speculative", "drafts": [small]},
        {"drafts": [small, "ngram"]},
        {"hierarchy": [level]},
    ):
        assert greedy(model, **fast, **how) == expected


def test_arguments_of_custom_generate_are_served_or_refused(model, small):
    streamer = RecordingStreamer()
    fast = {"max_new_tokens": 6, "do_sample": False, "custom_generate": hierspec.custom_generate}
    out = greedy(model, **fast, drafts=["ngram"], token_streamer=streamer)
    assert streamer.ids == [*IDS, *out]
    assert streamer.calls[-1] == "end"
    for kept, says in (({"assistant_model": small}, "drafts="), ({"streamer": streamer}, "token_")):
        handed_on = {**fast, "custom_generate": partial(hierspec.custom_generate, **kept)}
        with pytest.raises(HierspecError, match=says):
            greedy(model, **handed_on, drafts=["ngram"])
    for how, says in (
        ({"prompt_lookup_num_tokens": 3, "drafts": ["ngram"]}, "prompt_lookup_num_tokens"),
        ({"hierarchy": "auto"}, "auto measures"),
        ({"hierarchy": "layerskpi"}, "neither a preset nor JSON"),
        ({"hierarchy": [], "drafts": [small]}, "leave drafts out"),
        ({"hierarchy": "layerskip", "drafts": [small]}, "no draft model, and 1 are named"),
        ({"hierarchy": "speculative", "drafts": [small] * 2}, "one draft model, and 2 are named"),
    ):
        with pytest.raises(HierspecError, match=says):
            greedy(model, **fast, **how)


def test_the_stack_is_shown_a_line_a_level(model, small):
    lines = repr(Hierarchy(model, drafts=[small, "ngram"])).splitlines()
    assert lines[0] == "Hierarchy("
    assert lines[1].endswith("verifies by block")
    assert lines[2].endswith("drafts 12 tokens, verifies by block")
    assert lines[3] == "  prompt_lookup: drafts 3 tokens"
    assert "plain decoding" in repr(Hierarchy(model, drafts=[]))


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"assistant_model": "x"}, r"no 'assistant_model': use drafts=\[model\]"),
        ({"draftz": "x"}, "did you mean 'drafts'"),
        ({"temperature": 1}, r"an option of each call: generate\(prompt, temperature"),
        ({"dtype": "float32"}, '"dtype": ...'),
        ({"preset": "suffix"}, "from_preset"),
        ({"zz": 1}, r"help\(Hierarchy\)"),
    ],
)
def test_an_argument_that_hierarchy_has_not(model, how, says):
    with pytest.raises(HierspecError, match=says):
        Hierarchy(model, **how)


def test_options_of_each_prompt_are_those_it_would_have_alone(fast):
    prompts = [IDS, [11, 4, 4, 30, 8], [60]]
    each = {"max_new_tokens": [3, 8, 5], "temperature": [0.0, 1.0, 0.7], "seed": [4, 5, 6]}
    together = fast.generate_batch(prompts, ignore_eos=True, **each)
    for i, prompt in enumerate(prompts):
        own = {name: values[i] for name, values in each.items()}
        alone = fast.generate(prompt, ignore_eos=True, **own)
        assert together[i].token_ids == alone.token_ids
        assert together[i].seed == own["seed"]
    mixed = [{"temperature": 0.0}, {"top_k": 1, "temperature": 1.0}, {}]
    assert len(fast.generate_batch(prompts, sampling=mixed, **OPTIONS)) == 3


def test_several_samples_of_each_prompt(fast):
    options = {**OPTIONS, "temperature": 1.0, "num_return_sequences": 2}
    a = fast.generate_batch([IDS, [60]], seed=3, **options)
    assert [r.token_ids for r in a] == [
        r.token_ids
        for r in fast.generate_batch([IDS, IDS, [60], [60]], seed=3, **OPTIONS, temperature=1.0)
    ]
    own = fast.generate_batch([IDS, [60]], seed=[3, 9], **options)
    assert own[0].token_ids == a[0].token_ids
    assert own[2].token_ids == fast.generate([60], seed=9, **OPTIONS, temperature=1.0).token_ids
    with pytest.raises(HierspecError, match="needs sampling"):
        fast.generate_batch([IDS], num_return_sequences=2)


@pytest.mark.parametrize("rule", ["block", "naive"])
def test_the_likeliest_tokens_of_every_place(model, small, rule):
    level = {"method": "draft_model", "model": small, "num_speculative_tokens": 3}
    fast = Hierarchy({"target": model, "levels": [level], "verify": rule})
    result = fast.generate(IDS, temperature=1.0, seed=2, logprobs=4, **OPTIONS)
    ids = torch.tensor([[*IDS, *result.token_ids]])
    with torch.no_grad():
        rows = model(ids).logits[0, len(IDS) - 1 : -1].log_softmax(-1)
    for row, token, own, best in zip(
        rows, result.token_ids, result.logprobs, result.top_logprobs, strict=True
    ):
        assert own == pytest.approx(float(row[token]), abs=1e-9)
        values, tokens = row.topk(4)
        assert [token for token, _ in best] == tokens.tolist()
        assert [value for _, value in best] == pytest.approx(values.tolist(), abs=1e-9)
    assert len(result.to_dict()["top_logprobs"][0]) == 4
    assert not fast.generate(IDS, logprobs=True, **OPTIONS).top_logprobs
    events = list(fast.stream(IDS, logprobs=2, **OPTIONS))
    assert all(len(event.top_logprobs) == 2 for event in events)


@pytest.mark.parametrize(
    "fields",
    [
        {"max_new_tokens": 8},
        {"max_length": 9, "repetition_penalty": 1.4},
        {"max_new_tokens": 8, "max_length": 200, "forced_eos_token_id": 6},
        {"forced_eos_token_id": 6},
        {"max_new_tokens": 8, "no_repeat_ngram_size": 2, "repetition_penalty": 1.2},
        {"max_new_tokens": 8, "min_new_tokens": 5, "eos_token_id": list(range(60))},
        {"max_new_tokens": 8, "bad_words_ids": [[22], [63]]},
        {"max_new_tokens": 8, "suppress_tokens": [22], "encoder_no_repeat_ngram_size": 1},
    ],
)
def test_a_generation_config_means_what_it_means_to_generate(model, fast, fields):
    config = GenerationConfig(**fields)
    length = {} if {"max_new_tokens", "max_length"} & fields.keys() else {"max_new_tokens": 8}
    found = fast.generate(IDS, generation_config=config, **length).token_ids
    config.update(**length)
    assert found == greedy(model, config)


def test_a_session_in_use_is_not_closed(fast):
    session = fast.session()
    stream = session.stream(IDS, max_new_tokens=20, ignore_eos=True)
    next(stream)
    with pytest.raises(HierspecError, match="in use by a generation"):
        session.close()
    assert session.cache.in_use
    stream.close()
    session.close()


def test_a_generation_config_samples_from_its_distribution(fast):
    config = GenerationConfig(do_sample=True, temperature=0.8, top_p=0.9, max_new_tokens=10)
    own = {"temperature": 0.8, "top_p": 0.9, "top_k": 50}  # generate's default
    a = fast.generate(IDS, generation_config=config, seed=3, ignore_eos=True)
    assert a.token_ids == fast.generate(IDS, seed=3, **OPTIONS, **own).token_ids
    typical = GenerationConfig(do_sample=True, typical_p=0.5, top_k=0, max_new_tokens=10)
    b = fast.generate(IDS, generation_config=typical, seed=3, ignore_eos=True)
    assert b.num_tokens == 10


def test_stopping_criteria_end_a_sequence(fast):
    criteria = StoppingCriteriaList([MaxLengthCriteria(max_length=7)])
    result = fast.generate(IDS, stopping_criteria=criteria, **OPTIONS)
    assert (result.num_tokens, result.finish_reason) == (4, "stop")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"generation_config": GenerationConfig(num_beams=2)}, "beam search"),
        ({"generation_config": GenerationConfig(guidance_scale=2.0)}, "guidance_scale"),
        ({"generation_config": GenerationConfig(output_scores=True)}, "output_scores"),
        (
            {"generation_config": GenerationConfig(), "temperature": 1.0},
            "temperature too: leave it out",
        ),
        ({"generation_config": {"top_k": 3}}, "must be a GenerationConfig"),
        (
            {
                "generation_config": GenerationConfig(do_sample=True, num_return_sequences=3),
                "num_return_sequences": 2,
            },
            "generation_config sets num_return_sequences too",
        ),
        (
            {"generation_config": GenerationConfig(max_new_tokens=4), "max_new_tokens": 128},
            "generation_config sets max_new_tokens too",
        ),
        (
            {"generation_config": GenerationConfig(), "logit_bias": {3: 1.0}},
            "logit_bias does not go with generation_config",
        ),
        ({"num_return_sequences": 3, "temperature": 1.0}, "generate returns one result, and 3"),
        ({"logit_bias": {96: 1.0}}, "96 is not a token"),
        ({"logprobs": -1}, "logprobs"),
        ({"logprobs": "5"}, "logprobs must be an integer"),
        (
            {"logits_processors": [UnbatchedClassifierFreeGuidanceLogitsProcessor(2.0, None)]},
            "cannot run UnbatchedClassifierFreeGuidanceLogitsProcessor",
        ),
        ({"do_sample": True}, "temperature=0 is greedy"),
        ({"no_repeat_ngram_size": 2}, r"GenerationConfig\(no_repeat_ngram_size"),
        ({"num_beams": 4}, "beam search"),
        ({"seed": [1, 2]}, "seed has 2 entries for 1 prompts"),
        ({"max_new_tokens": [1, 2]}, "max_new_tokens has 2 entries"),
        ({"top_k": [1, 2]}, "top_k has 2 entries"),
        ({"stopping_criteria": [3]}, "stopping_criteria must be functions"),
        ({"tools": [print]}, "chat=True"),
        ({"cache": 3}, "SessionCache"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(fast, options, says):
    with pytest.raises(HierspecError, match=says) as caught:
        fast.generate(IDS, **options)
    assert "\n" not in str(caught.value)


def test_mistakes_about_loaded_models_show_no_modules(model, small):
    for make in (
        lambda: Hierarchy(model, drafts=[3]),
        lambda: Hierarchy(model, drafts=[torch.nn.Linear(2, 2)]),
        lambda: Hierarchy({"target": model, "levels": [{"method": small}]}),
        lambda: Hierarchy({"target": model, "verify": small}),
        lambda: Hierarchy({"target": {"model": model, "dtype": "bfloat16"}}),
        lambda: Hierarchy.auto(target=model),
        lambda: Hierarchy.from_preset("speculative", target=model, drafts=[{"a": small}]),
    ):
        with pytest.raises(HierspecError) as caught:
            make()
        assert "\n" not in str(caught.value)
        assert "Embedding(" not in str(caught.value)


@pytest.mark.parametrize(("name", "number"), [("layerskip", 1), ("speculative", 2)])
def test_drafts_of_which_a_preset_has_no_use_are_refused(model, small, name, number):
    with pytest.raises(HierspecError, match=f"'{name}' uses .*, and {number} are named"):
        Hierarchy.from_preset(name, target=model, drafts=[small] * number)


def test_a_file_lets_no_weights_go():
    """Where it is read, its target is loaded by its name."""
    config = Hierarchy(tiny_model("llama", layers=1), drafts=[], free_model=True).config
    assert config.target.free_model
    assert config.to_dict()["target"].keys() == {"model"}


def test_drafts_beside_a_hierarchy_are_refused_and_not_ignored(model, small):
    whole = {"target": model, "levels": []}
    for hierarchy in (whole, HierarchyConfig.from_dict(whole), "speculative", "auto"):
        with pytest.raises(HierspecError, match="a hierarchy has drafts of its own"):
            Hierarchy(hierarchy, drafts=[small])


def test_a_loaded_draft_keeps_its_dtype_below_a_target_with_another(model, small, tmp_path):
    model.save_pretrained(tmp_path)
    target = TargetConfig(model=str(tmp_path), dtype="float32")
    root = Hierarchy(target, drafts=[small]).root
    dtypes = [level.model.trunk.backend.dtype for level in walk_levels(root)]
    assert dtypes == [small.dtype, torch.float32]


def test_no_suggestion_is_better_than_a_far_one(fast):
    with pytest.raises(HierspecError) as caught:
        fast.generate(IDS, colour=1)
    assert str(caught.value) == "no option 'colour': help(Hierarchy.generate) lists them"
    with pytest.raises(HierspecError, match="did you mean 'stopping_criteria'") as caught:
        fast.generate(IDS, stopping_criterion=1)
    assert len(str(caught.value)) < 120


def test_the_help_of_generate_names_all_options():
    said = inspect.getdoc(Hierarchy.generate)
    inner = ("params", "named")
    options = [each.name for each in dataclasses.fields(CallOptions) if each.name not in inner]
    missing = [name for name in (*options, *SAMPLING) if f"``{name}``" not in said]
    assert not missing, "write them into the docstring"


def test_a_streamer_of_several_prompts_is_refused_before_it_prints(model, fast):
    streamer = RecordingStreamer()
    with pytest.raises(HierspecError, match="one at a time"):
        fast.generate_batch([IDS, IDS], streamer=streamer, **OPTIONS)
    with pytest.raises(HierspecError, match="one at a time"):
        fast.generate_batch([], streamer=streamer, **OPTIONS)
    assert streamer.calls == []
    fast.generate_batch([IDS], streamer=streamer, **OPTIONS)
    assert streamer.calls[-1] == "end"


def test_a_streamer_that_fails_leaves_the_session_free(fast):
    class Failing(RecordingStreamer):
        def put(self, ids):
            if ids.numel() == 1:
                raise RuntimeError("the pipe is closed")

    session = fast.session()
    with pytest.raises(RuntimeError) as caught:  # which keeps the frames of the call
        session.generate(IDS, streamer=Failing(), **OPTIONS)
    assert caught.value.__traceback__ is not None
    assert session.generate(IDS, **OPTIONS).token_ids == fast.generate(IDS, **OPTIONS).token_ids


def test_an_asynchronous_stream_gives_the_same_tokens(fast):
    async def tokens():
        return tuple([event.token_id async for event in fast.astream(IDS, **OPTIONS)])

    assert asyncio.run(tokens()) == fast.generate(IDS, **OPTIONS).token_ids
    with pytest.raises(HierspecError, match="empty"):
        asyncio.run(anext(fast.astream([])))


def test_an_abandoned_asynchronous_stream_frees_everything(fast):
    session = fast.session()

    async def some():
        stream = session.astream(IDS, max_new_tokens=200, ignore_eos=True)
        async for event in stream:
            if event.index == 3:
                break
        await stream.aclose()

    async def cancelled():
        async def forever():
            async for _ in session.astream(IDS, max_new_tokens=400, ignore_eos=True):
                pass

        task = asyncio.create_task(forever())
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    for leave in (some, cancelled):
        asyncio.run(leave())
        ends = time.monotonic() + 60
        while session.cache.in_use and time.monotonic() < ends:
            time.sleep(0.01)
        assert not session.cache.in_use
        assert fast.lock.acquire(timeout=60)
        fast.lock.release()


def test_methods_without_a_model_of_their_own_are_drafts_by_name(model, tmp_path):
    expected = greedy(model)
    model.save_pretrained(tmp_path)
    lean = TargetConfig(model=model, backend="lean")
    for target, drafts in ((model, ["suffix"]), (lean, ["quantized"]), (tmp_path, ["quantized"])):
        found = Hierarchy(target, drafts=drafts)
        assert found.generate(IDS, **OPTIONS).token_ids == expected
        assert found.config.levels[0].method == drafts[0]
    assert [levels([name])[0].get("bits") for name in ("quantized:4", "quantized:8")] == [4, 8]
    trained = {"method": "eagle3", "model": "zoo:smollm2-eagle3", "num_speculative_tokens": 8}
    assert levels(["zoo:smollm2-eagle3"]) == levels(["eagle3"]) == [trained]
    assert levels(["eagle3:own"])[0]["model"] == "own"
    table = levels(["ngram:own.pt"])[0]
    assert (table["method"], table["table"]) == ("ngram_table", "own.pt")
    with pytest.raises(HierspecError, match="for 8 bits, or quantized:4"):
        Hierarchy(tmp_path, drafts=["quantized:3"])
    meant = {"ngrams": "ngram", "quantised:4": "quantized:4", "exit": "exit:LAYER"}
    for typo, name in meant.items():
        with pytest.raises(HierspecError, match=f"did you mean '{name}'"):
            Hierarchy(tmp_path, drafts=[typo])
    assert levels(["gpt2"])[0]["model"] == "gpt2"
    with pytest.raises(HierspecError, match="exit:LAYER, as in exit:4"):
        Hierarchy(tmp_path, drafts=["exit:four"])
    with pytest.raises(HierspecError, match=r"Hierarchy\(target, drafts=\['suffix'\]\)"):
        Hierarchy.from_preset("speculative", target=model, drafts=["suffix"])


def test_what_a_newcomer_hands_over_in_a_wrong_place(model, small, fast):
    with pytest.raises(HierspecError, match=r"drafts=\[model\]"):
        Hierarchy(model, small)
    with pytest.raises(HierspecError, match="a loaded one"):
        Hierarchy(model, "./my-model")
    for target, drafts in ((model.model, None), (model, [small.model])):  # without their heads
        with pytest.raises(HierspecError, match="load one with AutoModelForCausalLM"):
            Hierarchy(target, drafts=drafts)
    with pytest.raises(HierspecError, match="or a loaded model, not"):
        Hierarchy(type(model))
    with pytest.raises(HierspecError, match="load the model with it"):
        Hierarchy("./my-model", trust_remote_code=True)
    tokenizer = load_tokenizer(registry.resolve("zoo:tiny-draft"))
    for given in ({"drafts": tokenizer}, {"tokenizer": tokenizer}):
        with pytest.raises(HierspecError, match="auto reads the tokenizer saved beside the model"):
            Hierarchy.auto(model, **given)
    for drafts in (["suffix"], None):
        with pytest.raises(HierspecError, match=r"set model\.config\.name_or_path to that"):
            Hierarchy.auto(model, drafts=drafts)
    with pytest.raises(HierspecError, match="input_ids"):
        fast.generate({"input_ids": [IDS], "attention_mask": [[1] * len(IDS)]})
    with pytest.raises(HierspecError, match="several to generate_batch"):
        fast.generate(["one", "two"])
    for rows in ([IDS, [7]], [torch.tensor(IDS)]):
        with pytest.raises(HierspecError, match="all of them to generate_batch"):
            fast.generate(rows)
    with pytest.raises(HierspecError, match="give the texts themselves"):
        fast.generate_batch({"input_ids": [IDS], "attention_mask": [[1] * len(IDS)]})
    session = fast.session()
    of_session = (session.generate, session.stream, session.start)
    for call in (fast.generate, fast.stream, fast.generate_batch, fast.start, *of_session):
        with pytest.raises(HierspecError, match=r"come first: generate\(input_ids\[0\]"):
            call(input_ids=torch.tensor([IDS]), attention_mask=torch.ones(1, len(IDS)))
    with pytest.raises(HierspecError, match="the prompt is empty"):
        fast.generate()
    with pytest.raises(HierspecError, match="prompts must be a list"):
        fast.generate_batch()


def test_padded_rows_are_refused_where_pads_would_be_read_as_text(model):
    tokenizer = copy.copy(load_tokenizer(registry.resolve("zoo:tiny-draft")))
    tokenizer.pad_token = tokenizer.eos_token
    pad, fast = tokenizer.pad_token_id, Hierarchy(model, tokenizer, drafts=[])
    for rows in ([IDS, [pad, 5, 9]], [IDS, [5, pad, pad]]):
        with pytest.raises(HierspecError, match=f"seem padded with token {pad}"):
            fast.generate_batch(torch.tensor(rows), **OPTIONS)
        assert len(fast.generate_batch(rows, **OPTIONS)) == 2
    begun_alike = torch.tensor([[pad, 5, 9], [pad, 9, 7]])
    assert len(fast.generate_batch(begun_alike, **OPTIONS)) == 2


@pytest.mark.parametrize("backend", ["hf", "lean"])
def test_the_generation_configuration_says_what_ends_a_text(model, backend, tmp_path):
    expected = greedy(model)
    many = copy.deepcopy(model)
    many.generation_config.eos_token_id = [2, expected[4]]
    many.save_pretrained(tmp_path)
    for target in (many, str(tmp_path)):
        found = Hierarchy({"target": {"model": target, "backend": backend}})
        result = found.generate(IDS, max_new_tokens=10)
        assert result.token_ids == greedy(many) == expected[: expected.index(expected[4]) + 1]
        assert result.finish_reason == "stop"
        assert found.generate(IDS, eos_token_id=2, max_new_tokens=10).token_ids == expected
    (tmp_path / "generation_config.json").unlink()
    assert Hierarchy(tmp_path).generate(IDS, max_new_tokens=10).token_ids == expected
    assert Hierarchy(tmp_path).eos_token_ids() == {2}


def test_a_generation_configuration_that_cannot_be_used(model, tmp_path):
    """As in transformers, one that is no JSON is not used; and a note says so."""
    model.save_pretrained(tmp_path)
    file = tmp_path / "generation_config.json"
    file.write_text("{")
    with pytest.warns(GenerationConfigWarning, match=r"generation_config\.json is not valid JSON"):
        assert Hierarchy(tmp_path).eos_token_ids() == {2}
    for content, reason in [
        ("[]", f"the generation configuration of {tmp_path} cannot be used"),
        ('{"early_stopping": 3}', "`early_stopping` must be a boolean"),
        (
            '{"eos_token_id": "</s>"}',
            "eos_token_id must be a token id or a list of them, not '</s>",
        ),
    ]:
        file.write_text(content)
        with pytest.raises(HierspecError, match=reason):
            Hierarchy(tmp_path)


def test_a_text_without_tokens_is_not_called_empty(model):
    def none(text, **_):
        return {"input_ids": []}

    none.decode = none
    with pytest.raises(HierspecError, match="makes no token of this text"):
        Hierarchy(model, none).generate("some text")
