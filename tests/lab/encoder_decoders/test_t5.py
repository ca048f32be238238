"""Encoder-decoder models of the T5 family: what transformers' own models say, through hierarchies.

Drafts that agree in part are the target itself with noise on its weights.
"""

import copy
import itertools
import json

import pytest
import torch
from engine_law import generation_law
from installed import installed
from tiny_models import ENCODER_DECODERS, tiny_model
from transformers import GenerationConfig
from work import Work

from hierspec import Hierarchy, HierspecError
from hierspec.cli import run
from hierspec.core.context import Context
from hierspec.drafters.prompt_lookup import PromptLookup
from hierspec.engine.runner import ServingRunner
from hierspec.lm.base import Query
from hierspec.lm.load import load, wrap
from hierspec.lm.trees import Tree
from hierspec_lab.bench.memory import count_parameters
from hierspec_lab.encoder_decoders.t5 import T5Backend
from hierspec_lab.encoder_decoders.trunk import EncoderDecoderTrunk

SOURCES = [[5, 9, 7, 22, 2], [11, 4, 4, 30, 8, 61, 17, 90, 33, 2], [60, 2]]
FREE = {"ignore_eos": True}


def near(model, noise, seed=5):
    """The same with noise on its weights."""
    other, generator = copy.deepcopy(model), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter += noise * torch.randn(parameter.shape, generator=generator)
    return other


def theirs(model, source, length, **options):
    """What ``generate`` writes greedily, without the start token."""
    options = {"do_sample": False, "eos_token_id": None, **options}
    out = model.generate(torch.tensor([source]), max_new_tokens=length, **options)
    return out[0, 1:].tolist()


def ours(hierarchy, length, **options):
    results = hierarchy.generate_batch(SOURCES, max_new_tokens=length, **FREE, **options)
    return [list(result.token_ids) for result in results]


@pytest.fixture(scope="module")
def model():
    return tiny_model("flan_t5", seed=1, dtype=torch.float32)


def test_a_call_runs_through_the_decoder_alone(model, tmp_path):
    model.save_pretrained(tmp_path)
    parts = model.encoder.parameters(), model.shared.parameters()
    encoder, shared = (sum(one.numel() for one in part) for part in parts)
    whole = count_parameters(str(tmp_path))
    assert whole == sum(one.numel() for one in model.parameters())
    assert count_parameters(str(tmp_path), encoder=False) == whole - (encoder - shared)


@pytest.mark.parametrize("family", ENCODER_DECODERS)
def test_three_levels_write_greedily_what_generate_writes_in_ragged_batches(family):
    target = tiny_model(family, seed=1, dtype=torch.float32)
    expected = [theirs(target, source, 24) for source in SOURCES]
    assert len(set(map(tuple, expected))) == len(SOURCES), "the source matters"
    stack = Hierarchy(target, drafts=[near(target, 0.006), near(target, 0.003)])
    assert ours(stack, 24) == expected
    alone = [stack.generate(source, max_new_tokens=24, **FREE) for source in SOURCES]
    assert [list(one.token_ids) for one in alone] == expected
    kept = [[level["num_accepted_tokens"] for level in one.levels] for one in alone]
    assert min(map(sum, zip(*kept, strict=True))) > 0, "drafts of both levels were kept"


@pytest.mark.parametrize(
    "drafts",
    installed(
        [
            ["ngram"],
            ["suffix"],
            ["exit:1"],
            ["exit:1", "exit:2"],
            [{"method": "ngram_pool", "num_speculative_tokens": 4}],
            [{"method": "adaptive_exit", "exit_layers": [1, 2], "num_speculative_tokens": 3}],
        ]
    ),
)
def test_drafts_without_a_model_of_their_own(model, drafts):
    assert ours(Hierarchy(model, drafts=drafts), 24) == [theirs(model, s, 24) for s in SOURCES]


def test_scores_are_the_models_own_beyond_the_longest_distance_it_tells_apart():
    target = tiny_model("umt5", seed=3)  # float64
    text = [0, *(torch.arange(1300) * 37 % 96).tolist()]
    with torch.no_grad():
        expected = target(
            input_ids=torch.tensor([SOURCES[1]]), decoder_input_ids=torch.tensor([text])
        ).logits[0]
    trunk = EncoderDecoderTrunk(T5Backend(target), [1])
    view, slot = trunk.view(), trunk.open()
    found = view.score([Query(slot, Context(text, source=tuple(SOURCES[1])), 1)])
    assert (found - expected).abs().max() < 1e-9
    # Rewound, and read on: nothing of what was taken back is left.
    other = Context([*text[:700], 5, 6, 7], source=tuple(SOURCES[1]))
    with torch.no_grad():
        expected = target(
            input_ids=torch.tensor([SOURCES[1]]),
            decoder_input_ids=torch.tensor([other.tokens()]),
        ).logits[0, -3:]
    slot.forget_committed()
    assert (view.score([Query(slot, other, 701)]) - expected).abs().max() < 1e-9


