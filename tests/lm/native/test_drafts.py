"""Drafts that the kernels make in one call: what single steps draft, to the last bit."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from following import drafted
from loading import hierarchy_of
from safetensors.torch import load_file, save_file
from tiny_models import save_tiny

from hierspec import HierspecError
from hierspec.core.context import Context
from hierspec.core.distributions import draw
from hierspec.engine.generation import Generation
from hierspec.engine.request import Request
from hierspec.engine.stopping import StopConditions
from hierspec.lm.base import Query
from hierspec.lm.load import load
from hierspec.lm.native import library
from hierspec.lm.native.backend import NativeBackend
from hierspec.lm.trunk.self_draft import SelfDraft
from hierspec.lm.trunk.trunk import Trunk
from hierspec.methods.quantized import quantize
from hierspec.sampling.parameters import SamplingParams
from hierspec.sampling.sampler import NoDistributionError, Sampler

pytestmark = pytest.mark.skipif(library.load() is None, reason="no C compiler here")

GREEDY = Sampler(vocab_size=90, temperature=0.0)  # of a target whose vocabulary is smaller
DRAWN = replace(GREEDY, temperature=1.3)
TRUNCATED = replace(DRAWN, top_k=20, top_p=0.9, min_p=0.01)
ROUNDED = 1e-5  # relative: e^x of an x down to −87 that is rounded to float32
FORMS = {"whole": None, "exit": 1, "8 bits": 8, "5 bits": 5, "4 bits": 4}


@pytest.fixture(scope="module", params=["llama", "qwen3", "mistral"])
def path(request, tmp_path_factory):
    """Plain, with norms of heads, with windows."""
    return save_tiny(request.param, tmp_path_factory.mktemp(request.param) / "m", seed=1)


@pytest.fixture
def calls(monkeypatch):
    """The kernels' calls, of any model."""
    made = list[int]()
    run = NativeBackend.draft

    def counted(self, *args):
        made.append(1)
        return run(self, *args)

    monkeypatch.setattr(NativeBackend, "draft", counted)
    return made


def model_of(backend, form, chunk=512):
    """A drafting model, and the target on its trunk."""
    trunk = Trunk(backend, [1] if form == "exit" else [])
    trunk.chunk = chunk
    if form in ("whole", "exit"):
        return trunk.view(FORMS[form]), trunk.view()
    return SelfDraft(trunk, quantize(backend, FORMS[form])), trunk.view()


def cached(slot):
    """What a slot holds, and its keys, values and states where it says that they are there."""
    state = slot.state
    layers = [state.cache[i, ..., : max(n, 0), :] for i, n in enumerate(readable(state))]
    states = [rows[:n] for rows, n in zip(state.outputs, state.lengths, strict=True)]
    return slot.tokens, state.lengths, state.drafted, [*layers, *states]


def readable(state):
    return [max(n, state.lengths[-1]) for n in state.drafted]


