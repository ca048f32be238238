"""The output laws of other engines, enumerated."""

from collections import defaultdict

import pytest
import torch
from engine_law import outcome_law
from joint_law import joint_law
from peer_cases import ENTRIES
from tiny_models import save_tiny

from hierspec.config.schema import TargetConfig
from hierspec.sampling.parameters import SamplingParams
from hierspec_lab.bench.methods.base import RunRequest, Unavailable
from hierspec_lab.bench.methods.ours import BenchModels
from hierspec_lab.bench.peers.hf import TransformersMethod
from hierspec_lab.bench.peers.sequential import SequentialMethod
from hierspec_lab.verifiers.adapters import replace_torch_random

THREE = 3  # tokens in the vocabulary: of two, a residual cannot be wrong
WRITTEN = 3


@pytest.fixture(scope="module")
def threes(tmp_path_factory):
    """A target and a draft of three tokens, and the target's law of the next three."""
    folder = tmp_path_factory.mktemp("threes")
    paths = [
        save_tiny("llama", folder / name, seed, layers=2, dtype=torch.float32, vocab_size=THREE)
        for name, seed in (("target", 4), ("draft", 5))
    ]
    target = TargetConfig(model=str(paths[0]), dtype="float32", device="cpu")
    found = BenchModels(target, (str(paths[1]),))
    law = joint_law(found.plain, [1, 2, 1, 0, 1], SamplingParams(temperature=0.8), WRITTEN)
    return found, law


def distance(threes, method, written=WRITTEN):
    """Total variation between a method's law and the target's; a failure is text of its own."""
    law = defaultdict(float)
    for tokens, share in threes[1].items():
        law[tokens[:written]] += share

    def program(rng):
        with replace_torch_random(rng):
            try:
                return method.run([1, 2, 1, 0, 1], RunRequest(written, 0.8)).token_ids
            except Unavailable:
                return None

    found = outcome_law(program)
    assert sum(found.values()) == pytest.approx(1.0, abs=1e-5)
    return sum(abs(found.get(key, 0.0) - law.get(key, 0.0)) for key in {*found, *law}) / 2


TOLD = {
    "plain": {"generate": {}},
    "lookup": {"generate": {"prompt_lookup_num_tokens": 2, "max_matching_ngram_size": 2}},
    "constant": {
        "num_assistant_tokens": 2,
        "num_assistant_tokens_schedule": "constant",
        "assistant_confidence_threshold": 0.0,
    },
    "confidence": {
        "num_assistant_tokens": 2,
        "num_assistant_tokens_schedule": "constant",
        "assistant_confidence_threshold": 0.4,
    },
}


@pytest.mark.parametrize("how", TOLD)
def test_transformers_law_is_the_targets(how, threes):
    models, _ = threes
    told = TOLD[how]
    if "generate" not in told:
        told = {
            "generate": {"assistant_model": models.drafts[0]},
            "assistant_generation_config": told,
        }
    method = TransformersMethod(how, models, told)
    method.run([1, 2], RunRequest(2))  # loads
    written = 2 if how == "lookup" else WRITTEN  # it is asked for a token per row: more paths
    assert distance(threes, method, written) < 1e-5


def test_transformers_ensemble_weight_is_caught_by_that_check(threes):
    """Its documented lossy option: half of the draft's law."""
    models, _ = threes
    told = {
        "generate": {"assistant_model": models.drafts[0], "assistant_ensemble_weight": 0.5},
        "assistant_generation_config": TOLD["constant"],
    }
    method = TransformersMethod("ensemble", models, told)
    method.run([1, 2], RunRequest(2))
    assert distance(threes, method) > 1e-3


@pytest.mark.parametrize("method", ["standard", "naive_hsd", "capped_hsd"])
def test_sequential_law(method, threes):
    """The package's "capped" step is off by one position: lossy, or no law at all."""
    pytest.importorskip("seqspecdecod", reason="pip install sequential-speculative-decoding")
    models, _ = threes
    told = {"method": method, "draft_model": models.drafts[0], "gamma": 2}
    peer = SequentialMethod(method, models, told)
    peer.run([1, 2], RunRequest(1, 1.0))
    far = distance(threes, peer)
    if ENTRIES[f"sequential-{method.replace('_', '-')}"].lossless:
        assert far < 1e-5
    else:
        assert far > 1e-2
