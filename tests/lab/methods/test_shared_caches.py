"""Forms of one model that draft on one cache: none reads what was never written, or the target what
another form has.

Cache without values holds NaN here, which would reach the scores.
"""

from __future__ import annotations

import contextlib
import math
import random
from itertools import product
from unittest import mock

import pytest
import torch
from eagle3_cases import save_drafter
from heads_cases import save_random_heads
from loading import hierarchy_of
from tiny_models import save_tiny
from transformers import AutoConfig

from hierspec.core.context import Context
from hierspec.lm.base import Query
from hierspec.lm.hf.cache import Storage
from hierspec.lm.lean.decoder import LeanBackend
from hierspec.lm.native import library
from hierspec.lm.trees import Tree
from hierspec.lm.trunk.cuda_graphs import CudaGraphTrunk
from hierspec.lm.trunk.self_draft import SelfDraft
from hierspec.lm.trunk.slots import TrunkSlots
from hierspec.lm.trunk.trunk import Trunk
from hierspec.lm.weights import from_directory
from hierspec.methods.quantized import quantize
from hierspec_lab.methods.layer_skip.skipping import Skip, SkippingBackend
from hierspec_lab.methods.retrieval.model import RetrievalModel

PROMPTS = [[5, 9, 7], [11, 4, 4, 30, 8, *range(60, 80)]]
DRAFTS = {  # that write to the target's cache
    "skip 1": {"method": "layer_skip", "skip_layers": [1]},
    "skip 2": {"method": "layer_skip", "skip_layers": [2]},
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
TRAINED = {  # the path of what was trained for them follows
    "exit with a head": ({"method": "early_exit", "exit_layer": 2}, "head"),
    "eagle3": ({"method": "eagle3"}, "model"),  # reads the target's hidden states
}
FORMS = (*DRAFTS, *OTHERS, *TRAINED)
ON_HF = ("skip 1", "skip attention", "swift", "exit", "exit with a head")
WITH_TREES = ("skip 1", "skip attention", "8 bits", "4 bits", "exit", "exit with a head")
GREEDY = {"max_new_tokens": 7, "ignore_eos": True}
SAMPLED = {**GREEDY, "temperature": 1.0, "seed": 3}


needs_kernels = pytest.mark.skipif(library.load() is None, reason="no C compiler here")


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return str(save_tiny("llama", tmp_path_factory.mktemp("shared") / "m", seed=1, layers=4))


@pytest.fixture(scope="module")
def forms(path, tmp_path_factory):
    """Levels by name."""
    folder = tmp_path_factory.mktemp("trained")
    trained = {
        "head": str(save_random_heads(path, folder / "heads.safetensors")),
        "model": save_drafter(folder / "eagle3", AutoConfig.from_pretrained(path)),
    }
    named = {name: {**level, key: trained[key]} for name, (level, key) in TRAINED.items()}
    return {**DRAFTS, **OTHERS, **named}


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
        ("auto", one_after_another, FORMS),
        ("auto", chain, FORMS),
        ("auto", several_drafts, WITH_TREES),
        ("hf", one_after_another, ON_HF),
    ):
        for first, second in product(names, names):
            only_drafts = second in ("swift", "eagle3") and form is not one_after_another
            if not only_drafts:
                name = f"{backend}, {form.__name__}: {first}, {second}"
                marks = [needs_kernels] if "4 bits" in (first, second) else []
                yield pytest.param(backend, form, first, second, id=name, marks=marks)


def fill_rest(trunk, state):
    """Fill a slot's cache past what it has of the target and of drafts."""
    # On a trunk of fixed shapes masked columns are read with weight 0, so there it is a number.
    value = 1e4 if isinstance(trunk, CudaGraphTrunk) else math.nan
    with torch.inference_mode():
        for (lo, hi), length, output in zip(
            trunk.bounds, state.lengths, state.outputs, strict=True
        ):
            output[length:] = value
            for layer in range(lo, hi):
                start, cache = max(length, state.drafted[layer]), state.cache
                both = [cache] if isinstance(cache, torch.Tensor) else [cache.keys, cache.values]
                for tensor in (one[layer] for one in both):
                    if tensor is not None:
                        tensor[..., start:, :] = value


@contextlib.contextmanager
def poisoned():
    """Fill what holds no values whenever memory is taken or a query is prepared."""

    def filled(owner, name):
        original = getattr(owner, name)

        def call(*arguments):
            made = original(*arguments)
            if isinstance(made, torch.Tensor):
                return made.fill_(math.nan)
            fill_rest(arguments[0], getattr(made, "state", made))
            return made

        return mock.patch.object(owner, name, call)

    with contextlib.ExitStack() as stack:
        for name in ("make_room", "prepare", "_prepare_slot"):
            stack.enter_context(filled(TrunkSlots, name))
        stack.enter_context(filled(LeanBackend, "new_cache"))
        stack.enter_context(filled(Storage, "_tensor_like"))
        yield


