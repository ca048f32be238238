"""`model.generate(custom_generate=...)` against transformers' own loop, token for token."""

import copy
import gc
import itertools
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from fakes.engines import RecordingStreamer
from tiny_models import tiny_model
from tiny_zoo import FOLDER
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    LogitsProcessor,
    LogitsProcessorList,
    PrefixConstrainedLogitsProcessor,
    StoppingCriteria,
    StoppingCriteriaList,
    UnbatchedClassifierFreeGuidanceLogitsProcessor,
)

import hierspec
from hierspec.lm.native import library

LEVELS = [
    {"method": "early_exit", "exit_layer": 1, "num_speculative_tokens": 2},
    {"method": "early_exit", "exit_layer": 2, "num_speculative_tokens": 4, "verify": "block"},
]


@pytest.fixture(scope="module")
def model(tiny_family):
    model = AutoModelForCausalLM.from_pretrained(tiny_family["target"], dtype=torch.float64)
    model.generation_config.pad_token_id = 0
    return model.eval()


def both(model, ids, **options):
    plain = model.generate(ids, **options)
    fast = model.generate(
        ids, custom_generate=hierspec.custom_generate, hierarchy=LEVELS, **options
    )
    return plain, fast


def test_greedy_equals_generate(model):
    ids = torch.tensor([[5, 9, 7, 22]])
    plain, fast = both(model, ids, max_new_tokens=40, do_sample=False)
    assert torch.equal(plain, fast)


def test_without_a_word_on_drafts_the_text_is_copied_from(model):
    ids = torch.tensor([[5, 9, 7, 22]])
    plain = model.generate(ids, max_new_tokens=20, do_sample=False)
    fast = model.generate(
        ids, max_new_tokens=20, do_sample=False, custom_generate=hierspec.custom_generate
    )
    assert torch.equal(plain, fast)


def test_left_padded_batches_end_each_in_its_own_time(model):
    ids = torch.tensor([[0, 0, 5, 9], [11, 4, 4, 30], [0, 60, 2, 8]])
    mask = (torch.arange(4) >= torch.tensor([[2], [0], [1]])).long()
    eos = int(model.generate(ids[1:2], max_new_tokens=9, do_sample=False)[0, -1])
    options = {"attention_mask": mask, "max_new_tokens": 25, "do_sample": False}
    plain, fast = both(model, ids, **options, eos_token_id=[eos, 2])
    assert torch.equal(plain, fast)


def test_processors_and_criteria_see_every_token(model):
    class NoRepeat(LogitsProcessor):
        def __call__(self, input_ids, scores):
            scores = scores.clone()
            scores[:, input_ids[0, -1]] = -torch.inf
            return scores

    class Enough(StoppingCriteria):
        def __call__(self, input_ids, scores, **_):
            return torch.tensor([int(row[-1]) % 7 == 3 for row in input_ids])

    ids = torch.tensor([[5, 9, 7, 22]])
    plain, fast = both(
        model,
        ids,
        max_new_tokens=40,
        do_sample=False,
        repetition_penalty=1.3,
        logits_processor=LogitsProcessorList([NoRepeat()]),
        stopping_criteria=StoppingCriteriaList([Enough()]),
    )
    assert torch.equal(plain, fast)


def test_sampling_is_seeded_and_returns_several(model):
    ids = torch.tensor([[5, 9, 7, 22]])
    options = {
        "max_new_tokens": 12,
        "do_sample": True,
        "num_return_sequences": 3,
        "temperature": 0.8,
        "top_k": 20,
        "custom_generate": hierspec.custom_generate,
        "hierarchy": LEVELS,
    }
    a, b = (model.generate(ids, seed=4, **options) for _ in range(2))
    assert torch.equal(a, b)
    assert a.shape[0] == 3
    assert not torch.equal(a[0], a[1])
    torch.manual_seed(1)
    c = model.generate(ids, **options)
    torch.manual_seed(1)
    assert torch.equal(c, model.generate(ids, **options))


def test_streamer_and_output_object(model):
    streamer = RecordingStreamer()
    ids = torch.tensor([[5, 9, 7, 22]])
    out = model.generate(
        ids,
        custom_generate=hierspec.custom_generate,
        hierarchy={"levels": LEVELS, "verify": "tokenwise"},
        token_streamer=streamer,
        max_new_tokens=10,
        do_sample=False,
        return_dict_in_generate=True,
    )
    assert streamer.calls[-1] == "end"
    assert streamer.ids == out.sequences[0].tolist()  # the prompt first, as generate does


