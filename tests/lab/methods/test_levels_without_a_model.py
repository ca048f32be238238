"""Levels without a model of their own: layers skipped, exits by confidence, a pool of n-grams.

The χ² tests fail a sound drafter once in ten thousand seeds; the seeds are fixed.
"""

from __future__ import annotations

from collections import Counter

import pytest
from fakes.models import ToyBackend
from joint_law import chi_square, joint_law, sample
from loading import hierarchy_of
from tiny_models import save_tiny

from hierspec import HierarchyConfig, SamplingParams
from hierspec.drafters import model as drafting
from hierspec.lm.trunk.trunk import Trunk
from hierspec_lab.methods.adaptive_exit.model import AdaptiveExit
from hierspec_lab.methods.layer_skip.skipping import evenly_spaced_layers

PROMPTS = [[5, 9, 7], [11, 4, 4, 30, 8], [60], list(range(3, 40))]
SKIP = {"method": "layer_skip", "skip_layers": [1], "num_speculative_tokens": 3}
EXITS = {
    "method": "adaptive_exit",
    "exit_layers": [1, 2],
    "confidence": 0.5,
    "num_speculative_tokens": 4,
}
POOL = {"method": "ngram_pool", "num_speculative_tokens": 4}
CHAINS = {
    "layer_skip": [SKIP],
    "layer_skip by share": [{"method": "layer_skip", "skip": 0.45, "num_speculative_tokens": 3}],
    "adaptive_exit": [EXITS],
    "adaptive_exit, else the target": [{**EXITS, "unsure": "target"}],
    "ngram_pool": [POOL],
    "ngram_pool, shared": [{**POOL, "shared": True}],
    "all three": [POOL, {**EXITS, "verify": "block"}, {**SKIP, "verify": "tokenwise"}],
    "several drafts": [{**EXITS, "num_drafts": 3}],
}


def rule_of(name):
    return {"verify": "rrs"} if name == "several drafts" else {}


def built(path, levels, **options):
    target = {"model": str(path), "dtype": "float64", "backend": options.pop("backend", "auto")}
    return hierarchy_of({"target": target, "levels": levels, **options})


# --- greedy: token for token, alone and in ragged batches


@pytest.fixture(scope="module", params=["llama", "llama, hf", "gemma2", "gpt2"])
def target(request, tmp_path_factory):
    """A tiny float64 target, its backend, and its plain greedy continuations."""
    family, _, backend = request.param.partition(", ")
    path = save_tiny(family, tmp_path_factory.mktemp(family) / "m", seed=1)
    plain = built(path, [], backend=backend or "auto")
    options = {"max_new_tokens": 30, "ignore_eos": True}
    return path, backend or "auto", [plain.generate(p, **options).token_ids for p in PROMPTS]


@pytest.mark.parametrize("name", CHAINS)
def test_greedy_equals_plain_greedy(target, name):
    path, backend, expected = target
    hierarchy = built(path, CHAINS[name], backend=backend, **rule_of(name))
    options = {"max_new_tokens": 30, "ignore_eos": True}
    batch = hierarchy.generate_batch(PROMPTS, **options)
    assert [r.token_ids for r in batch] == expected
    assert hierarchy.generate(PROMPTS[1], **options).token_ids == expected[1]
    assert sum(r.target_calls for r in batch) < 4 * 29, "some drafts are kept"


@pytest.mark.parametrize("name", CHAINS)
def test_a_sequence_samples_the_same_whoever_shares_its_batch(tiny_family, name):
    hierarchy = built(tiny_family["target"], CHAINS[name], **rule_of(name))
    options = {"max_new_tokens": 12, "temperature": 1.0, "seed": 5, "ignore_eos": True}
    together = [r.token_ids for r in hierarchy.generate_batch(PROMPTS, **options)]
    fewer = [r.token_ids for r in hierarchy.generate_batch(PROMPTS[:2], **options)]
    assert together[:2] == fewer


# --- sampling: the joint law of the first four tokens of six, 1,280 samples


PARAMS = SamplingParams(temperature=1.0, top_k=3)


@pytest.fixture(scope="module")
def law(tiny_family):
    return joint_law(built(tiny_family["target"], []), PROMPTS[0], PARAMS, 4)


def log10_p(hierarchy, law):
    """Six tokens are written, so that drafts reach over the four that are counted."""
    longer = sample(hierarchy, PROMPTS[0], PARAMS, 6, 1280, batch_size=640)
    counts = Counter()
    for tokens, number in longer.items():
        counts[tokens[:4]] += number
    result = chi_square(counts, law)
    assert result.degrees > 20
    return result.log10_p


@pytest.mark.parametrize(
    ("levels", "rule"),
    [
        ([{**EXITS, "temperature": 0.6, "confidence": 0.4}], "tokenwise"),
        ([SKIP], "block"),
        ([{**POOL, "shared": True}, {**EXITS, "verify": "block"}], "block"),
    ],
)
def test_samples_have_the_targets_joint_law(tiny_family, law, levels, rule):
    hierarchy = built(tiny_family["target"], levels, verify=rule)
    assert log10_p(hierarchy, law) > -4