@pytest.mark.parametrize("family", ["t5", "umt5"])  # biases of one block for all, and of each
def test_a_tree_scores_as_its_paths_do(family):
    trunk = EncoderDecoderTrunk(T5Backend(tiny_model(family, seed=4)), [1])
    trunk.chunk = 16
    view, slot = trunk.view(), trunk.open()
    text, number = [0, *range(3, 60)], itertools.count(60)
    tree, _ = Tree.merge([[5, 6, 7], [5, 8, 9, 10], [11]])
    for source in (SOURCES[1], SOURCES[0], SOURCES[0]):  # the second finds the first one's tree
        source = tuple(source)
        found = view.score([Query(slot, Context(text, source=source), 50, tree=tree)])
        contexts = [Context(text[:n], source=source) for n in range(50, len(text) + 1)]
        contexts += [Context(text, path, source) for path in tree.paths()]
        wanted = [view.score([Query(trunk.open(), one, len(one))]) for one in contexts]
        assert (found - torch.cat(wanted)).abs().max() < 1e-9
        if source == tuple(SOURCES[0]):
            done = Work(trunk)
            text = [*text, 5, 8, next(number)]  # a path is accepted: its keys are moved, and kept
            found = view.score([Query(slot, Context(text, source=source), len(text))])
            assert done.tokens[0] == 1
            context = Context(text, source=source)
            alone = view.score([Query(trunk.open(), context, len(text))])
            assert (found - alone).abs().max() < 1e-9


LEVELS = {
    "tokenwise": ([{"num_speculative_tokens": 2}], {"verify": "tokenwise"}),
    "block, three": (
        [{"num_speculative_tokens": 1}, {"num_speculative_tokens": 2, "verify": "block"}],
        {"verify": "block"},
    ),
    "several drafts": ([{"num_speculative_tokens": 2, "num_drafts": 2}], {"verify": "rrs"}),
}


@pytest.mark.parametrize("name", LEVELS)
def test_the_law_of_every_text_is_that_of_the_librarys_own_model(name):
    """All of the engine's randomness enumerated, beside a longer source in the same calls."""
    target = tiny_model("t5", seed=4, layers=1, vocab_size=3, eos_token_id=2)
    levels, top = LEVELS[name]
    drafts = [near(target, 0.3, seed) for seed in (8, 9)]
    levels = [
        {"method": "draft_model", "model": draft, **level}
        for draft, level in zip(drafts, levels, strict=False)
    ]
    stack = Hierarchy.from_config({"target": {"model": target}, "levels": levels, **top})
    source, length = [2, 1, 1, 0], 2 if name == "several drafts" else 3

    def start():
        both = [source, [1, 2, 2, 1, 0, 1, 2]]
        return stack.start(both, max_new_tokens=length, temperature=1.0, seed=0, **FREE)

    found = generation_law(start)
    worst = 0.0
    for text in itertools.product(range(3), repeat=length):
        with torch.no_grad():
            logits = target(
                input_ids=torch.tensor([source]),
                decoder_input_ids=torch.tensor([[0, *text[:-1]]]),
            ).logits[0]
        chance = logits.softmax(-1)[range(length), list(text)].prod().item()
        worst = max(worst, abs(chance - found.get(text, 0.0)))
    assert worst < 1e-9
    assert len(found) == 3**length


def test_the_encoder_reads_a_source_once(model):
    level = {"method": "draft_model", "model": near(model, 0.02), "num_drafts": 3}
    stack = Hierarchy.from_config(
        {
            "target": {"model": model},
            "levels": [{**level, "num_speculative_tokens": 2}],
            "verify": "rrs",
        }
    )
    target = stack.root.model.trunk
    draft = stack.root.below.model.trunk
    before = target.encoder_calls, draft.encoder_calls
    stack.generate_batch(SOURCES, max_new_tokens=20, temperature=1.0, seed=1)
    assert (target.encoder_calls, draft.encoder_calls) == (before[0] + 1, before[1] + 1)
    stack.generate_batch(SOURCES[:1], num_return_sequences=4, temperature=1.0, max_new_tokens=8)
    assert target.encoder_calls == before[0] + 2


def test_a_session_cache_serves_its_own_source_alone(model):
    stack = Hierarchy(model, drafts=[near(model, 0.02)])
    with stack.session() as session:
        for source in (SOURCES[0], SOURCES[1], SOURCES[1], SOURCES[0]):
            calls = stack.root.model.trunk.encoder_calls
            warm = session.generate(source, max_new_tokens=12, **FREE)
            assert list(warm.token_ids) == theirs(model, source, 12)
    assert stack.root.model.trunk.encoder_calls == calls + 1, "the one before was another's"


def test_the_source_is_there_to_be_copied():
    context = Context([0, 50, 9], source=(5, 9, 7, 22, 2))
    assert PromptLookup(1, 2).propose(context, 3) == ()
    assert PromptLookup(1, 2).propose(context.with_source(), 3) == (7, 22, 2)
    assert Context([0], (4,), (7,)).with_tokens((8,)).source == (7,)


