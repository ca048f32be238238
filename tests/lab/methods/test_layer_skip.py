"""Attentions and MLPs left out: what is left, on every backend, and on the target's own cache."""

from __future__ import annotations

import random

import pytest
import torch
from fakes.models import Ledger, ToyBackend
from loading import hierarchy_of
from tiny_models import save_tiny, tiny_model
from work import Work

from hierspec.core.context import Context
from hierspec.errors import HierspecError
from hierspec.lm.base import Query
from hierspec.lm.load import load
from hierspec.lm.trunk.self_draft import SelfDraft
from hierspec.lm.trunk.trunk import Trunk
from hierspec_lab.methods.layer_skip.skipping import (
    Skip,
    SkippingBackend,
    contiguous_ranges,
    evenly_spaced_layers,
    evenly_spaced_parts,
)
from hierspec_lab.methods.layer_skip.varying import RecentTokens, VaryingSkip

IDS = [3, 9, 27, 81, 51, 61, 91, 81]
SKIP = Skip((1, 2), (2, 3))
VOCAB = ToyBackend.vocab_size
ATTENTION = {"gpt2": "attn", "gpt_neox": "attention", "falcon": "self_attention"}


def silenced(family: str):
    """The library's own model, whose skipped parts add nothing."""
    model = tiny_model(family, seed=3, layers=5)
    layers = getattr(model.get_decoder(), "layers", None) or model.get_decoder().h

    def nothing(module, arguments, output):
        if isinstance(output, tuple):
            return (torch.zeros_like(output[0]), *output[1:])
        return torch.zeros_like(output)

    for i in SKIP.attention:
        getattr(layers[i], ATTENTION.get(family, "self_attn")).register_forward_hook(nothing)
    for i in SKIP.mlp:
        layers[i].mlp.register_forward_hook(nothing)
    return model


@pytest.mark.parametrize(
    ("family", "backend"),
    [
        ("llama", "lean"),
        ("llama", "hf"),
        ("qwen3", "lean"),
        *((family, "hf") for family in ("gemma2", "gpt2", "gpt_neox", "falcon")),
    ],
)
def test_parts_left_out_add_nothing(tmp_path, family, backend):
    """Beside another sequence, and in two bites."""
    whole = load(
        save_tiny(family, tmp_path / "m", seed=3, layers=5), torch.float64, backend=backend
    )
    with torch.no_grad():
        want = silenced(family)(torch.tensor([IDS]), use_cache=False).logits[0]
    view = Trunk(SkippingBackend(whole, SKIP)).view()
    slot, other = view.open(), view.open()
    first = view.score([Query(slot, Context(IDS[:5]), 1), Query(other, Context(IDS[3:]), 5)])
    rest = view.score([Query(slot, Context(IDS[:5], tuple(IDS[5:])), 6)])
    found = torch.cat([first[:5], rest])
    # The lean forward keeps rotary angles in float64, the library in float32; Gemma's norms are
    # float32 in the library, and round by the shape of the call.
    exact = backend == "hf" and family != "gemma2"
    assert (found - want).abs().max() < (1e-11 if exact else 1e-5)
    assert view.name.endswith("~3/5")


@pytest.mark.parametrize(("family", "says"), [("bloom", "divided"), ("opt", "divided")])
def test_layers_that_cannot_be_divided_are_refused(tmp_path, family, says):
    whole = load(save_tiny(family, tmp_path / "m", seed=3, layers=5), torch.float64)
    SkippingBackend(whole, [1])
    with pytest.raises(HierspecError, match=says):
        SkippingBackend(whole, SKIP)


@pytest.mark.parametrize(
    ("skip", "says"),
    [
        (Skip((), ()), "skips nothing"),
        (Skip((5,), ()), "skip_attention must name layers 0 to 4"),
        (Skip((), (1, 1)), "skip_mlp must name layers 0 to 4 of .*, each once"),
        (Skip.whole_layers(range(5)), "leaves no layer"),
    ],
)
def test_mistakes(tmp_path, skip, says):
    whole = load(save_tiny("llama", tmp_path / "m", seed=3, layers=5), torch.float64)
    with pytest.raises(HierspecError, match=says):
        SkippingBackend(whole, skip)


def test_a_share_of_all_parts():
    assert evenly_spaced_parts(0.45, 10) == Skip((1, 3, 5, 7), (1, 3, 6))
    for depth in range(3, 20):
        for share in (0.01, 0.3, 0.45, 0.99):
            found = evenly_spaced_parts(share, depth)
            parts = 2 * (depth - 2)
            assert sum(map(len, found)) == min(max(1, int(parts * share)), parts)
            assert {*found.attention, *found.mlp} <= set(range(1, depth - 1))