@pytest.fixture(scope="module")
def plain(path):
    found = {}

    def texts(backend):
        if backend not in found:
            hierarchy = built(path, [], backend)
            found[backend] = [r.token_ids for r in hierarchy.generate_batch(PROMPTS, **GREEDY)]
        return found[backend]

    return texts


def fail_half_way(backend):
    """Let the next call of a backend's layers fail when they have written to the cache."""

    def layers(*arguments):
        del backend.layers
        backend.layers(*arguments)
        raise MemoryError

    backend.layers = layers


def history(backend, trunk_class, seed):
    """Scores of a random history of all forms of a model on one slot, and those of the target and
    its exits on slots of their own."""
    rng = random.Random(seed)
    trunk = trunk_class(backend, [1, 3])
    trunk.chunk = rng.choice([4, 512])
    exact = [trunk.view(1), trunk.view(3), trunk.view()]
    skips = [Skip.whole_layers([1]), Skip.whole_layers([2]), Skip((0, 3), (1,)), Skip((0, 1), ())]
    drafts = [SelfDraft(trunk, SkippingBackend(backend, skip)) for skip in skips]
    drafts.append(SelfDraft(trunk, quantize(backend)))
    models = [*exact, *drafts, RetrievalModel(trunk, 16, 4, 4)]
    slot, committed, pending = trunk.open(), ids(rng, 24), ()
    scores, wanted = [], []
    for step in range(60):
        pending = (*pending[: rng.randint(0, len(pending))], *ids(rng, 1))
        if rng.random() < 0.3:
            committed, pending = [*committed, *pending], ()
        context, model, tree = Context(committed, pending), rng.choice(models), None
        if rng.random() < 0.1:
            slot = trunk.fork(slot, rng.randint(1, len(context)))
        start, kind = rng.randint(len(committed), len(context)), rng.random()
        if kind < 0.2 and not isinstance(model, RetrievalModel):
            tokens = ids(rng, 4)
            tree = Tree(tuple(tokens), (-1, 0, -1, 2))
            pending = (*pending, *tokens[rng.choice([slice(2), slice(2, 4), slice(2, 3)])])
        elif kind < 0.3 and isinstance(model, SelfDraft):
            fail_half_way(rng.choice([model.backend, backend]))
            with contextlib.suppress(MemoryError):
                model.score([Query(slot, context, start)])
            vars(backend).pop("layers", None)
            vars(model.backend).pop("layers", None)
        elif kind < 0.6 and not isinstance(model, RetrievalModel):
            first, after = model.score_stepwise([Query(slot, context, len(context))], [3])
            rows = [first, *(after([0], [token]) for token in ids(rng, rng.randint(0, 2)))]
            scores.append(torch.cat(rows))
        scores.append(model.score([Query(slot, context, start, tree=tree)]))
        if model in exact:
            fresh = Trunk(backend, [1, 3]).view(model.exit_layer)
            alone = fresh.score([Query(fresh.open(), context, start, tree=tree)])
            wanted.append((step, len(scores) - 1, alone))
    return scores, wanted


def ids(rng, n):
    return [rng.randrange(3, 90) for _ in range(n)]


@pytest.mark.parametrize("trunk_class", [Trunk, CudaGraphTrunk])
@pytest.mark.parametrize("seed", range(4))
def test_any_history_of_forms_leaves_the_target_its_own_scores(path, trunk_class, seed):
    """With trees, forks, rewinds and calls that fail half-way."""
    backend = LeanBackend(from_directory(path), torch.float64)
    unpoisoned, _ = history(backend, trunk_class, seed)
    with poisoned():
        scores, wanted = history(backend, trunk_class, seed)
    for found, other in zip(scores, unpoisoned, strict=True):
        assert torch.equal(found, other)
        assert found.isfinite().all()
    assert len(wanted) > 15
    for step, i, alone in wanted:
        assert (scores[i] - alone).abs().max() < 1e-11, step


@pytest.mark.parametrize(("backend", "form", "first", "second"), all_pairs())
def test_a_pair_of_forms_reads_what_one_of_them_or_the_target_wrote(
    path, plain, forms, backend, form, first, second
):
    hierarchy = built(path, form(forms[first], forms[second]), backend)

    def sampled():
        return [r.token_ids for r in hierarchy.generate_batch(PROMPTS, **SAMPLED)]

    unpoisoned = sampled()
    with poisoned():
        assert sampled() == unpoisoned
        greedy = [r.token_ids for r in hierarchy.generate_batch(PROMPTS, **GREEDY)]
    assert greedy == plain(backend)
