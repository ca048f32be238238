"""What a batch's texts have in common is read once, and changes none of them."""

from functools import partial

import pytest
from eagle3_cases import save_drafter
from loading import hierarchy_of
from tiny_models import save_tiny, tiny_config
from work import Work

from hierspec import HierspecError
from hierspec.engine import generation, prefixes
from hierspec.engine.caches import SessionCache
from hierspec.engine.prefixes import MIN_SAVED_TOKENS, MIN_TOKENS

EXAMPLES = [5 + i % 60 for i in range(48)]  # as a prompt's few shots
TAILS = [[], [70, 71], [70, 72], [73] * 9]
LOOKUP = {"method": "prompt_lookup", "num_speculative_tokens": 3}
SMALL = {"method": "draft_model", "num_speculative_tokens": 2, "verify": "tokenwise"}
EXIT = {"method": "early_exit", "exit_layer": 1, "num_speculative_tokens": 4}
HIERARCHIES = {
    "exit and model": (
        "block",
        [LOOKUP, {**EXIT, "verify": "block"}, SMALL],
    ),
    "several drafts": ("rrs", [{**EXIT, "num_drafts": 2}]),
    "eagle3": ("block", [{"method": "eagle3", "num_speculative_tokens": 3}]),
}


@pytest.fixture(scope="module", params=HIERARCHIES)
def hierarchy(request, tiny_family, tmp_path_factory):
    rule, levels = HIERARCHIES[request.param]
    drafter = save_drafter(tmp_path_factory.mktemp("drafter") / "eagle3", tiny_config("llama"))
    models = {"draft_model": tiny_family["small"], "eagle3": str(drafter)}
    levels = [
        {**level, "model": models[level["method"]]} if level["method"] in models else level
        for level in levels
    ]
    target = {"model": tiny_family["target"], "dtype": "float32"}
    return hierarchy_of({"target": target, "levels": levels, "verify": rule})


def reading(hierarchy, call):
    """What a call returns, and how many tokens the target's first layers read for it."""
    done = Work(hierarchy.root.model.trunk)
    return [list(one.token_ids) for one in call()], done.tokens[0]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_texts_are_those_of_each_prompt_alone(hierarchy, temperature):
    prompts = [EXAMPLES[:n] + tail for tail in TAILS for n in (48, 20, 3)] + [EXAMPLES[10:30]]
    options = {"max_new_tokens": 10, "ignore_eos": True, "temperature": temperature}
    seeds = list(range(len(prompts)))
    batch = partial(hierarchy.generate_batch, prompts, seed=seeds, **options)
    alone = [
        hierarchy.generate_batch([prompt], seed=[seed], **options)[0]
        for prompt, seed in zip(prompts, seeds, strict=True)
    ]
    assert reading(hierarchy, batch)[0] == [list(one.token_ids) for one in alone]


def test_a_drafter_of_a_shorter_context_reads_no_longer_beginning(tiny_family, tmp_path):
    """It drafts nothing in texts so long, as it does in each alone."""
    short = save_tiny("llama", tmp_path / "short", seed=3, layers=1, max_position_embeddings=40)
    draft = {"method": "draft_model", "model": str(short), "num_speculative_tokens": 3}
    target = {"model": tiny_family["target"], "dtype": "float32"}
    hierarchy = hierarchy_of({"target": target, "levels": [draft]})
    assert hierarchy.root.below.model.max_length < len(EXAMPLES)
    prompts, options = [[*EXAMPLES, 70], [*EXAMPLES, 71], EXAMPLES[:30]], {"max_new_tokens": 6}
    batch = hierarchy.generate_batch(prompts, **options)
    alone = [hierarchy.generate(prompt, **options) for prompt in prompts]
    assert [one.token_ids for one in batch] == [one.token_ids for one in alone]


def test_a_token_more_in_common_is_not_worth_a_call(hierarchy, monkeypatch):
    calls = []
    prefill = prefixes.prefill
    monkeypatch.setattr(prefixes, "prefill", lambda *args: (calls.append(args[1]), prefill(*args)))
    groups = [[*EXAMPLES, 70 + group, 80 + i] for group in range(4) for i in range(3)]
    hierarchy.generate_batch(groups, max_new_tokens=1, ignore_eos=True)
    assert calls == [len(EXAMPLES) + 1]  # of the first group


def test_empty_session_caches_share_as_none_do(hierarchy):
    options = {"max_new_tokens": 1, "ignore_eos": True, "temperature": 1.0, "seed": 0}
    call = partial(hierarchy.generate_batch, [EXAMPLES] * 4, **options)
    none = reading(hierarchy, call)
    assert reading(hierarchy, partial(call, cache=[SessionCache() for _ in range(4)])) == none


def test_too_little_memory_says_what_to_do(hierarchy, monkeypatch):
    def full(*given):
        raise RuntimeError(
            "[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory"
        )

    monkeypatch.setattr(generation, "share_prefixes", full)
    with pytest.raises(HierspecError, match="out of memory with 2 texts at once: give fewer"):
        hierarchy.generate_batch([EXAMPLES] * 2, max_new_tokens=1)


def test_samples_of_a_prompt_read_it_once(hierarchy):
    options = {"max_new_tokens": 1, "ignore_eos": True, "temperature": 1.0, "seed": 0}
    one = partial(hierarchy.generate_batch, [EXAMPLES], **options)
    many = partial(hierarchy.generate_batch, [EXAMPLES], num_return_sequences=6, **options)
    alone = reading(hierarchy, one)[1]
    assert reading(hierarchy, many)[1] <= 6 * alone - 5 * (len(EXAMPLES) - 1)


def test_a_common_prefix_is_prefilled_once_where_a_call_of_its_own_pays(hierarchy):
    options = {"max_new_tokens": 1, "ignore_eos": True}
    least = -(-MIN_SAVED_TOKENS // 3)
    assert MIN_TOKENS < least < MIN_SAVED_TOKENS

    def saved(length, count):
        prompts = [[*EXAMPLES[:length], 70 + i, 80 + i] for i in range(count)]
        alone = (partial(hierarchy.generate_batch, [one], **options) for one in prompts)
        separate = sum(reading(hierarchy, call)[1] for call in alone)
        return (
            separate - reading(hierarchy, partial(hierarchy.generate_batch, prompts, **options))[1]
        )

    shared = len(EXAMPLES)
    assert saved(shared, 2) == shared
    assert saved(shared, 4) == 3 * shared
    assert saved(least, 4) == 3 * least  # three need not read it again
    assert saved(least, 2) == 0
