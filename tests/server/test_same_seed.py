"""The text of a seed is the same alone and among others; where it may not be, that is said."""

from __future__ import annotations

import json
import warnings

import pytest
import torch
from eagle3_cases import save_drafter
from installed import installed
from server_cases import completions
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GPT2Config,
    GPT2LMHeadModel,
)

from hierspec.lm.native import backend, library
from hierspec.server.app import create_app
from hierspec.server.loading import SameSeedWarning
from hierspec.server.settings import ServeSettings

needs_kernels = pytest.mark.skipif(library.load() is None, reason="no C compiler here")
DRAFT = {"method": "draft_model", "num_speculative_tokens": 4}
LEVELS = {
    "a draft model": [DRAFT],
    "a copy above a look-up": [
        {"method": "suffix", "num_speculative_tokens": 3},
        {"method": "quantized", "bits": 4, "num_speculative_tokens": 3},
    ],
    "an exit": [{"method": "early_exit", "exit_layer": 2, "num_speculative_tokens": 3}],
    "layers left out": [{"method": "layer_skip", "skip_layers": [1], "num_speculative_tokens": 3}],
    "eagle3": [{"method": "eagle3", "num_speculative_tokens": 3}],
}
LEVELS = installed(LEVELS)
BODIES = [
    {
        "prompt": f"{'the ' * (i % 4)}number {i % 3} on {'in the ' * (30 * (i % 3))}",
        "max_tokens": 10 + i % 7,
        "temperature": (0.7, 1.0, 1.3, 0.0)[i % 4],
        "ignore_eos": True,
        "seed": i,
        **({"top_p": 0.9} if i % 3 else {}),
    }
    for i in range(16)
]


@pytest.fixture(scope="module")
def bfloat16(family, tmp_path_factory):
    """The family in bfloat16, where scores depend most on what is computed together."""
    paths = {}
    for name in ("target", "draft"):
        paths[name] = str(tmp_path_factory.mktemp(name))
        model = AutoModelForCausalLM.from_pretrained(family[name], dtype=torch.bfloat16)
        model.save_pretrained(paths[name])
        AutoTokenizer.from_pretrained(family[name]).save_pretrained(paths[name])
    config = AutoConfig.from_pretrained(paths["target"])
    drafter = save_drafter(tmp_path_factory.mktemp("eagle3"), config, max_position_embeddings=2048)
    return {**paths, "eagle3": str(drafter)}


def settings(target, levels, models=None, **top):
    names = {"draft_model": "draft", "eagle3": "eagle3"}  # of the models that levels draft with
    levels = [
        {**level, "model": models[names[level["method"]]]} if level["method"] in names else level
        for level in levels
    ]
    hierarchy = {"target": target, "levels": levels, **top.pop("top", {})}
    return ServeSettings(hierarchy=json.dumps(hierarchy), prefill_chunk=32, **top)


def texts(app, bodies, together):
    return [answer["choices"][0] for answer in completions(app, bodies, together)]


@needs_kernels
@pytest.mark.parametrize("levels", LEVELS)
def test_seeded_texts_are_those_alone(bfloat16, levels):
    own = settings(bfloat16["target"], LEVELS[levels], bfloat16)
    with warnings.catch_warnings():
        warnings.simplefilter("error", SameSeedWarning)
        alone = texts(create_app(own), BODIES, together=False)
        app = create_app(own)
    others = [{**body, "seed": None} for body in BODIES]
    assert texts(app, [*others, *reversed(BODIES)], together=True)[len(others) :] == alone[::-1]


def reasons(own):
    with pytest.warns(SameSeedWarning) as caught:
        create_app(own).state.service.close()
    said = [str(warning.message) for warning in caught if warning.category is SameSeedWarning]
    return [line.partition(": ")[2] for line in said]


@needs_kernels
@pytest.mark.parametrize(
    ("target", "levels", "says"),
    [
        ({"backend": "hf"}, [], "runs on transformers' own layers"),
        ({"backend": "lean"}, [], "runs outside the compiled kernels"),
        ({"dtype": "float64"}, [], "runs outside the compiled kernels"),
        *installed(
            [
                ({}, [{"method": "retrieval", "budget": 16}], "runs layers that"),
                ({}, [{"method": "layer_skip", "skip": 0.4, "search": {}}], "searches for layers"),
            ]
        ),
        ({}, [{**DRAFT, "backend": "hf"}], "the draft .*runs on transformers' own layers"),
    ],
)
def test_what_cannot_keep_the_promise_is_named(bfloat16, target, levels, says):
    levels = [{"num_speculative_tokens": 2, **level} for level in levels]
    own = settings({"model": bfloat16["target"], **target}, levels, bfloat16)
    (reason,) = reasons(own)
    assert says.removeprefix("the draft .*") in reason
    assert reason.startswith("the draft " if levels else bfloat16["target"])


def test_without_a_compiler_or_on_other_layers_it_is_said_once(bfloat16, monkeypatch, tmp_path):
    gpt2 = GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=2, n_embd=16, vocab_size=300))
    gpt2.save_pretrained(tmp_path)
    (reason,) = reasons(settings(str(tmp_path), []))
    assert "runs on transformers' own layers" in reason
    for place, name in ((library, "load"), (backend, "load_kernels")):
        monkeypatch.setattr(place, name, lambda: None)
    (reason,) = reasons(settings(bfloat16["target"], [DRAFT], bfloat16))
    assert "without the compiled kernels" in reason


@needs_kernels
def test_rules_by_which_a_seed_decides_need_only_the_target(bfloat16):
    level = {**DRAFT, "backend": "hf"}
    own = settings(bfloat16["target"], [level], bfloat16, top={"verify": "match"})
    with warnings.catch_warnings():
        warnings.simplefilter("error", SameSeedWarning)
        create_app(own).state.service.close()
