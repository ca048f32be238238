"""Loaded models in the compiled kernels: which, one copy of each, and what happens to it."""

import copy
import gc
import logging
import re
import threading
import weakref

import pytest
import torch
from installed import installed
from tiny_models import tiny_model

import hierspec
from hierspec import Hierarchy, HierspecError, TargetConfig
from hierspec.lm.hf.decoder import HFBackend
from hierspec.lm.loaded import take
from hierspec.lm.native import library
from hierspec.lm.native.backend import NativeBackend

pytestmark = pytest.mark.skipif(library.load() is None, reason="no C compiler here")

IDS = [5, 9, 7, 22]
PLAIN = {"max_new_tokens": 16, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}


def tiny(family="llama", dtype=torch.float32, **changes):
    return tiny_model(family, seed=1, dtype=dtype, **changes)


def generated(model, **options):
    ids = torch.tensor([IDS])
    return model.generate(ids, **PLAIN, **options)[0, len(IDS) :].tolist()


def ours(model, **options):
    return generated(model, custom_generate=hierspec.custom_generate, **options)


def text(hierarchy):
    return list(hierarchy.generate(IDS, max_new_tokens=16, ignore_eos=True).token_ids)


def backend_of(hierarchy):
    return hierarchy.root.model.cache_owner.backend


@pytest.mark.parametrize("family", ["llama", "qwen3", "mistral", "qwen2"])
def test_every_way_in_shares_one_copy(family):
    model, small = tiny(family), tiny(family, layers=1)
    expected = generated(model)
    assert ours(model) == ours(model, drafts=[small, "ngram"]) == expected
    stacks = (None, [], ["exit:1", "quantized"], [small])
    stacks = (*stacks, *installed([[{"method": "layer_skip", "skip": 0.5}]]))
    backend = take(model).backend
    assert isinstance(backend, NativeBackend)
    for drafts in stacks:
        hierarchy = Hierarchy(model, drafts=drafts)
        assert backend_of(hierarchy) is backend
        assert text(hierarchy) == expected
    own = Hierarchy(TargetConfig(model=model, backend="hf"), drafts=["suffix"])
    assert isinstance(backend_of(own), HFBackend)
    assert text(own) == expected


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_model_keeps_its_dtype(dtype):
    backend = take(tiny(dtype=dtype)).backend
    assert backend is not None
    assert backend.weight_dtype == dtype


def untied(model):
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach() * -1)


def with_lora(model):
    from peft import LoraConfig, get_peft_model

    get_peft_model(model, LoraConfig(r=4, target_modules=["q_proj"], init_lora_weights=False))
    model.eval()


def merge_lora(model):
    """As peft does: through ``.data``, which leaves the version as it is."""
    model.model.layers[1].self_attn.q_proj.weight.data += 0.5


def in_place(model):
    with torch.no_grad():
        model.model.layers[0].mlp.up_proj.weight.mul_(-1)


def one_token(model):
    """As a new token's embedding is often set."""
    model.get_input_embeddings().weight.data[IDS[1]] *= -3


def scaled(model):
    model.model.layers[0].self_attn.scaling *= 3


def less_precise(model):
    model.model.layers[0].input_layernorm.variance_epsilon = 2.0


def other_activation(model):
    model.model.layers[0].mlp.act_fn = torch.nn.GELU()


def hooked(model):
    model.model.layers[1].register_forward_hook(lambda module, args, out: out * 0.5)


def patched(model):
    forward = model.model.norm.forward
    model.model.norm.forward = lambda h: -forward(h)


def own_module(model):
    class Negated(type(model.model.norm)):
        def forward(self, h):
            return -super().forward(h)

    model.model.norm.__class__ = Negated


def fewer_layers(model):
    model.model.layers = model.model.layers[:2]


def configured_otherwise(model):
    model.config.rope_parameters = {"rope_type": "default", "rope_theta": 100.0}


