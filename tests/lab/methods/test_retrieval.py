"""The target on a part of its own cache, against attention written out."""

from __future__ import annotations

import math

import pytest
import torch
from loading import hierarchy_of
from tiny_models import save_tiny

from hierspec import Hierarchy, HierspecError
from hierspec.core.context import Context
from hierspec.lm.base import Query
from hierspec.lm.lean import decoder as lean_decoder
from hierspec.lm.lean.decoder import LeanBackend
from hierspec.lm.load import load
from hierspec.lm.native import library
from hierspec.lm.native.backend import NativeBackend
from hierspec.lm.trunk.trunk import Trunk
from hierspec.lm.weights import from_directory
from hierspec_lab.methods.retrieval.model import RetrievalModel

V, LENGTH, BUDGET, CHUNK = 61, 90, 40, 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("tiny")
    save_tiny("llama", path, seed=5, layers=3, vocab_size=V)
    return path


@pytest.fixture(scope="module", params=["lean", "bit-exact"])
def backend(folder, request):
    if request.param == "lean":
        return LeanBackend(from_directory(folder), torch.float64)
    kernels = library.load()
    if kernels is None:
        pytest.skip("no C compiler here")
    return NativeBackend(from_directory(folder), torch.float32, kernels)


def ids(length: int, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, V, (length,), generator=generator).tolist()


def scores(model, slot, committed, pending=(), rows=1):
    context = Context(committed, tuple(pending))
    return model.score([Query(slot, context, len(context) - rows + 1)])