@pytest.fixture(params=["lean", "hf"])
def target(request, tmp_path):
    path = save_tiny("llama", tmp_path / "m", seed=3, layers=5)
    return load(path, torch.float64, backend=request.param)


def from_scratch(backend, committed, pending, seen):
    """Scores after the text: the target up to ``seen`` tokens, then what is left of it."""
    from hierspec.lm.backend import Span

    cache = backend.new_cache(64)
    ids = torch.tensor([*committed, *pending])
    span = Span(cache, 0, seen)
    backend.layers(backend.embed(ids[:seen], [span]), 0, 5, [span])
    rest = Span(cache, seen, len(ids) - seen)
    left = SkippingBackend(backend, SKIP)
    h = left.layers(left.embed(ids[seen:], [rest]), 0, 5, [rest])
    return left.head(h)


def test_drafts_read_what_the_target_has_computed(target):
    trunk = Trunk(target)
    draft, view = SelfDraft(trunk, SkippingBackend(target, SKIP)), trunk.view()
    slot = trunk.open()
    plain = view.score([Query(slot, Context(IDS), 1)])
    context = Context([*IDS, 7], (5, 9))
    found = draft.score([Query(slot, context, len(context))])
    with torch.inference_mode():
        want = from_scratch(target, [*IDS, 7], (5, 9), len(IDS))[-1:]
    assert (found - want).abs().max() < 1e-11
    assert torch.equal(view.score([Query(slot, Context(IDS), 1)]), plain)


def test_sequences_that_leave_out_different_parts_share_calls(target):
    """Rows are those of each alone; continued drafts, too."""
    trunk = Trunk(target)
    model = VaryingSkip(trunk, SKIP, "varying")
    choices = [SKIP, Skip((3,), ()), SKIP]
    texts = [IDS, IDS[2:], [5, 6, 7]]

    def drafted(numbers):
        slots = [trunk.open() for _ in numbers]
        queries = []
        for i, slot in zip(numbers, slots, strict=True):
            trunk.view().score([Query(slot, Context(texts[i][:-1]), 1)])
            if choices[i] != SKIP:  # what it begins with
                model.choose(slot, choices[i], len(texts[i]))
            queries.append(Query(slot, Context(texts[i]), len(texts[i])))
        scores, after = model.score_stepwise(queries, [3] * len(numbers))
        rows = [scores, after(range(len(numbers)), [4] * len(numbers))]
        rows.append(after([len(numbers) - 1], [8]))
        asked = model.score([Query(q.slot, Context(texts[i], (4,)), len(texts[i]))
                             for i, q in zip(numbers, queries, strict=True)])  # fmt: skip
        return rows, asked

    rows, asked = drafted([0, 1, 2])
    for i in range(3):
        alone, own = drafted([i])
        for a, b in zip(alone[:2], rows, strict=False):
            assert (a[0] - b[i]).abs().max() < 1e-11
        assert (asked[2 * i : 2 * i + 2] - own).abs().max() < 1e-11
        if i == 2:
            assert (alone[2] - rows[2]).abs().max() < 1e-11
    assert (rows[0][0] - rows[0][1]).abs().max() > 1e-3


def test_matches_are_those_of_one_token_after_another(target):
    trunk = Trunk(target)
    model, view = VaryingSkip(trunk, SKIP, "varying"), trunk.view()
    texts = [[*IDS, 3, 9, 11, 27], [*IDS[::-1], 60, 2]]
    for text in texts:  # half of what is written is what would have been drafted
        first = len(text) - 4
        for place in (first, first + 2):
            with torch.inference_mode():
                rows = from_scratch(target, text[:place], (), first - 1)
            text[place] = int(rows[-1].argmax())
    slots = [trunk.open() for _ in texts]
    for slot, text in zip(slots, texts, strict=True):
        view.score([Query(slot, Context(text[:-1]), 1)])
    before = [view.score([Query(s, Context(t), 2)]) for s, t in zip(slots, texts, strict=True)]
    lengths = [(slot.state.lengths, slot.state.drafted) for slot in slots]
    written = [
        RecentTokens(slot, text, len(text) - 4) for slot, text in zip(slots, texts, strict=True)
    ]
    wanted = []
    for text in texts:
        first = len(text) - 4
        with torch.inference_mode():
            rows = from_scratch(target, text[:-1], (), first - 1)
        same = [int(row.argmax()) == token for row, token in zip(rows, text[first:], strict=True)]
        wanted.append(sum(same) / 4)
    assert model.measure_matches(written, SKIP) == wanted
    assert min(wanted) >= 0.5
    assert [(slot.state.lengths, slot.state.drafted) for slot in slots] == lengths
    for slot, text, rows in zip(slots, texts, before, strict=True):
        assert torch.equal(view.score([Query(slot, Context(text), 2)]), rows)