@pytest.mark.parametrize("change", [untied, merge_lora, in_place, one_token])
def test_weights_that_changed_are_taken_anew_or_refused(change):
    model = tiny(tie_word_embeddings=True)
    before, hierarchy = ours(model), Hierarchy(model)
    change(model)
    with pytest.raises(HierspecError, match="has changed since its weights were taken"):
        text(hierarchy)
    assert ours(model) == text(Hierarchy(model)) == generated(model) != before
    assert take(model).backend is not None


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (hooked, "it has a hook in model.layers.1"),
        (patched, "it has a hook in model.norm"),
        (own_module, r"it has a module of its own, model.norm \(Negated\)"),
        (with_lora, "it has a module of its own, .*q_proj"),
        (configured_otherwise, "it rotates otherwise than its configuration says"),
        (fewer_layers, "it is not what its configuration says: .*layers.2"),
        (scaled, "it is not what its configuration says: .*scores differ"),
        (less_precise, "it is not what its configuration says: .*scores differ"),
        (other_activation, "it is not what its configuration says: .*scores differ"),
        (lambda model: model.double(), "its weights are in float64"),
        (lambda model: model.train(), "it is in training mode"),
    ],
)
def test_what_the_kernels_would_not_compute_runs_on_its_own_layers(change, reason, caplog):
    """Whether it was so from the first, or was taken before it changed."""
    model = tiny()
    hierarchy = Hierarchy(model) if change in (hooked, fewer_layers, scaled) else None
    change(model)
    expected = generated(model)
    if hierarchy is not None:
        with pytest.raises(HierspecError, match="has changed since"):
            text(hierarchy)
    with caplog.at_level(logging.WARNING, "hierspec"):
        assert ours(model) == ours(model) == expected
    said = [r.getMessage() for r in caplog.records if "transformers' own loop" in r.getMessage()]
    assert len(said) == 1, "said once"
    taken = take(model)
    assert taken.backend is None
    assert taken.reason in said[0]
    assert re.search(reason, taken.reason)
    if change is not fewer_layers:  # which our loop over the layers refuses, too
        plain = Hierarchy(model)
        assert not plain.config.levels
        assert text(plain) == ours(model, drafts=["ngram"]) == expected


def test_transformers_own_loop_takes_what_ours_takes():
    from fakes.engines import RecordingStreamer

    model, streamer = tiny("gemma2"), RecordingStreamer()
    ids = torch.tensor([IDS])
    options = {**PLAIN, "do_sample": True, "custom_generate": hierspec.custom_generate}
    first = model.generate(ids, seed=3, token_streamer=streamer, **options)
    assert torch.equal(first, model.generate(ids, seed=3, **options))
    assert not torch.equal(first, model.generate(ids, seed=4, **options))
    assert streamer.ids == first[0].tolist()


@pytest.mark.parametrize("tied", [True, False])
def test_a_model_without_weights_says_so(tied):
    model = tiny(tie_word_embeddings=tied)
    expected = generated(model)
    hierarchy = Hierarchy(model, free_model=True)
    assert sum(parameter.numel() for parameter in model.parameters()) == 0
    assert text(hierarchy) == text(Hierarchy(model, drafts=["quantized"])) == expected
    for use in (generated, ours, lambda model: model(torch.tensor([IDS])), copy_of_weights):
        with pytest.raises(HierspecError, match="were freed"):
            use(model)
    with pytest.raises(HierspecError, match="free_model is for a loaded model"):
        Hierarchy("zoo:tiny", free_model=True)


def test_drafts_keep_their_weights_where_the_target_lets_its_own_go():
    model, draft = tiny(), tiny()
    expected = generated(draft)
    Hierarchy(model, drafts=[draft], free_model=True)
    assert generated(draft) == expected
    with pytest.raises(HierspecError, match="free_model is for a loaded model"):
        Hierarchy({"target": {"model": "zoo:tiny", "free_model": True}})


def copy_of_weights(model):
    return model.state_dict()


def test_weights_that_were_copied_can_still_be_let_go():
    model = tiny()
    first = Hierarchy(model)
    second = Hierarchy(TargetConfig(model=model, free_model=True))
    assert sum(parameter.numel() for parameter in model.parameters()) == 0
    assert backend_of(first) is backend_of(second)
    assert text(first) == text(second)


def test_a_copy_is_freed_with_its_model():
    model = tiny()
    ours(model)
    gone = [weakref.ref(model), weakref.ref(take(model).backend)]
    del model
    gc.collect()
    assert [ref() for ref in gone] == [None, None]


def test_a_copy_of_a_model_is_another_model():
    model = tiny()
    assert take(model).backend is not take(copy.deepcopy(model)).backend


def test_threads_share_one_copy():
    model, found = tiny(), []
    threads = [threading.Thread(target=lambda: found.append(Hierarchy(model))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(backend_of(hierarchy)) for hierarchy in found}) == 1


def test_a_compiled_model_is_the_model_that_was_compiled():
    model = tiny()
    compiled = torch.compile(model)
    assert backend_of(Hierarchy(compiled)) is take(model).backend
    assert ours(compiled) == generated(model)


def test_memory_that_there_is_not_is_not_taken(monkeypatch):
    monkeypatch.setattr("hierspec.utils.machine.available_memory", lambda: 1000)
    assert "MiB more" in take(tiny()).reason
