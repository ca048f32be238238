"""Reproducible sampling: the text at a seed is plain decoding's at that seed, whatever drafts."""

from __future__ import annotations

import contextlib
from collections import Counter
from itertools import product

import pytest
import torch
from engine_paths import VERIFYING, like, patched
from fakes.tables import Ahead, Device
from installed import installed
from loading import hierarchy_of
from race_law import agreement
from scipy.stats import chi2
from tabular_cases import V, chain, models
from tiny_models import save_tiny

from hierspec.core.nodes import Draft, Verify
from hierspec.core.rng import PhiloxRng
from hierspec.core.windows import EntropyWindow
from hierspec.drafters.suffix import Suffix
from hierspec.engine.runtime import Runtime
from hierspec.engine.sequences import LiveSequence
from hierspec.sampling.parameters import SamplingParams
from hierspec.verifiers.registry import get
from hierspec.verifiers.soundness import validate

PROMPTS = [[5, 9, 7, 5, 9], [11, 4, 4, 30, 8], [60], list(range(3, 40))]
SMALL = {"method": "draft_model", "num_speculative_tokens": 3}
EXIT = {"method": "early_exit", "exit_layer": 1, "num_speculative_tokens": 4}
SUFFIX = {"method": "suffix", "num_speculative_tokens": 4, "store": 200}
LEVELS = {
    "a draft model": [SMALL],
    "an exit": [EXIT],
    "a look-up": [{"method": "prompt_lookup", "num_speculative_tokens": 3}],
    "a suffix": [SUFFIX],
    "a shared pool": [{"method": "ngram_pool", "num_speculative_tokens": 3, "shared": True}],
    "three levels, match": [SMALL, {**EXIT, "verify": "match"}],
    "three levels, block": [SMALL, {**EXIT, "verify": "block", "bonus": False}],
    "three levels, leading": [SMALL, {**EXIT, "verify": "leading", "top_m": 2}],
    "three levels, naive": [SUFFIX, {**EXIT, "verify": "naive"}],
    "windows": [
        {**SMALL, "window": "entropy", "temperature": 0.5},
        {**EXIT, "window": {"kind": "confidence", "floor": 0.1}},
    ],
    "a tail": [{"method": "concatenate", "parts": [SMALL, EXIT, SUFFIX]}],
    "several drafts below": [{**SMALL, "num_drafts": 3}, {**EXIT, "verify": "rrs"}],
}
LEVELS = installed(LEVELS)
OPTIONS = {"max_new_tokens": 16, "ignore_eos": True}
SAMPLING = {
    "plain": {"temperature": 1.0},
    "cut": {"temperature": 0.7, "top_k": 20, "top_p": 0.9, "min_p": 0.01},
    "edited": {"temperature": 1.2, "repetition_penalty": 1.3, "logit_bias": {7: 2.0}},
}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    folder = tmp_path_factory.mktemp("llama")
    target = save_tiny("llama", folder / "target", seed=1)
    small = save_tiny("llama", folder / "small", seed=1, layers=1)
    return {"target": str(target), "small": str(small)}


def built(tiny, levels, dtype="float64", **more):
    filled = [_filled(level, tiny["small"]) for level in levels]
    target = {"model": tiny["target"], "dtype": dtype}
    return hierarchy_of({"target": target, "levels": filled, "verify": "match", **more})


def _filled(level, small):
    if level["method"] == "concatenate":
        return {**level, "parts": [_filled(part, small) for part in level["parts"]]}
    return {**level, "model": small} if level["method"] == "draft_model" else level


@pytest.fixture(scope="module")
def plain(tiny):
    """What is written without drafts, sequence by sequence of a batch."""
    hierarchy = built(tiny, [])
    return {
        (name, seed): [
            r.token_ids for r in hierarchy.generate_batch(PROMPTS, seed=seed, **OPTIONS, **params)
        ]
        for name, params in SAMPLING.items()
        for seed in (3, 4)
    }


@pytest.mark.parametrize("sampling", SAMPLING)
@pytest.mark.parametrize("name", LEVELS)
def test_the_text_is_plain_decodings(tiny, plain, name, sampling):
    hierarchy = built(tiny, LEVELS[name])
    options = {"seed": 4, **OPTIONS, **SAMPLING[sampling]}
    batch = hierarchy.generate_batch(PROMPTS, **options)
    assert [r.token_ids for r in batch] == plain[sampling, 4]
    kept = sum(OPTIONS["max_new_tokens"] - 1 - r.target_calls for r in batch)
    alone = hierarchy.generate(PROMPTS[0], **options)
    assert alone.token_ids == plain[sampling, 4][0]
    if name not in ("a look-up", "a suffix", "a shared pool"):
        assert kept > 0, "some drafts are kept"


def test_seeds_and_sequences_differ(plain):
    texts = [tuple(text) for name, seed in plain for text in plain[name, seed]]
    assert len(set(texts)) == len(texts)


def test_a_text_goes_on_from_anywhere(tiny, plain):
    """Noise belongs to places, so what was written may as well have been the prompt."""
    text = plain["plain", 3][0]
    hierarchy = built(tiny, LEVELS["a draft model"])
    begun = [*PROMPTS[0], *text[:10]]
    rest = hierarchy.generate(begun, seed=3, max_new_tokens=6, ignore_eos=True, temperature=1.0)
    assert rest.token_ids == text[10:]