def test_what_is_no_next_token_law_is_refused_by_name(model):
    ids = torch.tensor([[5, 9]])
    with pytest.raises(ValueError, match="beam search"):
        model.generate(ids, custom_generate=hierspec.custom_generate, hierarchy=LEVELS, num_beams=2)


MASK = (torch.arange(4) >= torch.tensor([[2], [0], [1]])).long()
PADDED = torch.tensor([[0, 0, 5, 9], [11, 4, 4, 30], [0, 60, 2, 8]])


@pytest.mark.parametrize(
    "options",
    [
        {"repetition_penalty": 1.3},
        {"encoder_repetition_penalty": 1.3},
        {"encoder_no_repeat_ngram_size": 2},
        {"no_repeat_ngram_size": 2},
        {"forced_eos_token_id": 5},
        {"forced_bos_token_id": 7},
        {"begin_suppress_tokens": list(range(3, 80))},
        {"min_length": 9, "eos_token_id": list(range(40, 96))},
        {"min_new_tokens": 5, "eos_token_id": list(range(40, 96))},
        {"exponential_decay_length_penalty": (2, 1.5), "eos_token_id": [50]},
        {"prefix_allowed_tokens_fn": lambda row, ids: [3 + row, 30 + len(ids) % 7, 90]},
    ],
    ids=lambda options: next(iter(options)),
)
def test_left_padded_rows_meet_the_processors_as_in_generate(model, options):
    plain, fast = both(
        model, PADDED, attention_mask=MASK, max_new_tokens=8, do_sample=False, **options
    )
    assert torch.equal(plain, fast)


def test_a_grammar_is_asked_about_the_prompt_of_a_sample(model):
    plain, fast = both(
        model,
        PADDED,
        attention_mask=MASK,
        max_new_tokens=4,
        do_sample=True,
        num_return_sequences=2,
        prefix_allowed_tokens_fn=lambda prompt, ids: [3 + 7 * prompt + len(ids)],
    )
    assert torch.equal(plain, fast)


# All that may be written; after any other text no token is offered, which transformers refuses.
TEXTS = [(5, 30, 9, 40, 2), (5, 31, 9, 11, 7, 2), (5, 31, 9, 41, 2)]
COPIED = [5, 9, 7, 22, 5, 9, 7, 9, 22]  # what follows a token here is not what may follow it there
SUFFIX = {"method": "suffix", "num_speculative_tokens": 4}
LOOK = {"method": "prompt_lookup", "num_speculative_tokens": 4, "prompt_lookup_min": 1}
LONG = {"method": "early_exit", "exit_layer": 2, "num_speculative_tokens": 8}


def offered(_, ids):
    text = tuple(ids[len(COPIED) :].tolist())
    return sorted({one[len(text)] for one in TEXTS if one[: len(text)] == text and one != text})


@pytest.mark.parametrize(
    "levels",
    [[SUFFIX], [LOOK], [LONG], [LONG | {"num_drafts": 2}], [LOOK, LONG], LEVELS],
    ids=["suffix", "look-up", "beyond the end", "several", "below a model", "exits"],
)
def test_a_grammar_is_asked_about_texts_that_it_knows(model, levels):
    """Not about copied tokens that it forbids, nor about what a draft has after its end."""
    ids = torch.tensor([COPIED])
    options = {"max_new_tokens": 12, "prefix_allowed_tokens_fn": offered}
    plain = model.generate(ids, do_sample=False, **options)
    rule = {"levels": levels}
    if "num_drafts" in levels[0]:
        rule["verify"] = "traversal"
    assert torch.equal(ours(model, ids, hierarchy=rule, **options), plain)
    sampled = {**options, "do_sample": True, "temperature": 5.0, "num_return_sequences": 4}
    for row in ours(model, ids, hierarchy=rule, seed=1, **sampled).tolist():
        assert tuple(token for token in row[len(COPIED) :] if token) in TEXTS

    fast = hierspec.Hierarchy({"target": model, **rule})
    processors = [PrefixConstrainedLogitsProcessor(offered, 1)]
    own = {"max_new_tokens": 12, "eos_token_id": 2, "logits_processors": processors}
    assert fast.generate(COPIED, **own).token_ids == tuple(plain[0, len(COPIED) :].tolist())
    for seed in range(4):
        assert fast.generate(COPIED, temperature=5.0, seed=seed, **own).token_ids in TEXTS


