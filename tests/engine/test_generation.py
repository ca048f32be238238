"""Generation on tiny real models: exact to the token, whatever the hierarchy, alone or in a batch.

float64, so that equality means equality.
"""

import math

import pytest
import torch
from tiny_hierarchies import CONFIGS, EXIT1, PROMPTS, built, draft, plain_greedy
from tiny_models import FAMILIES, save_tiny

from hierspec import Hierarchy, SamplingParams
from hierspec.core.rng import PhiloxRng
from hierspec.engine.runtime import Runtime
from hierspec.engine.sequences import LiveSequence
from hierspec.engine.trace import ListTracer
from hierspec.presets.registry import PRESETS

EVERYTHING = [*PRESETS, *CONFIGS]


@pytest.fixture(scope="module")
def greedy_16(tiny_family):
    """What the target alone writes after the first three prompts."""
    return plain_greedy(tiny_family["target"], PROMPTS[:3], 16)


@pytest.mark.parametrize("name", EVERYTHING)
def test_greedy_equals_plain_greedy_alone_and_in_a_ragged_batch(tiny_family, greedy_16, name):
    hierarchy = built(tiny_family, name)
    result = hierarchy.generate(PROMPTS[0], max_new_tokens=16, ignore_eos=True)
    assert result.token_ids == greedy_16[0]
    batch = hierarchy.generate_batch(PROMPTS[:3], max_new_tokens=16, ignore_eos=True)
    assert [r.token_ids for r in batch] == greedy_16


@pytest.mark.parametrize("family", FAMILIES)
def test_every_tried_family_is_greedy_exact(family, tmp_path):
    target = save_tiny(family, tmp_path / "target", seed=1)
    other = save_tiny(family, tmp_path / "other", seed=2, layers=2)
    # torch's product over experts knows no float64.
    dtype = "float32" if family in ("mixtral", "deepseek_v3") else "float64"
    config = {
        "target": {"model": str(target), "dtype": dtype},
        "levels": [EXIT1, draft(str(other), 3, verify="block")],
    }
    hierarchy = Hierarchy.from_config(config)
    expected = plain_greedy(target, PROMPTS[1:4], 12, getattr(torch, dtype))
    batch = hierarchy.generate_batch(PROMPTS[1:4], max_new_tokens=12, ignore_eos=True)
    assert [r.token_ids for r in batch] == expected


def test_eight_sequences_meet_at_the_target(tiny_family):
    hierarchy = built(tiny_family, "hierarchy")
    calls = []
    model = hierarchy.root.model
    score = type(model).score

    def counted(self, queries):
        if self is model:
            calls.append(len(queries))
        return score(self, queries)

    type(model).score = counted
    try:
        alone = []
        for prompt in PROMPTS:
            calls.clear()
            hierarchy.generate(prompt, max_new_tokens=16, ignore_eos=True)
            alone.append(len(calls))
        calls.clear()
        hierarchy.generate_batch(PROMPTS, max_new_tokens=16, ignore_eos=True)
    finally:
        type(model).score = score
    assert len(calls) <= 1.3 * max(alone)


@pytest.mark.parametrize("wanted", [1, 2, 3, 7, 23])
@pytest.mark.parametrize("name", ["hierarchy", "naive", "tails"])
def test_never_over_by_a_draft(tiny_family, wanted, name):
    result = built(tiny_family, name).generate(PROMPTS[0], max_new_tokens=wanted, ignore_eos=True)
    assert result.num_tokens == wanted
    assert result.finish_reason == "length"


def test_the_context_length_is_reached_and_not_passed(tiny_family):
    hierarchy = built(tiny_family, "hierarchy")
    longest = hierarchy.root.model.max_length
    prompt = [3 + i % 60 for i in range(longest - 9)]
    result = hierarchy.generate(prompt, max_new_tokens=50, ignore_eos=True)
    assert result.num_tokens == 9
    assert result.finish_reason == "length"


