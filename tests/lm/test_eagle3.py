"""EAGLE-3: the published layout, the scores of a plain implementation, nothing done twice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from eagle3_cases import LAYERS, reference, save_drafter
from safetensors.torch import load_file, save_file
from tiny_models import save_tiny
from transformers import AutoModelForCausalLM
from work import Work

from hierspec.core.context import Context
from hierspec.errors import HierspecError
from hierspec.lm.base import Query
from hierspec.lm.eagle3 import checkpoint
from hierspec.lm.eagle3.config import default_layers, read_config, validate_fits
from hierspec.lm.eagle3.model import Eagle3Model
from hierspec.lm.load import load
from hierspec.lm.trunk.trunk import Trunk

TEXT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny("llama", tmp_path_factory.mktemp("target") / "llama", layers=4)


@pytest.fixture(scope="module")
def plain(target: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(target).eval()


@pytest.fixture(scope="module")
def drafter(target: Path, plain: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_drafter(tmp_path_factory.mktemp("drafter") / "eagle3", plain.config)


def opened(target: Path, drafter: Path, backend: str = "auto") -> Eagle3Model:
    network = checkpoint.read_network(drafter)
    trunk = Trunk(load(target, backend=backend), LAYERS)
    return Eagle3Model(trunk, network, LAYERS, "eagle3")


def asked(model: Eagle3Model, slot: Any, committed: list[int], pending: tuple[int, ...] = ()):
    context = Context(committed, pending)
    return model.score([Query(slot, context, len(context))])[0]


@pytest.mark.parametrize("backend", ["auto", "lean", "hf"])
def test_scores_are_those_of_a_plain_implementation(target, drafter, plain, backend):
    model, slots = opened(target, drafter, backend), {}
    for length, pending in ((1, ()), (1, (4, 2)), (2, ()), (6, ()), (6, (1, 2, 3)), (13, (7,))):
        slots[length] = slots.get(length) or model.open()
        found = asked(model, slots[length], TEXT[:length], pending)
        wanted = reference(plain, drafter, TEXT[:length], pending).to(found)
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("backend", ["auto", "lean"])
def test_attention_may_have_biases(target, plain, backend, tmp_path):
    folder = save_drafter(tmp_path, plain.config, attention_bias=True)
    model = opened(target, folder, backend)
    found = asked(model, model.open(), TEXT[:6], (1, 2))
    wanted = reference(plain, folder, TEXT[:6], (1, 2)).to(found)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


def test_the_law_depends_on_nothing_that_was_computed_before(target, drafter, plain):
    model = opened(target, drafter)
    slot = model.open()
    top = model.trunk.view()
    history = [
        (4, (8, 8)),
        (4, (8, 1, 1)),
        (4, ()),
        (7, (2,)),
        (5, (2, 2)),  # the sequence is wound back, as profiling does
        (12, ()),
        (12, (9, 9, 9)),
    ]
    for length, pending in history:
        # The target checks something that is partly thrown away later.
        if len(slot.tokens) > length:
            model.trunk.rewind(slot, length)
        top.score([Query(slot, Context(TEXT[:length], (11, 12)), length)])
        found = asked(model, slot, TEXT[:length], pending)
        wanted = reference(plain, drafter, TEXT[:length], pending).to(found)
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


def test_rows_inside_the_text_are_those_of_shorter_texts(target, drafter, plain):
    model = opened(target, drafter)
    slot = model.open()
    asked(model, slot, TEXT[:9], (1, 2))
    found = model.score([Query(slot, Context(TEXT[:9], (1, 2)), 1)])
    assert len(found) == 11
    for row in range(11):
        pending = (1, 2)[: max(0, row - 8)]
        wanted = reference(plain, drafter, TEXT[: min(9, row + 1)], pending).to(found)
        torch.testing.assert_close(found[row], wanted, rtol=1e-5, atol=1e-5)


def test_ragged_batches_and_steps_equal_single_questions(target, drafter, plain):
    model = opened(target, drafter)
    contexts = [Context(TEXT[:n], pending) for n, pending in ((3, ()), (11, (5,)), (7, ()))]
    queries = [Query(model.open(), context, len(context)) for context in contexts]
    scores, after = model.score_stepwise(queries, [3, 3, 1])
    tokens: list[list[int]] = [[], [], []]
    for going, last in (([0, 1], (4, 6)), ([1], (2,))):
        for i, token in zip(going, last, strict=True):
            tokens[i].append(token)
        more = after(going, last)
        for i, row in zip(going, more, strict=True):
            context = contexts[i].with_tokens(tokens[i])
            wanted = reference(plain, drafter, list(context.committed), context.pending).to(row)
            torch.testing.assert_close(row, wanted, rtol=1e-5, atol=1e-5)
    for context, row in zip(contexts, scores, strict=True):
        wanted = reference(plain, drafter, list(context.committed), context.pending).to(row)
        torch.testing.assert_close(row, wanted, rtol=1e-5, atol=1e-5)


def test_nothing_is_computed_twice(target, drafter):
    """Rounds as the engine makes them: every target layer runs once for a token."""
    model = opened(target, drafter)
    top, slot = model.trunk.view(), model.open()
    done, committed = Work(model.trunk), TEXT[:5]
    rows, layers = [], model.layer.model.layers
    model.layer.model.layers = lambda *given: rows.append(len(given[0])) or layers(*given)
    for accepted in (2, 0, 3, 1):
        draft = tuple(TEXT[len(committed) : len(committed) + 3])
        for n in range(3):
            asked(model, slot, committed, draft[:n])
        top.score([Query(slot, Context(committed, draft), len(committed))])
        committed = [*committed, *draft[:accepted], 20 + accepted]
    # Four tokens before the first draft; then in each check the latest token and three drafts.
    assert done.tokens == [4 + 4 * 4] * 4
    # The network reads the prompt and what is committed once, and takes two steps a draft.
    assert sum(rows) == 4 + 3 + 1 + 4 + 4 * 2


def test_the_caches_grow(target, drafter, plain):
    model = opened(target, drafter)
    slot = model.open()
    long = (TEXT * 20)[:300]
    for committed, pending in ((long[:250], tuple(long[250:262])), (long, ())):
        found = asked(model, slot, committed, pending)
        wanted = reference(plain, drafter, committed, pending).to(found)
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


def test_other_spellings_of_a_checkpoint_are_read(target, plain, drafter, tmp_path):
    folder = save_drafter(tmp_path / "other", plain.config)
    tensors = load_file(folder / "model.safetensors")
    tensors = {name.replace("midlayer.", "layers.0."): tensor for name, tensor in tensors.items()}
    del tensors["t2d"]
    tensors["embed_tokens.weight"] = plain.get_input_embeddings().weight.detach().clone()
    save_file(tensors, folder / "model.safetensors")
    raw = json.loads((folder / "config.json").read_text())
    ids = raw.pop("eagle_aux_hidden_state_layer_ids")
    raw["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": [i - 1 for i in ids]}
    (folder / "config.json").write_text(json.dumps(raw))
    found, wanted = checkpoint.read_network(folder), checkpoint.read_network(drafter)
    assert found.config.feature_layers == LAYERS
    assert found.tensors.keys() == wanted.tensors.keys()
    assert all(torch.equal(found.tensors[name], wanted.tensors[name]) for name in found.tensors)


LAYER_IDS = "eagle_aux_hidden_state_layer_ids"
LINEAR = {"factor": 2.0}


@pytest.mark.parametrize(
    ("changes", "read"),
    [
        ({"head_dim": None}, {"head_dim": 32 // 4}),
        ({"num_key_value_heads": None}, {"num_key_value_heads": 4}),
        ({"draft_vocab_size": None}, {"draft_vocab_size": 96}),
        ({"target_hidden_size": None}, {"target_hidden_size": 32}),
        ({"rms_norm_eps": None, "attention_bias": None}, {"rms_norm_eps": 1e-6}),
        ({"rope_scaling": None}, {"rope": {"rope_type": "default", "rope_theta": 1e4}}),
        (
            {"rope_theta": 5e5, "rope_scaling": {"type": "linear", **LINEAR}},
            {"rope": {"rope_type": "linear", "rope_theta": 5e5, **LINEAR}},
        ),
        (
            {"rope_theta": 5e5, "rope_scaling": {"rope_type": "linear", **LINEAR}},
            {"rope": {"rope_type": "linear", "rope_theta": 5e5, **LINEAR}},
        ),
        (
            {"rope_theta": None, "rope_parameters": {"rope_type": "default", "rope_theta": 5e5}},
            {"rope": {"rope_type": "default", "rope_theta": 5e5}},
        ),
        ({LAYER_IDS: None, "eagle_config": {LAYER_IDS: [0, 2, 3]}}, {"feature_layers": (1, 3, 4)}),
        ({LAYER_IDS: None, "eagle_config": {LAYER_IDS: None}}, {"feature_layers": None}),
        ({LAYER_IDS: None, "eagle_config": None}, {"feature_layers": None}),
    ],
)
def test_what_a_configuration_does_not_say_and_how_older_ones_say_it(
    plain, tmp_path, changes, read
):
    config = read_config(save_drafter(tmp_path, plain.config, **changes) / "config.json")
    assert {name: getattr(config, name) for name in read} == read
    assert config.llama.rope_parameters["rope_theta"] == config.rope["rope_theta"]


def test_default_layers():
    assert default_layers(32) == (2, 16, 29)
    assert default_layers(30) == (2, 15, 27)
    with pytest.raises(HierspecError, match="name three layers"):
        default_layers(4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"draft_vocab_size": None, "vocab_size": 9}, "."),
        ({"num_hidden_layers": 2}, "one layer"),
        ({"hidden_size": "wide"}, "does not describe"),
        ({"intermediate_size": 25}, "has shape"),
    ],
)
def test_wrong_checkpoints_get_one_line(plain, tmp_path, changes, message):
    folder = save_drafter(tmp_path / "wrong", plain.config, **changes)
    with pytest.raises(HierspecError, match=message) as error:
        checkpoint.read_network(folder)
    assert "\n" not in str(error.value)


def test_missing_parts_get_one_line(plain, tmp_path):
    with pytest.raises(HierspecError, match="no directory"):
        checkpoint.read_network(tmp_path / "nowhere")
    folder = save_drafter(tmp_path / "wrong", plain.config)
    tensors = load_file(folder / "model.safetensors")
    del tensors["norm.weight"]
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(HierspecError, match=r"lacks 'norm.weight'"):
        checkpoint.read_network(folder)
    raw = json.loads((folder / "config.json").read_text())
    del raw["draft_vocab_size"]
    (folder / "config.json").write_text(json.dumps(raw))
    with pytest.raises(HierspecError, match="not an EAGLE-3 drafter"):
        checkpoint.read_network(folder)


def test_another_target_gets_one_line(target, plain, drafter):
    backend = load(target)
    fine = checkpoint.read_network(drafter).config
    assert validate_fits("d", fine, "t", backend) == LAYERS
    layers = {"eagle_aux_hidden_state_layer_ids": (1, 2, 99)}
    for changes in ({"hidden_size": 8}, {"vocab_size": 7}, layers):
        with pytest.raises(HierspecError, match="trained for another model than t") as error:
            validate_fits("d", fine.model_copy(update=changes), "t", backend)
        assert "\n" not in str(error.value)