def test_a_choice_by_the_drawn_token_is_lossy_and_seen(tiny_family, law, monkeypatch):
    """What the floor must not be applied to: a token its exit finds unlikely is drawn again."""
    draw = drafting.draw_each

    def picky(rows, rngs):
        first, second = draw(rows, rngs), draw(rows, rngs)
        return [
            a if row.prob(0, a) >= EXITS["confidence"] else b
            for row, a, b in zip(rows, first, second, strict=True)
        ]

    monkeypatch.setattr(drafting, "draw_each", picky)
    assert log10_p(built(tiny_family["target"], [EXITS], verify="tokenwise"), law) < -4


# --- mistakes


@pytest.mark.parametrize(
    ("level", "says"),
    [
        ({**SKIP, "skip": 0.5}, "either skip_layers"),
        ({"method": "layer_skip", "num_speculative_tokens": 3}, "either skip_layers"),
        ({**SKIP, "skip_layers": []}, "list of layer numbers"),
        ({**SKIP, "skip_layers": 3}, "list of layer numbers"),
        ({**SKIP, "skip_layers": [1, -1]}, "list of layer numbers"),
        ({**SKIP, "skip_layers": [True]}, "list of layer numbers"),
        ({**SKIP, "skip_layers": None, "skip": 1.0}, "skip must be a number between 0 and 1"),
        ({**SKIP, "skip_layers": None, "skip": "x"}, "skip must be a number between 0 and 1"),
        ({**SKIP, "skiplayers": [1]}, "did you mean 'skip_layers'"),
        ({**EXITS, "exit_layers": [2]}, "a single exit is early_exit"),
        ({**EXITS, "exit_layers": [2, 1]}, "shallowest first"),
        ({**EXITS, "exit_layers": [0, 2]}, "layer counts from 1 on"),
        ({**EXITS, "exit_layers": None}, "list of layer numbers"),
        ({"method": "adaptive_exit", "num_speculative_tokens": 2}, "'exit_layers' is missing"),
        ({**EXITS, "confidence": 0}, "above 0 and at most 1"),
        ({**EXITS, "confidence": 1.5}, "above 0 and at most 1"),
        ({**EXITS, "confidence": None}, "above 0 and at most 1"),
        ({**EXITS, "unsure": "full"}, "unsure"),
        ({**EXITS, "head": ""}, "hierspec heads train"),
        ({**POOL, "ngram_min": 0}, "ngram_min must be an integer of at least 1"),
        ({**POOL, "ngram_min": 5}, "ngram_max must not be below"),
        ({**POOL, "shared": 1}, "shared must be true or false"),
        ({**POOL, "num_drafts": 2}, "ngram_pool makes only one draft"),
    ],
)
def test_mistakes_in_the_file(level, says):
    with pytest.raises(ValueError, match=says) as caught:
        HierarchyConfig.from_dict({"target": "t", "levels": [level]})
    assert "\n" not in str(caught.value)


def test_a_level_that_ends_its_draft_only_drafts():
    above = {**EXITS, "unsure": "target", "verify": "block"}
    with pytest.raises(ValueError, match="where no exit is sure only drafts: put it first"):
        HierarchyConfig.from_dict({"target": "t", "levels": [POOL, above]})


def test_a_pool_cannot_verify():
    with pytest.raises(ValueError, match="ngram_pool cannot verify drafts"):
        HierarchyConfig.from_dict({"target": "t", "levels": [EXITS, POOL]})


@pytest.mark.parametrize(
    ("level", "says"),
    [
        ({**SKIP, "skip_layers": [1, 3]}, "layers 0 to 2"),
        ({**SKIP, "skip_layers": [1, 1]}, "each once"),
        ({**SKIP, "skip_layers": [0, 1, 2]}, "leaves no layer"),
        ({**EXITS, "exit_layers": [1, 4]}, "between 1 and 3"),
        ({**POOL, "ngram_max": 99}, "ngram_max ≤ 32"),
    ],
)
def test_mistakes_that_need_the_model(tiny_family, level, says):
    with pytest.raises(ValueError, match=says):
        built(tiny_family["target"], [level])


def test_files_keep_their_form():
    levels = [POOL, {**EXITS, "verify": "block"}, {**SKIP, "verify": "block"}]
    config = HierarchyConfig.from_dict({"target": "t", "levels": levels})
    assert HierarchyConfig.from_dict(config.to_dict()) == config
    with pytest.raises(ValueError, match="at least 3 layers"):
        evenly_spaced_layers(0.5, 2)
    with pytest.raises(ValueError, match="an adaptive exit needs"):
        AdaptiveExit([Trunk(ToyBackend()).view()], 0.0, "x")


@pytest.mark.parametrize("method", ["layer_skip", "adaptive_exit", "ngram_pool"])
def test_the_planner_refuses_what_it_cannot_price(method):
    from hierspec.profiling.candidates import parse

    with pytest.raises(ValueError, match=f"{method} is not planned"):
        parse(f'{{"method": "{method}"}}')
