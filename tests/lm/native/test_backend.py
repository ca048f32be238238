"""Models in the compiled kernels: torch's scores, and the same bits whatever is computed beside."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from eagle3_cases import LAYERS, save_drafter
from heads_cases import random_head, rows_of
from kernel_cases import Case, head_scores
from tiny_models import save_tiny, tiny_config
from transformers import AutoModelForCausalLM

from hierspec import Hierarchy
from hierspec.core.context import Context
from hierspec.lm.backend import HiddenStates, LayerParts, Span
from hierspec.lm.base import Query
from hierspec.lm.eagle3 import checkpoint
from hierspec.lm.eagle3.model import Eagle3Model
from hierspec.lm.exit_heads import KINDS
from hierspec.lm.load import load
from hierspec.lm.native import library
from hierspec.lm.native.backend import COPY_FORMS, NativeBackend
from hierspec.lm.native.matrices import PackedMatrix
from hierspec.lm.products import product
from hierspec.lm.trees import Branches
from hierspec.lm.trunk.trunk import Trunk
from hierspec.lm.weights import from_directory
from hierspec.methods.quantized import quantize
from hierspec.sampling.sampler import Sampler
from hierspec.zoo import registry

DTYPES = [torch.float32, torch.bfloat16]
TEXT = torch.randint(3, 90, (60,), generator=torch.Generator().manual_seed(0)).tolist()


pytestmark = pytest.mark.skipif(library.load() is None, reason="no C compiler here")


@pytest.fixture(scope="module", params=["llama", "qwen3", "mistral", "qwen2"])
def path(request, tmp_path_factory):
    """Plain, with norms of heads, with windows, with biases."""
    return save_tiny(request.param, tmp_path_factory.mktemp(request.param) / "m", seed=1)


def scored(trunk: Trunk, steps: list[int], company: int = 0):
    """Scores after every token of the text, which comes in steps of so many tokens; beside it,
    so many other texts."""
    view = trunk.view()
    slots = [view.open() for _ in range(1 + company)]
    rows, at = [], 0
    for n in steps:
        own = Query(slots[0], Context(TEXT[: at + n]), at + 1)
        others = [
            Query(slot, Context(TEXT[i + 1 : i + 2 + at]), at + 1)
            for i, slot in enumerate(slots[1:])
        ]
        found = view.score([*others[: company // 2], own, *others[company // 2 :]])
        first = sum(len(one.context) - one.start + 1 for one in others[: company // 2])
        rows.append(found[first : first + n])
        at += n
    for slot in slots:
        view.close(slot)
    return torch.cat(rows)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_scores_are_the_same_bits_for_any_number_of_rows(path, dtype):
    trunk = Trunk(load(str(path), dtype), exits=[1])
    one_by_one = scored(trunk, [1] * 60)
    for n in range(2, 18):
        steps = [n] * (60 // n) + ([60 % n] if 60 % n else [])
        assert torch.equal(scored(trunk, steps), one_by_one), n
    assert torch.equal(scored(trunk, [60]), one_by_one), "a prompt at once"
    assert torch.equal(scored(trunk, [1, 7, 12, 40], company=3), one_by_one), "in a batch"
    assert torch.equal(scored(trunk, [40, 1, 3, 16], company=6), one_by_one)


def test_the_usual_backend_differs():
    """What the test above would find, in matrices that are large enough."""
    small = registry.resolve("zoo:smollm2-sibling")
    usual = Trunk(load(small, torch.float32, backend="lean"))
    assert not torch.equal(scored(usual, [1] * 60), scored(usual, [12] * 5))
    exact = Trunk(load(small, torch.float32, backend="deterministic"))
    assert torch.equal(scored(exact, [1] * 60), scored(exact, [12] * 5))


def test_scores_are_the_lean_backends(path):
    usual = scored(Trunk(load(str(path), torch.float32, backend="lean")), [60])
    exact = scored(Trunk(load(str(path), torch.float32, backend="deterministic")), [60])
    torch.testing.assert_close(exact, usual, atol=1e-5 * float(usual.abs().max()), rtol=0)


def test_in_bfloat16_they_are_no_farther_from_float32(path, tmp_path):
    """On the same weights, which are rounded in both."""
    rounded = AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16).float()
    rounded.save_pretrained(tmp_path)
    wide = scored(Trunk(load(str(tmp_path), torch.float32, backend="lean")), [60])
    usual, exact = (
        scored(Trunk(load(str(path), torch.bfloat16, backend=backend)), [60]) - wide
        for backend in ("lean", "deterministic")
    )
    assert float(usual.square().mean()) > 0
    assert float(exact.square().mean()) <= float(usual.square().mean())


def scored_by(model, lengths):
    """Scores after the text's first tokens, so many of them, in one call."""
    contexts = [Context(TEXT[:n]) for n in lengths]
    return model.score([Query(model.open(), context, len(context)) for context in contexts])