@pytest.mark.parametrize("backend", ["hf", "lean"])
@pytest.mark.parametrize("skip", [(1,), (0, 2), (1, 2, 4)])
def test_skipping_is_the_model_with_those_layers_taken_out(tmp_path, backend, skip):
    path = save_tiny("llama", tmp_path / "m", seed=3, layers=5)
    backend_of_all = load(path, dtype=torch.float64, backend=backend)
    model = tiny_model("llama", seed=3, layers=5)
    kept = [layer for i, layer in enumerate(model.model.layers) if i not in skip]
    model.model.layers = torch.nn.ModuleList(kept)
    ids = [3, 9, 27, 81, 51, 61, 91, 81]
    with torch.no_grad():
        want = model(torch.tensor([ids]), use_cache=False).logits[0]
    view = Trunk(SkippingBackend(backend_of_all, skip)).view()
    slot = view.open()
    first = view.score([Query(slot, Context(ids[:5]), 1)])
    rest = view.score([Query(slot, Context(ids[:5], tuple(ids[5:])), 6)])
    # The lean forward keeps rotary angles in float64, the library in float32.
    assert (torch.cat([first, rest]) - want).abs().max() < (1e-12 if backend == "hf" else 1e-5)


@pytest.mark.parametrize("seed", range(4))
def test_skipped_paths_rewind_and_grow_like_any_model(seed, monkeypatch):
    monkeypatch.setattr("hierspec.lm.trunk.slots._FIRST_CAPACITY_ON_CPU", 256)
    rng = random.Random(seed)
    trunk = Trunk(SkippingBackend(ToyBackend(), (1, 2, 4)))
    trunk.chunk = rng.choice([4, 512])
    done, view, slot = Work(trunk), trunk.view(), trunk.open()
    committed, pending, ledger = [1, 2], (), Ledger(1)
    for step in range(50):
        pending = (*pending[: rng.randint(0, len(pending))], rng.randrange(VOCAB))
        if rng.random() < 0.3 or step == 30:
            committed += [*pending, *[step % VOCAB] * (300 if step == 30 else 0)]
            pending = ()
        context = Context(committed, pending)
        other = Trunk(SkippingBackend(ToyBackend(), (1, 2, 4))).view()
        want = other.score([Query(other.open(), context, len(context))])
        assert (view.score([Query(slot, context, len(context))]) - want).abs().max() < 1e-12
        ledger.ask(list(context), 0)
    assert done.tokens == ledger.work


def test_skipping_shares_the_targets_weights_and_cache(tiny_family):
    first = {"method": "layer_skip", "skip_layers": [1], "num_speculative_tokens": 3}
    again = {**first, "num_speculative_tokens": 5, "verify": "block"}
    other = {**again, "skip_layers": [0], "num_speculative_tokens": 7}
    target = {"model": tiny_family["target"], "dtype": "float64"}
    root = hierarchy_of({"target": target, "levels": [first, again, other]}).root
    top, mid, low = root.below, root.below.below, root.below.below.below
    for node in (top, mid, low):
        assert node.model.backend.backend is root.model.trunk.backend
        assert node.model.cache_owner is root.model.cache_owner
    assert low.model is mid.model
    assert top.model is not mid.model
    assert low.name.endswith("~2/3")


def test_layers_of_a_share():
    assert evenly_spaced_layers(0.45, 16) == (1, 3, 5, 7, 9, 11, 13)
    assert evenly_spaced_layers(0.45, 8) == (1, 2, 4, 5)
    assert evenly_spaced_layers(0.99, 5) == (1, 2, 3)
    assert evenly_spaced_layers(0.01, 9) == (1,)
    for depth in range(3, 40):
        for share in (0.1, 0.3, 0.45, 0.8):
            found = evenly_spaced_layers(share, depth)
            assert set(found) <= set(range(1, depth - 1))
            assert len(set(found)) == min(max(1, round(share * depth)), depth - 2)
    assert contiguous_ranges([0, 1, 4, 6, 7, 8]) == [(0, 2), (4, 5), (6, 9)]
