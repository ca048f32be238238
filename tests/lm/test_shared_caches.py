"""Forms of one model that draft on one cache: none reads what was never written, or the target what
another form has.

Cache without values holds NaN here (:mod:`hierspec.lm.poison`), which would reach the scores.
"""

from __future__ import annotations

import random
from itertools import product

import pytest
import torch
from loading import hierarchy_of

from hierspec.core.context import Context
from hierspec.lm import poison
from hierspec.lm.base import Query
from hierspec.lm.layer_skip import Skip, SkippingBackend
from hierspec.lm.lean import kernels
from hierspec.lm.lean.decoder import LeanBackend
from hierspec.lm.lean.quantized import quantize
from hierspec.lm.load import load
from hierspec.lm.trees import Tree
from hierspec.lm.trunk.cuda_graphs import CudaGraphTrunk
from hierspec.lm.trunk.retrieval import RetrievalModel
from hierspec.lm.trunk.self_draft import SelfDraft
from hierspec.lm.trunk.trunk import Trunk
from hierspec.utils.testing import save_tiny

PROMPTS = [[5, 9, 7], [11, 4, 4, 30, 8, *range(60, 80)]]
DRAFTS = {  # that write to the target's cache
    "skip 1": {"method": "layer_skip", "skip_layers": [1]},
    "skip 2": {"method": "layer_skip", "skip_layers": [2]},
    "skip 1 and 2": {"method": "layer_skip", "skip_layers": [1, 2]},
    "skip attention": {"method": "layer_skip", "skip_attention": [0, 3]},
    "swift": {"method": "layer_skip", "skip": 0.5, "search": {"context_window": 2, "enough": 2.0}},
    "8 bits": {"method": "quantized"},
    "4 bits": {"method": "quantized", "bits": 4},
}
OTHERS = {
    "exit": {"method": "early_exit", "exit_layer": 2},
    "adaptive": {"method": "adaptive_exit", "exit_layers": [1, 3], "confidence": 0.3},
    "retrieval": {"method": "retrieval", "budget": 16, "chunk_size": 4, "refresh": 4},
}
FORMS = {**DRAFTS, **OTHERS}
ON_HF = ("skip 1", "skip attention", "swift", "exit")
WITH_TREES = ("skip 1", "skip attention", "8 bits", "4 bits", "exit")
GREEDY = {"max_new_tokens": 7, "ignore_eos": True}
SAMPLED = {**GREEDY, "temperature": 1.0, "seed": 3}


needs_kernels = pytest.mark.skipif(kernels.load() is None, reason="no C compiler here")


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return str(save_tiny("llama", tmp_path_factory.mktemp("shared") / "m", seed=1, layers=4))


def built(path, levels, backend):
    target = {"model": path, "dtype": "float32", "backend": backend}
    return hierarchy_of({"target": target, "levels": levels, "verify": "block"})


def chain(lower, upper):
    return [
        {**lower, "num_speculative_tokens": 2},
        {**upper, "num_speculative_tokens": 4, "verify": "block"},
    ]


def one_after_another(first, second):
    parts = [{**part, "num_speculative_tokens": 2} for part in (first, second)]
    return [{"method": "concatenate", "parts": parts}]


def several_drafts(lower, upper):
    return [
        {**lower, "num_speculative_tokens": 2, "num_drafts": 2},
        {**upper, "num_speculative_tokens": 4, "verify": "block-rrs"},
    ]


def all_pairs():
    for backend, form, names in (
        ("lean", one_after_another, FORMS),
        ("lean", chain, FORMS),
        ("lean", several_drafts, WITH_TREES),
        ("hf", one_after_another, ON_HF),
    ):
        for first, second in product(names, names):
            only_drafts = second == "swift" and form is not one_after_another
            if {first, second} & {*DRAFTS} and not only_drafts:
                name = f"{backend}, {form.__name__}: {first}, {second}"
                marks = [needs_kernels] if "4 bits" in (first, second) else []
                yield pytest.param(backend, form, first, second, id=name, marks=marks)


@pytest.fixture(scope="module")
def plain(path):
    found = {}

    def texts(backend):
        if backend not in found:
            hierarchy = built(path, [], backend)
            found[backend] = [r.token_ids for r in hierarchy.generate_batch(PROMPTS, **GREEDY)]
        return found[backend]

    return texts


@pytest.mark.parametrize(("backend", "form", "first", "second"), all_pairs())
def test_a_pair_of_forms_reads_what_one_of_them_or_the_target_wrote(
    path, plain, backend, form, first, second
):
    hierarchy = built(path, form(FORMS[first], FORMS[second]), backend)

    def sampled():
        return [r.token_ids for r in hierarchy.generate_batch(PROMPTS, **SAMPLED)]

    unpoisoned = sampled()
    with poison.poisoned():
        assert sampled() == unpoisoned
        greedy = [r.token_ids for r in hierarchy.generate_batch(PROMPTS, **GREEDY)]
    assert greedy == plain(backend)