def test_a_seed_of_a_sequences_own(tiny, plain):
    """A request says the same alone and in any place of a batch, where it brings its own noise."""
    hierarchy = built(tiny, LEVELS["a draft model"])
    generation = hierarchy.start([PROMPTS[2], PROMPTS[0]], seed=99, temperature=1.0, **OPTIONS)
    generation.requests[1].rng = PhiloxRng(3, 0)
    for _ in generation:
        pass
    assert generation.results()[1].token_ids == plain["plain", 3][0]


def test_greedy_requests_are_greedy(tiny):
    block = hierarchy_of({"target": {"model": tiny["target"], "dtype": "float64"}})
    expected = [r.token_ids for r in block.generate_batch(PROMPTS, **OPTIONS)]
    found = built(tiny, LEVELS["three levels, match"]).generate_batch(PROMPTS, **OPTIONS)
    assert [r.token_ids for r in found] == expected


def test_float32_in_a_batch_of_mixed_requests(tiny):
    mixed = [SamplingParams(temperature=t) for t in (1.0, 0.0, 0.6, 1.0)]
    options = {"seed": 5, "sampling": mixed, **OPTIONS}
    expected = [r.token_ids for r in built(tiny, [], "float32").generate_batch(PROMPTS, **options)]
    hierarchy = built(tiny, LEVELS["three levels, block"], "float32")
    assert [r.token_ids for r in hierarchy.generate_batch(PROMPTS, **options)] == expected


# --- tables: every path, and the law


def rounds(root: Verify, seed: int, length: int, params: SamplingParams, prompt=(1, 0)):
    """The first tokens of a text, by rounds of the runtime."""
    sequence = LiveSequence(
        0, root, list(prompt), params, PhiloxRng(seed, 0), num_remaining_tokens=length
    )
    runtime = Runtime(root, root.model.vocab_size)
    while len(sequence.tokens) < length + len(prompt):
        sequence.num_remaining_tokens = length + len(prompt) - len(sequence.tokens)
        sequence.tokens += runtime.round([sequence])[0].emitted.tokens
    sequence.close()
    return tuple(sequence.tokens[len(prompt) :])


@pytest.mark.parametrize("path", VERIFYING)
@pytest.mark.parametrize("kind", [None, Ahead, Device])
def test_every_path(path, kind):
    tables = models("random", 3, seed=3)
    if kind is not None:
        tables[0] = like(kind, tables[0])
    target = Verify(0, "target", tables[-1], 1, get("match"), None)
    windows = [EntropyWindow(), EntropyWindow(0.8)]
    root = chain(tables, ["tokenwise", "match"], [2, 3], windows)
    params = SamplingParams(temperature=0.8)
    with patched(*VERIFYING[path]) if path != "recorded" else contextlib.nullcontext():
        for seed in range(8):
            assert rounds(root, seed, 8, params) == rounds(target, seed, 8, params)


def test_the_law_is_the_targets():
    """χ² over 1,000 texts of three tokens; a sound one fails once in a million."""
    small, target = models("random", 2, seed=5)
    root = chain([small, target], ["match"], [2])
    counts = Counter(rounds(root, seed, 3, SamplingParams(temperature=1.0)) for seed in range(1000))
    statistic = 0.0
    for text in product(range(V), repeat=3):
        chance = 1.0
        for i, token in enumerate(text):
            chance *= float(target.distribution([1, 0, *text[:i]])[token])
        statistic += (counts[text] - 1000 * chance) ** 2 / (1000 * chance)
    assert chi2.sf(statistic, V**3 - 1) > 1e-6


def test_drafts_are_kept_as_often_as_the_closed_form_says():
    """2,000 drafts of one token; a sound count lies outside once in a million."""
    small, target = models("random", 2, seed=5)
    root = chain([small, target], ["match"], [1])
    expected = float(agreement(small.distribution([1, 0]), target.distribution([1, 0])).sum())
    runtime, kept = Runtime(root, V), 0
    for seed in range(2000):
        params = SamplingParams(temperature=1.0)
        sequence = LiveSequence(0, root, [1, 0], params, PhiloxRng(seed, 0), num_remaining_tokens=2)
        kept += runtime.round([sequence])[0].num_accepted
    assert abs(kept / 2000 - expected) < 4.9 * (expected * (1 - expected) / 2000) ** 0.5


# --- what may stand with what


def test_anything_may_draft_for_it():
    tables = models("random", 3)
    for rule in ("uncapped", "leading", "naive", "block", "match"):
        validate(chain(tables, [rule, "match"], [2, 2]))
    below = Draft(0, "suffix", Suffix(), 3)
    validate(Verify(1, "target", tables[-1], 1, get("match"), below))
    several = Draft(0, "small", tables[0], 2, num_drafts=2)
    with pytest.raises(ValueError, match="takes one: use"):
        validate(Verify(1, "target", tables[-1], 1, get("match"), several))


def test_below_another_rule_it_draws_for_itself(tiny):
    """Shared noise there would be lossy: a place drafted again would see it again."""
    hierarchy = hierarchy_of(
        {
            "target": {"model": tiny["target"], "dtype": "float64"},
            "levels": [_filled(SMALL, tiny["small"]), {**EXIT, "verify": "match"}],
            "verify": "block",
        }
    )
    generation = hierarchy.start([PROMPTS[0]], temperature=1.0, max_new_tokens=4)
    assert generation.requests[0].noise is None


def test_a_row_that_is_no_distribution(tiny):
    def spoil(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return scores * float("nan")

    with pytest.raises(ValueError, match="scores NaN"):
        built(tiny, []).generate([1, 2], temperature=1.0, logits_processors=[spoil])
