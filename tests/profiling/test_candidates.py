"""Candidates: what names and options mean, which are refused, and what is loaded for them."""

from __future__ import annotations

import pytest
from profiling_cases import V
from tiny_models import tiny_model

from hierspec import TargetConfig
from hierspec.config.checkpoints import Loaded
from hierspec.core.windows import ConfidenceWindow, EntropyWindow
from hierspec.drafters.prompt_lookup import PromptLookup
from hierspec.lm.native.backend import NativeBackend
from hierspec.profiling.candidates import Candidate, PoolMember, load, parse


@pytest.mark.parametrize(
    ("text", "method", "fields"),
    [
        ("zoo:tiny-draft", "draft_model", {"model": "zoo:tiny-draft", "temperature": None}),
        (" a/b ", "draft_model", {"model": "a/b"}),
        ("m,temperature=.8,dtype=float16", "draft_model", {"temperature": 0.8, "dtype": "float16"}),
        ("m,window=entropy", "draft_model", {"window": EntropyWindow()}),
        ("m,window=confidence,backend=hf", "draft_model", {"window": ConfidenceWindow()}),
        ("exit:4", "early_exit", {"exit_layer": 4}),
        ("exit:4,num_drafts=3", "early_exit", {"num_drafts": 3}),
        ("exit:4,temperature=2", "early_exit", {"exit_layer": 4, "temperature": 2.0}),
        ("ngram", "ngram_table", {"table": "zoo:ngram"}),
        ("ngram:a.safetensors", "ngram_table", {"table": "a.safetensors"}),
        ("prompt-lookup", "prompt_lookup", {"prompt_lookup_max": 4}),
        ("suffix", "suffix", {"store": 0}),
        ("quantized", "quantized", {"bits": 8}),
        ("quantized:4", "quantized", {"bits": 4}),
        ("quantized,temperature=0.8", "quantized", {"temperature": 0.8}),
        ("eagle3:folder", "eagle3", {"model": "folder"}),
        ("zoo:smollm2-eagle3", "eagle3", {"model": "zoo:smollm2-eagle3"}),
        ("exit:5,head=a/b", "early_exit", {"exit_layer": 5, "head": "a/b"}),
        ('{"method": "prompt_lookup", "prompt_lookup_max": 7}', "prompt_lookup",
         {"prompt_lookup_max": 7}),
        ('{"method": "draft_model", "model": "m", "window": {"kind": "entropy", "threshold": 2}}',
         "draft_model", {"window": EntropyWindow(threshold=2)}),
    ],
)  # fmt: skip
def test_candidates(text, method, fields):
    candidate = parse(text)
    assert candidate.name == text.strip()
    assert candidate.level.method == method
    for key, value in fields.items():
        assert getattr(candidate.level, key) == value
    scoring = method in ("draft_model", "early_exit", "quantized") and "num_drafts" not in fields
    assert candidate.can_verify == (scoring and not candidate.level.window.signal)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "a candidate is empty"),
        (",temperature=1", "a candidate is empty"),
        ("exit:", "exit:LAYER"),
        ("exit:two", "exit:LAYER"),
        ("exit:-1", "exit:LAYER"),
        ("exit:0", "write exit:LAYER"),
        ("m,temperature=hot", "must be a number, not 'hot'"),
        ("m,temperature=nan", "must be a number"),
        ("m,temperature=-1", "must be 0 (greedy)"),
        ("m,temperature=inf", "must be 0 (greedy)"),
        ("m,temperature", "'temperature' is not an option; there are: temperature=..."),
        ("m,budget=3", "'budget=3' is not an option"),
        ("m,dtype=float32,dtype=float16", "dtype is given twice"),
        ("m,window=wide", "there are: fixed, entropy, confidence"),
        ("exit:1,dtype=float32", "unknown key 'dtype'"),
        ("prompt-lookup,window=entropy", "has no scores for a window to read"),
        ("{", "not valid JSON"),
        ('{"method": "magic"}', "method is 'magic'"),
        ('{"method": "draft_model"}', "'model' is missing"),
        ('{"method": "draft_model", "model": "m", "num_speculative_tokens": 3}', "leave num_specu"),
        ('{"method": "draft_model", "model": "m", "bonus": false}', "leave bonus out"),
        ('{"method": "draft_model", "model": "m", "verify": "block"}', "leave verify out"),
        ('{"method": "concatenate", "parts": []}', "a concatenation cannot be one"),
        ("exit:2,num_drafts=many", "num_drafts"),
        ("prompt-lookup,num_drafts=2", "makes only one draft"),
    ],
)
def test_bad_candidates(text, words):
    with pytest.raises(ValueError) as error:  # noqa: PT011 the words are checked below
        parse(text)
    assert words in str(error.value)
    assert "\n" not in str(error.value)
    assert "levels[0]" not in str(error.value)


def test_twice_the_same_candidate_is_refused(family):
    with pytest.raises(ValueError, match="'exit:1' is given twice"):
        load(TargetConfig(model=family["target"]), [parse("exit:1"), parse("exit:1")])


def test_weights_of_another_data_type_count_apart(family):
    target, draft = family["target"], family["draft"]
    texts = [f"{target},dtype=float32", draft, f"{draft},temperature=1", f"{draft},backend=hf"]
    pool = load(TargetConfig(model=target), [parse(text) for text in (*texts, "exit:1")])
    owners = [f"{target} (float32)", draft, draft, f"{draft} (auto, hf)", target, target]
    assert [member.owner for member in pool.members] == owners
    assert [member.files for member in pool.members] == [target, *[draft] * 3, *[target] * 2]
    trunk = sum(p.numel() for p in tiny_model("llama", layers=3, vocab_size=V).parameters())
    sizes = [4, 8, 8, 8, 8, 8]
    expected = {o: n * trunk for o, n in zip(owners, sizes, strict=True)}
    found, own = pool.memory, pool.members[0].model.cache_owner.backend
    if isinstance(own, NativeBackend):  # in the kernels' layout, but for its norms
        expected[owners[0]] = own.num_bytes
        assert 0.95 * 4 * trunk < own.num_bytes <= 4.2 * trunk
    assert found == expected


def test_names_of_entrants():
    member = PoolMember("a", PromptLookup(2, 4), "prompt_lookup", parse("prompt-lookup"))
    assert isinstance(member.candidate, Candidate)
    assert not member.scores
    assert not member.candidate.can_verify
    for name in ("entropy", "confidence"):
        window = PoolMember("m", None, "m", parse(f"m,window={name}")).window
        assert window.signal == name
        assert not any(window.stops((value,), window.init()) for value in (0.0, 1.0, 1e9))


def test_what_ends_the_texts_of_a_model_in_memory_is_not_looked_up(tiny_family, monkeypatch):
    """Its name is any name: nothing of that name is read, from a folder or a hub."""
    target, loaded = TargetConfig(model="of-mine"), Loaded()
    model = Loaded().backend(TargetConfig(model=tiny_family["target"]))
    loaded.add(target, model, None)
    monkeypatch.setattr("hierspec.config.checkpoints.model_eos_ids", None)
    assert load(target, [parse("prompt-lookup")], loaded).eos_ids == frozenset()