def test_any_of_several_end_tokens_stops_inside_a_draft(tiny_family):
    hierarchy = built(tiny_family, "hierarchy")
    whole = hierarchy.generate(PROMPTS[1], max_new_tokens=18, ignore_eos=True).token_ids
    for end in {whole[4], whole[17]}:
        cut = whole[: whole.index(end) + 1]
        result = hierarchy.generate(PROMPTS[1], max_new_tokens=40, eos_token_id=[95, end])
        assert result.token_ids == cut
        assert result.finish_reason == "stop"


@pytest.mark.parametrize("edits", [{}, {"top_k": 5, "repetition_penalty": 1.3}], ids=str)
@pytest.mark.parametrize("name", ["hierarchy", "naive", "no bonus", "tails"])
def test_logprobs_are_the_raw_targets(tiny_family, name, edits):
    """Also of tokens that a rule draws after its check, one call of the target each."""
    from transformers import AutoModelForCausalLM

    hierarchy, tracer = built(tiny_family, name), ListTracer()
    options = {"max_new_tokens": 12, "temperature": 0.7, "seed": 2, "ignore_eos": True, **edits}
    results = hierarchy.generate_batch(PROMPTS[:3], logprobs=True, tracer=tracer, **options)
    silent = hierarchy.generate_batch(PROMPTS[:3], **options)
    assert [r.token_ids for r in silent] == [r.token_ids for r in results]
    assert any(event["kind"] == "row" for event in tracer.events) == (name == "naive")
    model = AutoModelForCausalLM.from_pretrained(tiny_family["target"], dtype=torch.float64)
    for prompt, result in zip(PROMPTS, results, strict=False):
        ids = torch.tensor([[*prompt, *result.token_ids]])
        with torch.no_grad():
            rows = model(ids).logits[0].log_softmax(-1)
        for i, (token, value) in enumerate(zip(result.token_ids, result.logprobs, strict=True)):
            expected = float(rows[len(prompt) - 1 + i, token])
            # transformers keeps rotary angles in float32, also in a float64 model
            assert math.isclose(value, expected, abs_tol=1e-5)


def test_padded_embeddings_of_one_family_work(tiny_family, tmp_path):
    """A draft with more embedding rows than the target: its extra ids get probability 0."""
    from transformers import AutoModelForCausalLM

    for size in (96 + 32, 80):
        model = AutoModelForCausalLM.from_pretrained(tiny_family["draft"], dtype=torch.float64)
        model.resize_token_embeddings(size, mean_resizing=False)
        model.save_pretrained(tmp_path / str(size))
        config = {
            "target": {"model": tiny_family["target"], "dtype": "float64"},
            "levels": [draft(str(tmp_path / str(size)), 4)],
        }
        hierarchy = Hierarchy.from_config(config)
        greedy = hierarchy.generate(PROMPTS[1], max_new_tokens=16, ignore_eos=True)
        (expected,) = plain_greedy(tiny_family["target"], PROMPTS[1:2], 16)
        assert greedy.token_ids == expected
        hot = hierarchy.generate(
            PROMPTS[1], max_new_tokens=60, temperature=1.5, seed=1, ignore_eos=True
        )
        assert max(hot.token_ids) < 96


def test_sequences_join_and_leave_between_rounds(tiny_family):
    root = built(tiny_family, "hierarchy").root
    runtime = Runtime(root, root.model.vocab_size)
    live = []

    def round_of_all():
        for sequence, verdict in zip(live, runtime.round(live), strict=True):
            sequence.tokens.extend(verdict.emitted.tokens)

    joined = []
    for i, prompt in enumerate(PROMPTS[:3]):
        sequence = LiveSequence(i, root, list(prompt), SamplingParams(), PhiloxRng(0, i), 12)
        live.append(sequence)
        joined.append(sequence)
        for _ in range(2):
            round_of_all()
    live.pop(0).close()
    round_of_all()
    expected = plain_greedy(tiny_family["target"], PROMPTS[:3], 40)
    for prompt, sequence, plain in zip(PROMPTS, joined, expected, strict=False):
        new = tuple(sequence.tokens[len(prompt) :])
        assert len(new) >= 3
        assert new == plain[: len(new)]