def test_without_an_end_of_text_rows_go_on_until_all_are_stopped(model):
    class Seen(StoppingCriteria):
        def __call__(self, input_ids, scores, **_):
            return torch.tensor([int(row[-1]) % 5 == 3 for row in input_ids])

    ends = copy.copy(model.generation_config)
    ends.eos_token_id = None
    options = {"attention_mask": MASK, "do_sample": False, "generation_config": ends}
    for length in (6, 40):
        plain, fast = both(
            model, PADDED, max_new_tokens=length, stopping_criteria=[Seen()], **options
        )
        assert torch.equal(plain, fast)


@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("llama", {"position_ids": torch.tensor([[3, 4, 9, 30]])}),
        ("gpt2", {"token_type_ids": torch.tensor([[7, 7, 7, 7]])}),
    ],
)
def test_what_changes_a_forward_is_refused_by_name(family, options):
    model = tiny_model(family)
    ids = torch.tensor([[5, 9, 7, 22]])
    with pytest.raises(ValueError, match=f"leave {next(iter(options))} out"):
        both(model, ids, max_new_tokens=4, do_sample=False, **options)
    positions = torch.arange(4)[None]
    plain, fast = both(model, ids, max_new_tokens=4, do_sample=False, position_ids=positions)
    assert torch.equal(plain, fast)


def test_a_context_that_ends_a_text_is_noted(caplog):
    model = tiny_model("llama", layers=1, max_position_embeddings=16, eos_token_id=None)
    fast = ours(model, torch.tensor([[5, 9, 7, 22]]), max_new_tokens=20, hierarchy=None, drafts=[])
    assert fast.shape[1] == 16
    assert "before max_length (24)" in caplog.text


def test_a_processor_of_ones_own_may_know_its_rows(model):
    class Ban(LogitsProcessor):
        banned = torch.arange(96).reshape(3, 32)

        def __call__(self, input_ids, scores):
            return scores.scatter(1, self.banned, -torch.inf)

    processors = LogitsProcessorList([Ban()])
    plain, fast = both(
        model,
        PADDED,
        attention_mask=MASK,
        max_new_tokens=8,
        do_sample=False,
        logits_processor=processors,
    )
    assert torch.equal(plain, fast)


def test_processors_that_remember_are_refused_by_name(model):
    guided = UnbatchedClassifierFreeGuidanceLogitsProcessor(3.0, model)
    with pytest.raises(ValueError, match=r"UnbatchedClassifierFree.*leave it out"):
        both(model, torch.tensor([[5, 9]]), max_new_tokens=4, logits_processor=[guided])


def test_an_option_that_guides_by_a_second_prompt_is_refused(model):
    with pytest.raises(ValueError, match="second prompt: leave guidance_scale unset"):
        both(model, torch.tensor([[5, 9]]), max_new_tokens=4, guidance_scale=3.0)


@pytest.fixture(scope="module")
def speaking(tmp_path_factory):
    """A tiny model with a tokenizer beside it."""
    from tiny_models import save_tiny

    folder = save_tiny("llama", tmp_path_factory.mktemp("speaking") / "m", vocab_size=4096)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((FOLDER / "tiny" / name).read_bytes())
    return str(folder)


def test_stop_strings_end_rows_as_in_generate(speaking):
    from transformers import AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(speaking).eval()
    tokenizer = AutoTokenizer.from_pretrained(speaking, padding_side="left")
    inputs = tokenizer(["def f(a):", "x"], return_tensors="pt", padding=True)
    free = model.generate(**inputs, max_new_tokens=12, do_sample=False)
    stop = tokenizer.decode(free[0, -8:])[3:6]
    plain, fast = both(
        model,
        inputs["input_ids"],
        attention_mask=inputs["attention_mask"],
        max_new_tokens=12,
        do_sample=False,
        stop_strings=[stop],
        tokenizer=tokenizer,
    )
    assert torch.equal(plain, fast)
    assert not torch.equal(plain, free)


def test_stop_strings_without_a_tokenizer_say_what_to_do(model):
    with pytest.raises(ValueError, match="StopStringCriteria"):
        model.generate(
            torch.tensor([[5]]),
            custom_generate=hierspec.custom_generate,
            hierarchy=LEVELS,
            stop_strings="a",
        )


