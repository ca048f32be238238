"""Every way of scaling positions, on every path, against transformers.

Above all where a text passes the length beyond which they are encoded otherwise.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from installed import installed, needs_lab
from loading import hierarchy_of
from tiny_models import save_tiny
from transformers import AutoModelForCausalLM

from hierspec import HierspecError
from hierspec.core.context import Context
from hierspec.lm.base import Query
from hierspec.lm.hf.decoder import _position_switch
from hierspec.lm.load import load
from hierspec.lm.trunk.trunk import Trunk

LENGTH, NEW = 16, 16  # of the texts that short factors are for; tokens that are written
SHARED = [5, 9, 7, 22, 31, 8, 60, 12, 33, 41, 18, 4]
PROMPTS = [
    SHARED[:5],
    [*SHARED, 9, 3, 70],
    [*SHARED, 50, 51, 52, 53],
    [*SHARED, 80, 81, 82, 83, 84],
    [*SHARED, *range(60, 74)],
]
KEY = "original_max_position_embeddings"
ORIGINAL = {KEY: LENGTH}
FACTORS = {"short_factor": [1.0, 1.1, 1.3, 1.5], "long_factor": [1.0, 2.0, 4.0, 6.0]}
LONGROPE = {"rope_type": "longrope", **FACTORS, **ORIGINAL}
YARN = {"rope_type": "yarn", "factor": 4.0, **ORIGINAL}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
ROPES = {
    "default": ("llama", {"rope_type": "default"}),
    "linear": ("qwen2", {"rope_type": "linear", "factor": 4.0}),
    "dynamic": ("llama", {"rope_type": "dynamic", "factor": 4.0}),
    "yarn": ("llama", YARN),
    "yarn with a factor": ("mistral", {**YARN, "attention_factor": 0.7, "truncate": False}),
    "llama3": ("llama", {**LLAMA3, **ORIGINAL}),
    "proportional": ("llama", {"rope_type": "proportional", "partial_rotary_factor": 0.5}),
    "longrope": ("llama", LONGROPE),
    "longrope, computed anew": ("phi3", LONGROPE),
}
ON_LEAN = ("default", "linear", "yarn", "yarn with a factor", "llama3")
CASES = [*((name, "auto") for name in ON_LEAN), *((name, "hf") for name in ROPES)]
SKIP = {"method": "layer_skip", "skip_layers": [1], "num_speculative_tokens": 4}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folders = {}

    def save(name):
        if name not in folders:
            family, rope = ROPES[name]
            changes = ORIGINAL if family == "phi3" else {}
            rope = {"rope_theta": 1e4, **rope}
            folder = tmp_path_factory.mktemp("rope") / "m"
            save_tiny(
                family, folder, 5, rope_parameters=rope, max_position_embeddings=64, **changes
            )
            folders[name] = str(folder)
        return folders[name]

    return save


def levels_below(path):
    """Drafts of several kinds, which share the target's cache or have their own."""
    lookup = {"method": "prompt_lookup", "num_speculative_tokens": 2}
    itself = {"method": "draft_model", "model": path, "dtype": "float64"}
    found = {
        "none": [],
        "skipping": [SKIP],
        "exit": [{"method": "early_exit", "exit_layer": 1, "num_speculative_tokens": 3}],
        "several": [{**SKIP, "num_drafts": 2}],
        "itself": [lookup, {**itself, "num_speculative_tokens": 5, "verify": "block"}],
        "ahead": [{**itself, "num_speculative_tokens": 3, "ahead": True}],
    }
    return installed(found)


def built(path, levels, backend="auto"):
    several = any(level.get("num_drafts") for level in levels)
    target = {"model": path, "dtype": "float64", "backend": backend}
    verify = "block-rrs" if several else "block"
    return hierarchy_of({"target": target, "levels": levels, "verify": verify})


def theirs(path, prompt):
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float64)
    ids = torch.tensor([prompt])
    out = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=NEW,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )
    return tuple(out[0, len(prompt) :].tolist())


@pytest.mark.parametrize(("name", "backend"), CASES)
def test_greedy_texts_are_those_of_transformers_whatever_drafts(saved, name, backend):
    path = saved(name)
    expected = [theirs(path, prompt) for prompt in PROMPTS]
    assert len({text[-4:] for text in expected}) > 2, "texts that differ"
    for kind, levels in levels_below(path).items():
        hierarchy = built(path, levels, backend)
        if "longrope" in name:
            batch = hierarchy.generate_batch(PROMPTS, max_new_tokens=NEW, ignore_eos=True)
            assert [result.token_ids for result in batch] == expected, kind
        found = hierarchy.generate(PROMPTS[1], max_new_tokens=NEW, ignore_eos=True)
        assert found.token_ids == expected[1], kind


SWITCHING = ["longrope", "longrope, computed anew"]


@pytest.mark.parametrize("name", SWITCHING)
@pytest.mark.parametrize("kind", [pytest.param("skipping", marks=needs_lab), "itself"])
def test_a_session_passes_the_length_as_a_fresh_call_does(saved, name, kind):
    path = saved(name)
    hierarchy = built(path, levels_below(path)[kind])
    options = {"max_new_tokens": 5, "ignore_eos": True, "temperature": 1.0, "seed": 4}
    with hierarchy.session() as session:
        text = SHARED[:7]
        for addition in ([], [3], [4, 17], [9, 6, 5]):
            text = [*text, *addition]
            found = session.generate(text, **options).token_ids
            assert found == hierarchy.generate(text, **options).token_ids
            text += found
        assert len(text) > LENGTH + 10
        shorter = text[: LENGTH - 4]  # back again
        found = session.generate(shorter, **options).token_ids
        assert found == hierarchy.generate(shorter, **options).token_ids


@pytest.mark.parametrize("skipping", [False, True])
def test_rows_are_those_of_their_own_texts_on_either_side(saved, skipping):
    """Of a model that computes its cache anew, and in any order."""
    path = saved("longrope, computed anew")
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float64)
    trunk = Trunk(load(path, torch.float64), [1])
    trunk.chunk = 5
    text = PROMPTS[4]
    with torch.no_grad():
        wanted = [model(torch.tensor([text[:n]])).logits[0, -1] for n in range(1, len(text) + 1)]
    slot, view = trunk.open(), trunk.view()
    for first, end in ((1, len(text)), (10, 12), (LENGTH, LENGTH + 1), (LENGTH + 1, 20), (14, 25)):
        query = Query(slot, Context(text[: end - 2], tuple(text[end - 2 : end])), first)
        if skipping:  # and what a draft has written in between
            trunk.view(1).score([query])
        found = view.score([query, Query(trunk.open(), Context(text), len(text))])
        rows = torch.stack([*wanted[first - 1 : end], wanted[-1]])
        assert (found - rows).abs().max() < 1e-11


def test_layers_that_switch_at_different_lengths_are_refused():
    rope = {"full_attention": LONGROPE, "sliding_attention": {**LONGROPE, KEY: 32}}
    config = SimpleNamespace(rope_parameters=rope, model_type="m", max_position_embeddings=64)
    with pytest.raises(
        HierspecError, match=r"m: config.json gives .* original_max.*, 16, 32: they"
    ):
        _position_switch("m", config)