def written_out(folder, text: list[int], base: int) -> torch.Tensor:
    """The scores after ``text`` [V], whose tokens from ``base`` on attend to what the token at
    ``base`` chose of those before: with the library's own modules, a layer after the other."""
    from transformers import AutoModelForCausalLM
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    whole = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)
    assert not isinstance(whole, tuple)
    model = whole.model
    with torch.inference_mode():
        h = model.embed_tokens(torch.tensor([text]))  # the target's own, everything seen
        own = h[:, base:]
        cos, sin = model.rotary_emb(h, torch.arange(len(text))[None])
        for layer in model.layers:
            attention = layer.self_attn
            keys, values = [], []
            for x, first in ((h, 0), (own, base)):
                normed = layer.input_layernorm(x)
                shape = (1, x.shape[1], -1, attention.head_dim)
                q, k, v = (
                    p(normed).view(shape).transpose(1, 2)
                    for p in (attention.q_proj, attention.k_proj, attention.v_proj)
                )
                q, k = apply_rotary_pos_emb(q, k, cos[:, first:], sin[:, first:])
                groups = q.shape[1] // k.shape[1]
                if first == 0:
                    keys, values = k[0], v[0]
                    full = torch.ones(len(text), len(text)).tril().bool()
                    rows = attend(q[0], k[0], v[0], groups, full)
                    h = h + attention.o_proj(rows)
                    h = h + layer.mlp(layer.post_attention_layernorm(h))
                    continue
                count = base // CHUNK
                ragged = base - count * CHUNK
                kept = min(count, (BUDGET - ragged) // CHUNK)
                out = []
                for head in range(k.shape[1]):
                    asked = q[0, head * groups : (head + 1) * groups, 0].sum(0)
                    means = keys[head, : count * CHUNK].view(count, CHUNK, -1).mean(1)
                    weight = means @ asked
                    weight[0] = math.inf
                    chosen = {int(i) for i in weight.topk(kept).indices}
                    at = [i for i in range(base) if i // CHUNK in chosen or i >= count * CHUNK]
                    k_h = torch.cat((keys[head, at], k[0, head]))
                    v_h = torch.cat((values[head, at], v[0, head]))
                    mask = torch.ones(x.shape[1], len(k_h)).tril(len(at)).bool()
                    mine = q[0, head * groups : (head + 1) * groups]
                    out.append(attend(mine, k_h[None], v_h[None], groups, mask))
                own = own + attention.o_proj(torch.cat(out, -1))
                own = own + layer.mlp(layer.post_attention_layernorm(own))
        return whole.lm_head(model.norm(own))[0, -1]


def attend(q, k, v, groups, mask):
    """q [H, n, D], k and v [H_kv, m, D] → [n, H·D]."""
    k, v = k.repeat_interleave(groups, 0), v.repeat_interleave(groups, 0)
    weight = (q @ k.transpose(1, 2)) / math.sqrt(q.shape[2])
    weight = weight.masked_fill(~mask, -math.inf).softmax(-1)
    return (weight @ v).transpose(0, 1).flatten(1)


def test_caches_in_fewer_bits_than_the_queries(folder):
    kernels = library.load()
    if kernels is None:
        pytest.skip("no C compiler here")
    source, found = from_directory(folder), list[torch.Tensor]()
    for dtype in (torch.float32, torch.bfloat16):
        trunk = Trunk(NativeBackend(source, torch.float32, kernels, dtype))
        model = RetrievalModel(trunk, BUDGET, CHUNK)
        found.append(scores(model, trunk.open(), ids(LENGTH), (3, 5))[0])
    torch.testing.assert_close(found[1], found[0], atol=0.1 * float(found[0].std()), rtol=0.0)


@pytest.mark.parametrize("length", [LENGTH, LENGTH + 3])
def test_it_attends_to_what_the_last_token_chooses(folder, backend, length):
    trunk = Trunk(backend)
    model = RetrievalModel(trunk, BUDGET, CHUNK)
    text = ids(length)
    slot = trunk.open()
    trunk.view().score([Query(slot, Context(text), len(text))])
    found = scores(model, slot, text, (3, 5))[0]
    expected = written_out(folder, [*text, 3, 5], length - 1)
    # The library rounds its norms to float32 even here.
    torch.testing.assert_close(found.double(), expected, atol=1e-5, rtol=0.0)
    whole = trunk.view().score([Query(trunk.open(), Context([*text, 3, 5]), length + 2)])[0]
    assert not torch.allclose(found, whole, atol=1e-3)


def test_positions_are_the_texts_not_those_of_what_is_stored(folder, backend, monkeypatch):
    """A table of rotations that ends with the text must grow for a draft stored far before."""
    monkeypatch.setattr(lean_decoder, "_INITIAL_LENGTH", 1)
    own = load(str(folder), backend.weight_dtype)
    text = ids(64)  # a power of two: the table ends here
    found = []
    for one in (backend, own):
        trunk = Trunk(one)
        slot = trunk.open()
        trunk.view().score([Query(slot, Context(text), len(text))])
        found.append(scores(RetrievalModel(trunk, BUDGET, CHUNK), slot, text, (3, 5)))
    assert torch.equal(*found)


def test_a_short_text_is_attended_to_whole(backend):
    trunk = Trunk(backend)
    model, target = RetrievalModel(trunk, 64, CHUNK), trunk.view()
    text = ids(30)
    found = scores(model, trunk.open(), text, (1, 2, 3), rows=4)
    torch.testing.assert_close(found, scores(target, trunk.open(), text, (1, 2, 3), rows=4))


def test_rows_are_the_same_however_they_are_asked_for(backend):
    trunk = Trunk(backend)
    text, more = ids(LENGTH), (7, 8, 9)
    asked = RetrievalModel(trunk, BUDGET, CHUNK)
    slot = trunk.open()
    together = scores(asked, slot, text, more, rows=4)
    one = RetrievalModel(trunk, BUDGET, CHUNK)
    other = trunk.open()
    for i in range(4):
        torch.testing.assert_close(scores(one, other, text, more[:i])[0], together[i])
    # Another draft of the same place, then the first again.
    scores(one, other, text, (1, 1, 1, 1))
    torch.testing.assert_close(scores(one, other, text, more)[0], together[3])


def test_sequences_do_not_see_each_other(backend):
    trunk = Trunk(backend)
    model = RetrievalModel(trunk, BUDGET, CHUNK)
    texts = [ids(LENGTH, 1), ids(17, 2), ids(70, 3)]
    alone = [scores(model, trunk.open(), text, (4,))[0] for text in texts]
    queries = [Query(trunk.open(), Context(text, (4,)), len(text) + 1) for text in texts]
    for own, expected in zip(model.score(queries), alone, strict=True):
        torch.testing.assert_close(own, expected)


def test_it_chooses_anew_as_the_text_grows_and_after_a_rewind(backend):
    trunk = Trunk(backend)
    model = RetrievalModel(trunk, BUDGET, CHUNK, refresh=8)
    slot, text = trunk.open(), ids(LENGTH)
    for _ in range(20):
        scores(model, slot, text, (1,))
        text = [*text, 5]
    assert model.choices == 3
    trunk.rewind(slot, 50)
    fresh = RetrievalModel(trunk, BUDGET, CHUNK)
    found = scores(model, slot, text[:60], (2,))
    torch.testing.assert_close(found, scores(fresh, trunk.open(), text[:60], (2,)))


def test_a_forked_slot_chooses_for_itself(backend):
    trunk = Trunk(backend)
    model = RetrievalModel(trunk, BUDGET, CHUNK)
    slot, text = trunk.open(), ids(LENGTH)
    expected = scores(model, slot, text, (1,))
    fork = trunk.fork(slot, LENGTH - 20)
    torch.testing.assert_close(scores(model, fork, text, (1,)), expected)


def test_a_text_that_is_too_long_is_refused(backend):
    trunk = Trunk(backend)
    model = RetrievalModel(trunk, BUDGET, CHUNK)
    with pytest.raises(HierspecError, match="exceed the longest context"):
        scores(model, trunk.open(), ids(backend.max_length + 1))


# --- in a hierarchy

LONG = "def add(a, b):\n    return a + b\n\n\n" * 12 + "def sub(a, b):\n"
TARGET = {"model": "zoo:trunk", "dtype": "float32"}
LEVEL = {"method": "retrieval", "budget": 64, "num_speculative_tokens": 6}
LOOK_UP = {"method": "prompt_lookup", "num_speculative_tokens": 3}


@pytest.mark.parametrize(
    "levels",
    [[LEVEL], [LOOK_UP, {**LEVEL, "verify": "block"}], [{**LEVEL, "refresh": 2, "chunk_size": 4}]],
)
def test_greedy_texts_are_plain_decodings(levels):
    prompts = [LONG, "x = 1\n"]
    fast = hierarchy_of({"target": TARGET, "levels": levels, "verify": "block"})
    plain = hierarchy_of({"target": TARGET, "levels": []})
    found = fast.generate_batch(prompts, max_new_tokens=24)
    assert [r.token_ids for r in found] == [
        r.token_ids for r in plain.generate_batch(prompts, max_new_tokens=24)
    ]
    assert found[1].mean_acceptance_length > 3  # all of a short text is in the budget


def test_a_seed_says_the_same_alone_and_among_others():
    hierarchy = hierarchy_of({"target": TARGET, "levels": [LEVEL], "verify": "block"})
    options = {"max_new_tokens": 16, "temperature": 1.0, "seed": 4}
    alone = hierarchy.generate(LONG, **options)
    many = hierarchy.generate_batch([LONG, "import os\n"], **options)
    assert many[0].token_ids == alone.token_ids


@pytest.mark.parametrize(
    ("target", "level", "why"),
    [
        ({**TARGET, "backend": "hf"}, LEVEL, "lean backend"),
        (TARGET, {**LEVEL, "budget": 16, "chunk_size": 9}, "fewer than two chunks"),
        (TARGET, {**LEVEL, "budget": 8}, "at least 16"),
    ],
)
def test_where_it_cannot_stand(target, level, why):
    with pytest.raises(HierspecError, match=why):
        Hierarchy.from_config({"target": target, "levels": [level]})


def test_a_sliding_window_leaves_nothing_to_choose(folder):
    backend = LeanBackend(from_directory(folder), torch.float32)
    backend.attends_to_all = False
    with pytest.raises(HierspecError, match="sliding window"):
        RetrievalModel(Trunk(backend), 64)