@pytest.mark.parametrize(
    ("hierarchy", "says"),
    [
        ("speculative", "'speculative' needs a draft model"),
        ("h.json", "'h.json' is neither a preset nor JSON"),
        ("[{", "neither a preset nor JSON"),
        ("3", "must be a list of levels"),
        ({"target": "zoo:tiny", "levels": LEVELS}, "leave 'target' out"),
        (5, "must be a list of levels"),
        ([{"method": {1}}], r"levels\[0\].method is \{1\}; there are: .*draft_model"),
    ],
)
def test_hierarchies_of_no_use_are_refused_in_a_line(model, hierarchy, says):
    with pytest.raises(ValueError, match=says) as caught:
        model.generate(
            torch.tensor([[5]]), custom_generate=hierspec.custom_generate, hierarchy=hierarchy
        )
    assert "\n" not in str(caught.value)


def test_a_hierarchy_over_another_model_is_refused(model):
    weights = copy.deepcopy(model)
    with torch.no_grad():
        weights.model.norm.weight[0] += 1.0
    options = {"custom_generate": hierspec.custom_generate, "max_new_tokens": 2}
    for other in (tiny_model("llama", layers=2), weights):
        fast = hierspec.Hierarchy(other, drafts=[])
        with pytest.raises(ValueError, match=r"was made of another model, .* make it of this one"):
            model.generate(torch.tensor([[5]]), hierarchy=fast, **options)
    for same in (copy.deepcopy(model), copy.deepcopy(model).to(torch.bfloat16)):
        fast = hierspec.Hierarchy(same, drafts=[])
        model.generate(torch.tensor([[5]]), hierarchy=fast, **options)


# --- the model stays its owner's


BATCH = torch.tensor([[5, 9, 7, 22], [11, 4, 4, 30], [60, 2, 8, 1]])


def ours(model, ids=BATCH, **options):
    options = {"max_new_tokens": 24, "do_sample": False, "hierarchy": LEVELS, **options}
    return model.generate(ids, custom_generate=hierspec.custom_generate, **options)


def everything(model):
    """All attributes of all modules and of their configs; by identity where it is an object."""
    plain = (bool, int, float, str, type(None))
    found = {}
    for name, module in model.named_modules():
        for holder in (module, getattr(module, "config", None)):
            for key, value in vars(holder).items() if holder is not None else ():
                kept = value if isinstance(value, plain) else id(value)
                found[name, type(holder).__name__, key] = kept
        for kind in (module._parameters, module._buffers, module._modules):
            found |= {(name, key): id(value) for key, value in kind.items()}
    return found


@pytest.mark.parametrize("training", [False, True])
def test_a_model_may_run_in_another_thread_meanwhile(tiny_family, training):
    """Its forward gives the same bits, and its attributes are what they were, at any moment."""
    model = AutoModelForCausalLM.from_pretrained(tiny_family["target"]).train(training)
    model.generation_config.pad_token_id = 0
    ids = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6]])
    with torch.no_grad():
        alone = model(input_ids=ids).logits
    ours(model)  # transformers settles its generation config
    before, wanted = everything(model), ours(model)
    wrong, errors, seen = [], [], threading.Event()

    def user():
        try:
            for _ in range(60):
                with torch.no_grad():
                    wrong.append(not torch.equal(model(input_ids=ids).logits, alone))
                wrong.append(everything(model) != before)
        except Exception as error:
            errors.append(error)
        finally:
            seen.set()

    thread = threading.Thread(target=user)
    thread.start()
    while not seen.is_set():
        assert torch.equal(ours(model), wanted)
    thread.join()
    assert not errors
    assert len(wrong) == 120
    assert not any(wrong)
    assert everything(model) == before


def test_no_attribute_is_other_while_layers_run(model):
    """As a layer's own hooks see it, in the middle of a batch."""
    before, seen = None, []

    def look(*_):
        seen.append(everything(model) == before)

    hooks = [module.register_forward_hook(look) for module in model.model.layers[1].modules()]
    before = everything(model)
    ours(model)
    for hook in hooks:
        hook.remove()
    assert seen
    assert all(seen)


def test_what_becomes_of_the_weights_is_seen(tiny_family):
    """In place, by other parameters, by other modules: what is run is the model as it is."""
    model = AutoModelForCausalLM.from_pretrained(tiny_family["target"], dtype=torch.float64)
    model.generation_config.pad_token_id = 0
    texts = [ours(model)]
    attention = model.model.layers[0].self_attn
    rows, columns = attention.q_proj.weight.shape
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(rows, columns, generator=generator, dtype=torch.float64)
    with torch.no_grad():
        attention.v_proj.weight.mul_(-3.0)
    texts.append(ours(model))
    attention.q_proj.weight = torch.nn.Parameter(noise)
    texts.append(ours(model))
    attention.o_proj = torch.nn.Linear(attention.o_proj.in_features, rows, dtype=torch.float64)
    texts.append(ours(model))
    assert torch.equal(texts[-1], model.generate(BATCH, max_new_tokens=24, do_sample=False))
    assert all(not torch.equal(a, b) for a, b in itertools.pairwise(texts))