def assert_same(one, other):
    *numbers, tensors = cached(one)
    *expected, others = cached(other)
    assert numbers == expected
    assert all(torch.equal(a, b) for a, b in zip(tensors, others, strict=True))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("dtype", "sampler"),
    [
        (torch.float32, GREEDY),
        (torch.bfloat16, GREEDY),
        (torch.bfloat16, DRAWN),
        (torch.bfloat16, TRUNCATED),
    ],
    ids=str,
)
def test_drafts_are_those_of_single_steps(path, dtype, form, sampler):
    """Some texts side by side, drafted on, checked by the target, and rewound in between."""
    rng, backend = random.Random(form), load(str(path), dtype)
    (model, target), (slow, slow_target) = (model_of(backend, form, 24) for _ in range(2))
    assert model.drafts_in_one_call
    texts = [[rng.randrange(3, 90) for _ in range(n)] for n in (1, 7, 30)]
    slots = [(model.open(), slow.open()) for _ in texts]
    for _ in range(8):
        some = rng.sample(range(3), rng.randint(1, 3))
        counts = [rng.randint(1, 6) for _ in some]

        def queries(side, rows=1, some=some):
            contexts = [Context(texts[i]) for i in some]
            return [
                Query(slots[i][side], context, len(context) - rows + 1)
                for i, context in zip(some, contexts, strict=True)
            ]

        uniforms = [[rng.random() for _ in range(n)] for n in counts]
        found = model.draft(queries(0), counts, [sampler] * len(some), uniforms)
        with torch.inference_mode():
            scores, after = slow.score_stepwise(queries(1), counts)
            expected = drafted(scores, after, counts, sampler, uniforms)
        assert (found.tokens, found.calls) == (expected.tokens, expected.calls)
        if sampler.greedy:
            assert [[*row.ids] for row in found.distributions] == found.tokens
        for rows, others in zip(found.distributions, expected.distributions, strict=True):
            torch.testing.assert_close(rows.dense(90), others.dense(90), rtol=ROUNDED, atol=0.0)
        for i in some:
            assert_same(*slots[i])
        for i, draft in zip(some, found.tokens, strict=True):
            num_kept = rng.randint(0, len(draft))
            texts[i] += [*draft[:num_kept], rng.randrange(3, 90)]
            if rng.random() < 0.2:
                del texts[i][rng.randint(1, len(texts[i])) :]
        if rng.random() < 0.7:
            assert torch.equal(target.score(queries(0)), slow_target.score(queries(1)))
            for i in some:
                assert_same(*slots[i])


@pytest.mark.parametrize("num_ids", [90, 40, 3])
@pytest.mark.parametrize("part", [1, 2])
def test_of_equal_scores_the_lowest_id_is_taken(tmp_path, part, num_ids):
    """A token's scores are those of every seventh after it; no id past the target's is taken; the
    head has all tokens, or every second."""
    path = save_tiny("llama", tmp_path / "m", seed=1, tie_word_embeddings=False)
    tensors = load_file(path / "model.safetensors")
    head = tensors["lm_head.weight"]
    ids = torch.arange(0, len(head), part)
    tensors |= {"lm_head.weight": head[ids % 7].contiguous(), "lm_head.scored": ids}
    if part == 1:
        del tensors["lm_head.scored"]
    save_file(tensors, path / "model.safetensors", {"format": "pt"})
    model, sampler = (
        Trunk(load(str(path), torch.float32)).view(),
        replace(GREEDY, vocab_size=num_ids),
    )
    query = Query(model.open(), Context([5, 9, 7]), 3)
    (found,) = model.draft([query], [20], [sampler], [()]).tokens
    with torch.inference_mode():
        expected = drafted(*model.score_stepwise([query], [20]), [20], sampler, ())
    assert found == expected.tokens[0]
    assert set(found) <= set(range(0, min(7 * part, num_ids), part))


@pytest.mark.parametrize("num_ids", [90, 40, 3])
def test_a_head_with_part_of_the_vocabulary_draws_from_that_part(tmp_path, num_ids):
    path = save_tiny("llama", tmp_path / "m", seed=1, tie_word_embeddings=False)
    tensors = load_file(path / "model.safetensors")
    ids = torch.arange(0, len(tensors["lm_head.weight"]), 2)
    tensors |= {"lm_head.weight": tensors["lm_head.weight"][ids] * 30, "lm_head.scored": ids}
    save_file(tensors, path / "model.safetensors", {"format": "pt"})
    model = Trunk(load(str(path), torch.float32)).view()
    sampler, rng = replace(DRAWN, vocab_size=num_ids), random.Random(num_ids)
    query, uniforms = Query(model.open(), Context([5, 9, 7]), 3), [rng.random() for _ in range(40)]
    found = model.draft([query], [40], [sampler], [uniforms])
    with torch.inference_mode():
        expected = drafted(*model.score_stepwise([query], [40]), [40], sampler, [uniforms])
    assert found.tokens == expected.tokens
    assert {token % 2 for token in found.tokens[0]} == {0}
    (rows,), (others,) = found.distributions, expected.distributions
    assert rows.width == num_ids
    torch.testing.assert_close(rows.dense(num_ids), others.dense(num_ids), rtol=ROUNDED, atol=1e-37)