def run(backend, ids, spans):
    with torch.inference_mode():
        h = backend.layers(backend.embed(ids, spans), 0, backend.num_layers, spans)
        return backend.head(h)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_what_it_computes_is_torchs(path, dtype):
    """Scores, caches, queries, divided layers and other heads; float64 is the judge."""
    exact = load(str(path), torch.float64)
    ours, usual = load(str(path), dtype), load(str(path), dtype, backend="lean")
    assert isinstance(ours, NativeBackend)
    assert not isinstance(usual, NativeBackend)
    ids, parts = torch.tensor(TEXT[:40]), [LayerParts(0, True, False), LayerParts(1, False, True)]

    def all_of(backend):
        cache = backend.new_cache(64)
        run(backend, ids[:33], [Span(cache, 0, 33)])
        spans = [Span(cache, 33, 7)]
        embedded = backend.embed(ids[33:], spans)
        with torch.inference_mode():
            h = backend.layers(embedded, 0, backend.num_layers, spans)
            found = [backend.head(h), cache[..., :40, :], backend.queries(h, 1, spans)]
            found += [
                backend.head(h, product(backend, *backend.unembedding(torch.arange(5)))),
                backend.run_parts(embedded, parts, spans),
            ]
        return [x.double() for x in found]

    for expected, found, other in zip(*map(all_of, (exact, ours, usual)), strict=True):
        error, usual_error = (found - expected).abs().max(), (other - expected).abs().max()
        assert error <= 2 * usual_error + 1e-5 * expected.abs().max()


def test_several_sequences_and_any_number_of_threads(path, monkeypatch):
    backend = load(str(path), torch.bfloat16)
    texts = [torch.tensor(TEXT[i : i + n]) for i, n in enumerate((30, 5, 1))]

    def scores_of(which):
        spans = [Span(backend.new_cache(32), 0, len(texts[i])) for i in which]
        found = run(backend, torch.cat([texts[i] for i in which]), spans)
        return dict(zip(which, found.split([len(texts[i]) for i in which]), strict=True))

    alone = {i: scores_of([i])[i] for i in range(3)}
    for threads in (1, 2, 3, 5):
        monkeypatch.setattr(backend, "_threads", lambda *_, threads=threads: threads)
        for order in ([0, 1, 2], [2, 0, 1]):
            for i, found in scores_of(order).items():
                assert torch.equal(found, alone[i])