def test_a_model_on_its_own_layers_may_change_its_type():
    model = tiny_model("gpt2", dtype=torch.float32)
    fast = hierspec.Hierarchy(model, drafts=["exit:1"])
    options = {"hierarchy": None, "drafts": ["exit:1"]}
    ours(model, **options)
    model.double()
    plain = model.generate(BATCH, max_new_tokens=24, do_sample=False)
    assert torch.equal(ours(model, **options), plain)
    with pytest.raises(ValueError, match=r"another device or type .*: make it again") as caught:
        fast.generate([5, 9], max_new_tokens=2)
    assert "\n" not in str(caught.value)


@pytest.mark.skipif(library.load() is None, reason="no C compiler here")
def test_deterministic_decoding_is_of_the_model_in_memory(tiny_family, monkeypatch):
    model = AutoModelForCausalLM.from_pretrained(tiny_family["target"], dtype=torch.float32)
    model.generation_config.pad_token_id = 0
    monkeypatch.setattr("hierspec.config.checkpoints.load", None)  # not of the one on the disk
    rule = {"levels": LEVELS, "deterministic": True}
    texts = [ours(model, hierarchy=rule)]
    with torch.no_grad():
        model.model.layers[0].self_attn.v_proj.weight.mul_(-3.0)
    texts.append(ours(model, hierarchy=rule))
    assert torch.equal(texts[1], model.generate(BATCH, max_new_tokens=24, do_sample=False))
    assert not torch.equal(*texts)


def test_deterministic_decoding_on_own_layers_is_refused_in_a_line():
    with pytest.raises(ValueError, match=r"this model runs on its own layers \(.*leave") as caught:
        ours(tiny_model("gpt2"), hierarchy={"levels": LEVELS, "deterministic": True})
    assert "\n" not in str(caught.value)


def test_threads_that_come_first_together_share_a_hierarchy(model, monkeypatch):
    from hierspec.integrations import transformers as integration

    built = []

    def slow(*arguments):
        built.append(arguments)
        time.sleep(0.1)
        return build(*arguments)

    build = integration.build
    monkeypatch.setattr(integration, "build", slow)
    levels = [{"method": "early_exit", "exit_layer": 1, "num_speculative_tokens": 7}]
    with ThreadPoolExecutor(2) as threads:
        texts = list(threads.map(lambda _: ours(model, hierarchy=levels), range(2)))
    assert torch.equal(*texts)
    assert len(built) == 1


def test_a_hierarchy_dies_with_its_model(tiny_family):
    model = AutoModelForCausalLM.from_pretrained(tiny_family["target"])
    model.generation_config.pad_token_id = 0
    ours(model)
    layer = weakref.ref(model.model.layers[0])
    del model
    gc.collect()
    assert layer() is None


@pytest.mark.parametrize("rope", ["dynamic", "longrope"])
def test_frequencies_that_follow_the_length_stay_the_owners(rope):
    """The library keeps them in the module; a long text of ours must not move a short one's."""
    parameters = {"rope_type": rope, "rope_theta": 10000.0, "factor": 4.0}
    if rope == "longrope":
        factors = {"short_factor": [1.0] * 4, "long_factor": [3.0, 5.0, 7.0, 9.0]}
        parameters |= {**factors, "original_max_position_embeddings": 8}
    config = LlamaConfig(
        vocab_size=61,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=4,
        num_attention_heads=4,
        max_position_embeddings=64,
        rope_parameters=parameters,
        pad_token_id=0,
        eos_token_id=None,
    )
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval().double()
    frequencies = model.model.rotary_emb.inv_freq
    before, state = frequencies.clone(), everything(model)
    pads = [0, 3, 1]
    mask = (torch.arange(4) >= torch.tensor(pads)[:, None]).long()
    out = ours(model, attention_mask=mask, max_new_tokens=40)
    assert everything(model) == state
    assert torch.equal(frequencies, before)
    for row, ids, pad in zip(out, BATCH, pads, strict=True):
        assert torch.equal(row[pad:], ours(model, ids[None, pad:], max_new_tokens=40)[0])