@pytest.mark.parametrize("scale", [1.0, 3e4])
def test_draws_are_those_of_the_probabilities_at_any_number_of_threads(tmp_path, scale):
    """Over a vocabulary of many stretches, the last of them short; scaled, most have no mass."""
    path = save_tiny("llama", tmp_path / "m", seed=1, vocab_size=1013)
    backend = load(str(path), torch.float32)
    sampler, counts, rng = Sampler(1013, temperature=1.0 / scale), [7, 30, 1], random.Random(0)
    uniforms = [[rng.choice((0.0, rng.random(), 1 - 2**-53)) for _ in range(n)] for n in counts]
    found = list[tuple[list[list[int]], list[torch.Tensor]]]()
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        model = Trunk(backend).view()
        queries = [Query(model.open(), Context(text), len(text)) for text in ([5], [9, 7], [11])]
        drafts = model.draft(queries, counts, [sampler] * 3, uniforms)
        rows = [own.dense(1013) for own in drafts.distributions]
        assert drafts.tokens == [draw(*each) for each in zip(rows, uniforms, strict=True)]
        assert all(torch.allclose(own.sum(1), torch.ones(len(own)), atol=1e-6) for own in rows)
        found.append((drafts.tokens, rows))
    assert found[0][0] == found[1][0] == found[2][0]
    for rows in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(rows[1], found[0][1], strict=True))


@pytest.mark.parametrize("drafter", ["quantized", "early_exit", "draft_model"])
def test_greedy_and_drawn_requests_draft_in_one_call(path, calls, drafter):
    options = {"quantized": {"bits": 4}, "early_exit": {"exit_layer": 1}}
    level = {
        "method": drafter,
        "num_speculative_tokens": 5,
        **options.get(drafter, {"model": str(path)}),
    }
    level_of_window = {**level, "window": {"kind": "entropy", "threshold": 9.0}}
    prompts = [[5, 9, 7], [11, 4, 4, 30, 8]]
    request = {"max_new_tokens": 14, "ignore_eos": True}

    def built(*levels):
        target = {"model": str(path), "dtype": "float32"}
        return hierarchy_of({"target": target, "levels": list(levels)})

    expected = [r.token_ids for r in built().generate_batch(prompts, **request)]
    results = built(level).generate_batch(prompts, **request)
    assert [r.token_ids for r in results] == expected
    rounds = max(r.target_calls for r in results) - 1  # the first one reads the prompt
    assert rounds <= len(calls) <= rounds + 1
    num_calls = len(calls)
    found = built(level_of_window).generate_batch(prompts, **request)
    assert [r.token_ids for r in found] == expected
    drawn = {**request, "temperature": 1.0, "seed": 3}
    built(level).generate_batch(prompts, **drawn, repetition_penalty=1.1)
    assert len(calls) == num_calls
    for options in ({"top_k": 7}, {"top_p": 0.9, "min_p": 0.01}):
        built(level).generate_batch(prompts, **drawn, **options)
        assert len(calls) > num_calls
        num_calls = len(calls)


def test_how_a_request_drafts_depends_on_nothing_beside_it(path, calls):
    """Rows that torch draws from differ in their last bit from the kernels'."""
    level = {"method": "quantized", "bits": 4, "num_speculative_tokens": 4}
    target = {"model": str(path), "dtype": "float32"}
    root = hierarchy_of({"target": target, "levels": [level]}).root
    params = [
        {"temperature": 1.0},
        {"temperature": 0.0},
        {"temperature": 1.0, "repetition_penalty": 1.2},
        {"temperature": 0.7},
        {"temperature": 1.0, "top_k": 9},
        {"temperature": 0.7, "top_p": 0.95},
        {"temperature": 1.0, "top_k": 9, "frequency_penalty": 0.3},
        {"temperature": 1.2, "top_k": 30, "top_p": 0.8, "min_p": 0.02},
    ]

    def answers(numbers):
        stop = StopConditions(max_new_tokens=20, ignore_eos=True)
        generation = Generation(
            root,
            [
                Request(
                    prompt=[5, 9, 7 + i],
                    params=SamplingParams(**params[i]),
                    stop=stop,
                    seed=i,
                    place=i,
                    num_logprobs=0,
                )
                for i in numbers
            ],
        )
        for _ in generation:
            pass
        return [result.token_ids for result in generation.results()]

    alone, one_call = list[list[int]](), list[bool]()
    for i in range(len(params)):
        calls.clear()
        alone += answers([i])
        one_call.append(bool(calls))
    assert one_call == [True, True, False, True, True, True, False, True]
    assert answers(range(len(params))) == alone