@pytest.mark.parametrize(
    "options",
    [
        {"repetition_penalty": 1.7},
        {"encoder_no_repeat_ngram_size": 1},
        {"encoder_repetition_penalty": 1.5},
        {"no_repeat_ngram_size": 2, "min_new_tokens": 5},
        {"max_length": 9},
    ],
)
def test_a_generation_config_means_what_it_means_to_generate(model, options):
    options = {"max_new_tokens": 16, "eos_token_id": 2, **options}
    if "max_length" in options:
        del options["max_new_tokens"]
    config = GenerationConfig(do_sample=False, decoder_start_token_id=0, pad_token_id=0, **options)
    stack = Hierarchy(model, drafts=[near(model, 0.02)])
    for source in SOURCES:
        expected = model.generate(torch.tensor([source]), generation_config=config)[0, 1:].tolist()
        assert list(stack.generate(source, generation_config=config).token_ids) == expected


def test_log_probabilities_streams_and_races(model):
    stack = Hierarchy(model, drafts=[near(model, 0.02)])
    result = stack.generate(SOURCES[0], max_new_tokens=6, logprobs=True, **FREE)
    with torch.no_grad():
        rows = model(
            input_ids=torch.tensor([SOURCES[0]]),
            decoder_input_ids=torch.tensor([[0, *result.token_ids[:-1]]]),
        ).logits[0]
    expected = rows.log_softmax(-1)[range(6), list(result.token_ids)]
    assert torch.tensor(result.logprobs) == pytest.approx(expected, abs=1e-5)
    assert result.num_prompt_tokens == len(SOURCES[0])
    events = list(stack.stream(SOURCES[0], max_new_tokens=6, **FREE))
    assert tuple(event.token_id for event in events) == result.token_ids
    sampled = {"temperature": 1.0, "seed": 7}
    plain = ours(
        Hierarchy.from_config({"target": {"model": model}, "verify": "match"}), 20, **sampled
    )
    for drafts in ("suffix", near(model, 0.02)):
        config = Hierarchy(model, drafts=[drafts]).config
        levels = {"target": {"model": model}, "levels": config.levels, "verify": "match"}
        assert ours(Hierarchy.from_config(levels), 20, **sampled) == plain


def test_torchs_default_device_changes_nothing(model):
    expected = ours(Hierarchy(model, drafts=[]), 6)
    with torch.device("meta"):
        assert ours(Hierarchy(model, drafts=[model]), 6) == expected


def test_a_model_in_training_mode_is_run_as_if_it_were_not_and_left_so():
    training = tiny_model("t5", seed=1, dtype=torch.float32, dropout_rate=0.3)
    expected = [theirs(training, source, 12) for source in SOURCES]
    assert ours(Hierarchy(training.train(), drafts=["exit:1"]), 12) == expected
    assert all(module.training for module in training.modules())


def test_a_saved_checkpoint_from_the_command_line(tmp_path, capsys):
    target = tiny_model("t5", seed=1, dtype=torch.float32)
    target.save_pretrained(tmp_path / "target")
    near(target, 0.02).save_pretrained(tmp_path / "draft")
    assert isinstance(load(tmp_path / "target"), T5Backend)
    argv = ["generate", "5 9 7 22 2", "--ids", "--json", "--ignore-eos", "--max-new-tokens", "12"]
    argv += ["--target", str(tmp_path / "target"), "--draft", str(tmp_path / "draft")]
    assert run([*argv, "--hierarchy", "speculative"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["token_ids"] == theirs(target, SOURCES[0], 12)
    assert printed["num_prompt_tokens"] == 5


def test_what_cannot_take_them_says_so_by_name(model):
    def refused(words, call):
        with pytest.raises(HierspecError, match=words) as caught:
            call()
        assert "\n" not in str(caught.value)

    skipping = {"method": "layer_skip", "skip_layers": [1], "num_speculative_tokens": 2}
    for level in installed([skipping]):
        refused("layer_skip does not take", lambda level=level: Hierarchy(model, drafts=[level]))
    refused("quantized", lambda: Hierarchy(model, drafts=["quantized"]))
    decoder = tiny_model("llama", seed=1, dtype=torch.float32)
    refused("decoder-only", lambda: Hierarchy(decoder, drafts=[model]))
    plain = Hierarchy(model, drafts=[])
    refused("the service does not take", lambda: ServingRunner(plain.root))
    other_start = GenerationConfig(decoder_start_token_id=30)
    refused(
        "decoder_start_token_id, not 30: leave it unset",
        lambda: plain.generate(SOURCES[0], generation_config=other_start),
    )
    nameless = tiny_model("t5", seed=1, decoder_start_token_id=None)
    nameless.generation_config.decoder_start_token_id = None
    refused("decoder_start_token_id", lambda: wrap(nameless, "nameless"))
    bart = tiny_model("bart", seed=1, dtype=torch.float32)
    refused("encoder-decoder model of an unsupported kind", lambda: Hierarchy(bart))


def test_a_checkpoint_with_a_layer_more_is_named(tmp_path):
    tiny_model("t5", seed=1).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"num_decoder_layers": 1}))
    with pytest.raises(HierspecError, match=r"holds decoder\.block\.1"):
        load(tmp_path)