@pytest.mark.parametrize("kind", [*KINDS, *(f"{kind} of some tokens" for kind in KINDS), "eagle3"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_heads_and_eagle3(tmp_path, monkeypatch, kind, dtype):
    """Their scores are torch's; and a row's bits the same in any company, on any threads."""
    path, found = save_tiny("llama", tmp_path / "m", seed=1, layers=4), []
    for how in ("lean", "auto"):
        backend = load(path, dtype, backend=how)
        trunk = Trunk(backend, LAYERS)
        if kind == "eagle3":
            drafter = save_drafter(tmp_path / "eagle3", tiny_config("llama", layers=4))
            model = Eagle3Model(trunk, checkpoint.read_network(drafter), LAYERS, kind)
            own = model.layer.model
        else:
            model, own = trunk.view(2, random_head(kind.split()[0], backend, " " in kind)), backend
        found.append(scored_by(model, range(1, 20)))
    error = {torch.float32: 1e-5, torch.bfloat16: 0.05}[dtype]
    usual, ours = (scores.clamp_min(-1e4) for scores in found)
    assert (ours - usual).abs().max() <= error * usual.abs()[usual > -1e4].max()
    assert isinstance(own, NativeBackend)
    for threads in (1, 2, 3):
        for each in (backend, own):
            monkeypatch.setattr(each, "_threads", lambda *_, threads=threads: threads)
        alone = [scored_by(model, [n]) for n in range(1, 20)]
        assert torch.equal(torch.cat(alone), found[1])
        assert torch.equal(rows_of(model, TEXT[:19]), found[1])


@pytest.mark.parametrize("bits", COPY_FORMS)
def test_copies_in_fewer_bits(path, bits):
    """Their layers are torch's on the very weights of the copy, but for the rounding of inputs."""
    backend = load(str(path), torch.float32)
    copied = quantize(backend, bits)
    ids = torch.tensor(TEXT[:20])
    found, scores = (run(b, ids, [Span(b.new_cache(32), 0, 20)]) for b in (copied, backend))
    # Half a step of so many bits, in seven matrices of each of two layers.
    assert (found - scores).abs().mean() <= 12 * 2.0**-bits * scores.std()
    assert copied.num_bytes < backend.num_bytes
    rows = torch.cat(
        [run(copied, ids[: i + 1], [Span(copied.new_cache(32), 0, i + 1)])[-1:] for i in range(20)]
    )
    assert torch.equal(found, rows)


def test_calls_beyond_their_memory_are_refused(tmp_path):
    path = str(save_tiny("llama", tmp_path / "m", seed=1))
    backend = load(path, torch.float32, backend="deterministic")
    ids, layers = torch.tensor(TEXT[:4]), backend.num_layers
    cache, h = backend.new_cache(8).zero_(), backend.embed(ids, [])
    at = [Span(cache, 4, 4)]
    backend.layers(h, 0, layers, at)  # up to the last place

    def run(lo=0, hi=layers, spans=at, outputs=h, first=4, **more):
        backend.run(lo, hi, spans, [HiddenStates(outputs, first)], **more)

    greedy = ([Sampler(vocab_size=90, temperature=0.0)], [()])

    def draft(*counts):
        backend.draft(layers, at, [HiddenStates(h, 4)], TEXT[:4], counts, *greedy)

    own = {"ids": TEXT[:4]}
    run(**own)
    draft(1)
    beyond = [Span(cache, 5, 4)]
    for reason, call in (
        ("5 to 9 of a cache with room for 8", lambda: backend.layers(h, 0, layers, beyond)),
        ("without a cache", lambda: backend.layers(h, 0, layers, [Span(None, 0, 4)])),
        ("layers 0 to 9", lambda: backend.layers(h, 0, 9, at)),
        ("there are 4 to 7", lambda: backend.layers(h[:3], 0, layers, at)),
        ("inputs: rows 4 to 8", lambda: run(1, inputs=[HiddenStates(h[:3], 4)])),
        ("inputs of 3 rows", lambda: backend.layers(h, 0, layers, at, inputs=h[:3])),
        ("outputs: rows 4 to 8, where there are 4 to 7", lambda: run(outputs=h[:3], **own)),
        ("outputs: rows 4 to 8, where there are 5 to 9", lambda: run(first=5, **own)),
        ("3 tokens for spans of 4", lambda: run(ids=TEXT[:3])),
        ("tokens 0 to 100000 of", lambda: backend.embed(torch.tensor([0, 100000]), [])),
        ("score: rows 4 to 5", lambda: run(0, 0, [], scored=[(HiddenStates(h), (4,))])),
        ("outputs: rows 4 to 9", lambda: draft(2)),
    ):
        with pytest.raises(ValueError, match=reason):
            call()


def test_a_head_reads_more_bits_only_near_the_best_score():
    kernels = library.load()
    generator = torch.Generator().manual_seed(3)
    weight = torch.randn(3413, 96, generator=generator) / 8
    weight[::100] *= 4
    x, norm = torch.randn(7, 96, generator=generator), torch.ones(96)
    fine, coarse = PackedMatrix.of(weight, "Q8_0"), PackedMatrix.of(weight, "Q4_1")
    in_8, in_4 = (kernels.multiply(one, x, 1, norm, 1e-5) for one in (fine, coarse))
    tops = F.pad(in_4, (0, -3413 % 16), value=-torch.inf).view(7, -1, 16).amax(2)
    near = torch.full((7, 1), 8.0)
    for _ in range(100):  # where more than one panel of sixteen is near, only the nearest count
        chosen = tops >= tops.amax(1, keepdim=True) - near
        many = (chosen.sum(1, keepdim=True) * 16 > tops.size(1)) & (chosen.sum(1, keepdim=True) > 1)
        near = torch.where(many, near * 0.8, near)
    assert 1 <= int(chosen.sum()) <= 7 * tops.size(1) / 16
    expected = torch.where(chosen.repeat_interleave(16, 1)[:, :3413], in_8, in_4)
    for threads in (1, 3):
        found = head_scores(kernels, x, norm, 1e-5, threads, coarse, fine)
        assert torch.equal(found, expected)
    assert torch.equal(expected.argmax(1), in_8.argmax(1))


@pytest.mark.parametrize("dim", [64, 40])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_caches_in_16_bits(tmp_path, dim, dtype):
    """The scores of attention on keys and values rounded to it, the same bits for any rows."""
    source = from_directory(save_tiny("llama", tmp_path / "m", seed=1, head_dim=dim))
    kernels = library.load()
    wide, half = (
        NativeBackend(source, torch.float32, kernels, kind) for kind in (torch.float32, dtype)
    )
    ids, caches = torch.tensor(TEXT), [wide.new_cache(64), half.new_cache(64)]
    assert caches[1].dtype == dtype
    run(wide, ids[:59], [Span(caches[0], 0, 59)])
    run(half, ids[:59], [Span(caches[1], 0, 59)])
    assert torch.equal(caches[0][0, ..., :59, :].to(dtype), caches[1][0, ..., :59, :])
    caches[0][0, ..., :59, :] = caches[1][0, ..., :59, :]  # rounded keys and values of a layer
    with torch.inference_mode():
        spans = [[Span(cache, 59, 1)] for cache in caches]
        h = wide.embed(ids[59:], spans[0])
        ours, expected = half.layers(h, 0, 1, spans[1]), wide.layers(h, 0, 1, spans[0])
    # Its own key and value are rounded, too; to bfloat16 queries and weights as well.
    limit = 2.5 * torch.finfo(dtype).eps * float(expected.abs().max())
    torch.testing.assert_close(ours, expected, atol=limit, rtol=0)
    one_by_one = half.new_cache(64)
    rows = [run(half, ids[i : i + 1], [Span(one_by_one, i, 1)]) for i in range(60)]
    assert torch.equal(torch.cat(rows), run(half, ids, [Span(half.new_cache(64), 0, 60)]))


def test_float16_caches_hold_its_numbers_to_the_nearest_and_never_infinity(path):
    source, kernels = from_directory(path), library.load()
    wide, half = (
        NativeBackend(source, torch.float32, kernels, kind)
        for kind in (torch.float32, torch.float16)
    )
    h = torch.randn(40, wide.hidden_size, generator=torch.Generator().manual_seed(0))
    caches = []
    for backend in (wide, half):
        norm = backend._layers.weights[0].norm
        norm *= torch.logspace(-9, 7, norm.shape[-1])  # subnormal numbers and too large ones
        caches.append(backend.new_cache(40))
        with torch.inference_mode():
            out = backend.layers(h, 0, 1, [Span(caches[-1], 0, 40)])
        assert out.isfinite().all()
    expected = caches[0][0].clamp(-65504, 65504).half()
    assert (expected.abs() == 65504).any()
    assert torch.equal(caches[1][0], expected)


def test_a_trees_rows_see_their_windows_wherever_these_begin():
    """Keys are added up in blocks of 256; the first row's begin in a later one than the next's."""
    case = Case(5, ("F32",))
    case.windows, case.threads = (5,), 1
    case.shape = replace(case.shape, windows=case.windows)
    branches = Branches(510)
    for node in range(7):
        branches.add_child(node - 1, node)
    branches.add_child(6, 7)
    branches.add_child(-1, 8)
    cache = case.randn(1, 1, 2 * case.shape.num_kv_heads, 519, case.shape.head_dim)
    cache[..., 517:, :] = torch.nan
    case.rotations = torch.polar(torch.ones(518, 1, 48), case.randn(518, 1, 48))
    case.spans, case.ids = [Span(cache, 517, 2, branches)], case.ids[:2]
    case.check(library.load())


def test_large_scores_do_not_overflow(path):
    backend = load(str(path), torch.float32)
    h = torch.full((2, backend.hidden_size), 1e18)
    h[1] = -1e18
    spans = [Span(backend.new_cache(4), 0, 2)]
    with torch.inference_mode():
        assert backend.layers(h, 0, backend.num_layers, spans).isfinite().all()


# --- whole generations


LEVELS = [
    {"method": "prompt_lookup", "num_speculative_tokens": 4, "prompt_lookup_min": 1},
    {"method": "early_exit", "exit_layer": 1, "num_speculative_tokens": 6, "verify": "block"},
]
PROMPTS = [TEXT[:5], TEXT[7:10], TEXT[20:21], TEXT[:40]]


@pytest.mark.parametrize(
    ("dtype", "request_"),
    [("float32", {"temperature": 1.0, "seed": 3}), ("bfloat16", {})],
    ids=["match", "greedy"],
)
def test_text_is_plain_decodings_to_the_last_token(path, dtype, request_):
    top = {"target": {"model": str(path), "dtype": dtype}, "deterministic": True, "verify": "match"}
    options = {"max_new_tokens": 32, "ignore_eos": True, **request_}
    plain = Hierarchy.from_config(top)
    expected = [plain.generate(prompt, **options).token_ids for prompt in PROMPTS]
    hierarchy = Hierarchy.from_config({**top, "levels": LEVELS})
    assert [hierarchy.generate(p, **options).token_ids for p in PROMPTS] == expected
    batch = [r.token_ids for r in hierarchy.generate_batch(PROMPTS, **options)]
    assert batch[0] == expected[0]
    if not request_:
        assert batch == expected, "when sampling, a sequence's number is part of its seed"


def test_files_keep_their_form(path):
    from hierspec.config.schema import HierarchyConfig

    config = HierarchyConfig.from_dict({"target": str(path), "deterministic": True})
    assert config.to_dict() == {"target": {"model": str(path)}, "levels": [], "deterministic": True}
    assert "deterministic" not in HierarchyConfig.from_dict({"target": "t"}).to_dict()


def test_refusals(tmp_path, path):
    def build(model, **target):
        Hierarchy.from_config({"target": {"model": str(model), **target}, "deterministic": True})

    with pytest.raises(ValueError, match="leave out backend"):
        build(path, backend="hf")
    with pytest.raises(ValueError, match="its weights are in float64"):
        build(path, dtype="float64")
    other = save_tiny("gpt2", tmp_path / "gpt2", seed=1)
    with pytest.raises(ValueError, match=r"a Llama-shaped model in the compiled kernels, .* leave"):
        build(other)
    with pytest.raises(ValueError, match="deterministic must be true or false"):
        Hierarchy.from_config({"target": str(path), "deterministic": 1})