def test_scores_that_are_no_distribution_are_said(tmp_path, calls):
    """Of a draft model that makes NaN of all tokens but those it has read until it drafts."""
    path = save_tiny("llama", tmp_path / "m", seed=1, tie_word_embeddings=False)
    draft = save_tiny("llama", tmp_path / "d", seed=2, tie_word_embeddings=False)
    level = {"method": "draft_model", "model": str(draft), "num_speculative_tokens": 5}
    target = {"model": str(path), "dtype": "float32"}
    prompts = [[5, 9, 7], [11, 4]]
    request = {"max_new_tokens": 12, "ignore_eos": True}
    plain = hierarchy_of({"target": target, "levels": []})
    first, other = (result.token_ids[0] for result in plain.generate_batch(prompts, **request))
    assert other not in (*prompts[0], first)

    tensors = load_file(draft / "model.safetensors")
    embedding = tensors["model.embed_tokens.weight"]
    known = [*prompts[0], first]
    embedding[[i for i in range(len(embedding)) if i not in known]] = torch.nan
    save_file(tensors, draft / "model.safetensors", {"format": "pt"})
    hierarchy = hierarchy_of({"target": target, "levels": [level]})
    with pytest.raises(HierspecError, match="produced NaN scores; try --dtype float32"):
        hierarchy.generate(prompts[0], **request)
    assert len(calls) == 1
    model = hierarchy.root.below.model
    queries = [
        Query(model.open(), Context(text), len(text)) for text in (known, known[:1], prompts[1])
    ]
    with pytest.raises(NoDistributionError) as error:
        model.draft(queries[:2], [1, 4], [DRAWN] * 2, [[0.5], [0.5] * 4])
    assert error.value.scores.isnan().all(1).any()
    with pytest.raises(NoDistributionError) as error:
        model.draft(queries[:2], [1, 4], [GREEDY] * 2, [(), ()])
    assert error.value.scores.isnan().all(1).tolist() == [True], "in the second step"
    with pytest.raises(NoDistributionError) as error:
        model.draft(queries, [1, 4, 1], [GREEDY, DRAWN, GREEDY], [(), [0.5] * 4, ()])
    assert error.value.scores.isnan().all(1).tolist() == [False, False, True]
    assert model.draft(queries[:1], [1], [GREEDY], [()]).tokens[0][0] < GREEDY.vocab_size


@pytest.mark.parametrize("form", ["8 bits", "exit"])
def test_an_interrupted_draft_costs_work_and_nothing_else(path, monkeypatch, form):
    backend = load(str(path), torch.float32)
    model, target = model_of(backend, form)
    slot, text = model.open(), list(range(3, 20))

    def scored(view, where, extra):
        return view.score([Query(where, Context([*text, *extra]), len(text))])

    want = scored(Trunk(backend).view(), Trunk(backend).open(), [8, 9, 10])
    scored(target, slot, [])
    run = backend.library.run

    def interrupted(*args):
        run(*args)
        raise KeyboardInterrupt

    monkeypatch.setattr(backend.library, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        model.draft([Query(slot, Context(text), len(text))], [6], [GREEDY], [()])
    monkeypatch.undo()
    assert torch.equal(scored(target, slot, [8, 9, 10]), want)
    monkeypatch.setattr(backend.library, "run", lambda *_: -1)
    with pytest.raises(MemoryError):
        model.draft([Query(slot, Context(text), len(text))], [6], [GREEDY], [()])
