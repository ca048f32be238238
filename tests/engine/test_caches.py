"""Caches kept from one generation to the next: the same text as a cold run, and less to read."""

import pytest
import torch
from eagle3_cases import LAYERS, save_drafter
from installed import installed
from loading import hierarchy_of
from tiny_models import tiny_config
from work import Work

from hierspec import HierspecError
from hierspec.core.context import Context
from hierspec.engine.caches import SessionCache
from hierspec.lm.base import Query
from hierspec.lm.eagle3 import checkpoint
from hierspec.lm.eagle3.model import Eagle3Model
from hierspec.lm.load import load
from hierspec.lm.trunk.trunk import Trunk

PROMPT = [5, 9, 7, 22, 31, 8, 60, 12]
LEVELS = [
    {"method": "prompt_lookup", "num_speculative_tokens": 3},
    {"method": "early_exit", "exit_layer": 1, "num_speculative_tokens": 4, "verify": "block"},
]


@pytest.fixture(scope="module")
def hierarchy(tiny_family):
    target = {"model": tiny_family["target"], "dtype": "float32"}
    small = {
        "method": "draft_model",
        "model": tiny_family["small"],
        "num_speculative_tokens": 4,
        "verify": "tokenwise",
    }
    return hierarchy_of({"target": target, "levels": [*LEVELS, small]})


def turn(hierarchy, prompt, cache=None, **options):
    generation = hierarchy.start(
        [prompt], max_new_tokens=12, ignore_eos=True, seed=3, cache=cache, **options
    )
    for _ in generation:
        pass
    return generation.results()[0].token_ids


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_turns_are_those_of_cold_runs_and_read_only_what_is_new(hierarchy, temperature):
    cache, text = SessionCache(), list(PROMPT)
    for addition in ([], [4, 4, 17], [33]):
        text = text + addition
        done = Work(hierarchy.root.model.trunk)
        cold = turn(hierarchy, text, temperature=temperature)
        read_cold = done.tokens[0]
        warm = turn(hierarchy, text, cache, temperature=temperature)
        read_warm = done.tokens[0] - read_cold
        assert warm == cold
        assert read_warm <= read_cold
        if addition:
            assert read_warm <= read_cold - len(PROMPT)
        text += list(warm)


def level(method, **more):
    return {"method": method, "num_speculative_tokens": 4, **more}


RETRIEVAL = level("retrieval", budget=16, chunk_size=4, refresh=48)
SEARCH = {"context_window": 2, "bayes_interval": 2, "enough": 2.0}
SKIP = level("layer_skip", skip_layers=[1])
KEEPING = {  # a part of a text, what a text has taught, or how drafts have fared
    "retrieval": [RETRIEVAL],
    "retrieval above a draft": [SKIP, {**RETRIEVAL, "verify": "block"}],
    "search": [level("layer_skip", skip=0.5, search=SEARCH)],
    "suffixes": [level("suffix")],
    "pool": [level("ngram_pool")],
    "window": [level("quantized", window="entropy")],
    "several drafts": [{**SKIP, "num_drafts": 2}],
    "one after another": [{"method": "concatenate", "parts": [SKIP, level("quantized")]}],
}
KEEPING = installed(KEEPING)


@pytest.mark.parametrize("name", KEEPING)
def test_a_turn_draws_what_the_same_call_draws_without_a_session(tiny_family, name):
    """Nothing kept of earlier turns changes a draft, and so the use of random numbers."""
    config = {"target": {"model": tiny_family["target"], "dtype": "float64"}}
    rule = "block-rrs" if name == "several drafts" else "block"
    hierarchy = hierarchy_of({**config, "levels": KEEPING[name], "verify": rule})
    for seed in range(2):
        cache, text = SessionCache(), [*PROMPT, *range(3, 40)]
        for addition in ([], [4, 4, 17], [33]):
            text = text + addition
            options = {"max_new_tokens": 12, "ignore_eos": True, "temperature": 1.0, "seed": seed}
            cold = hierarchy.generate(text, **options)
            warm = hierarchy.generate(text, cache=cache, **options)
            assert warm.token_ids == cold.token_ids
            text += list(warm.token_ids)


def test_another_text_is_read_from_where_it_differs(hierarchy):
    cache = SessionCache()
    turn(hierarchy, PROMPT, cache)
    other = [*PROMPT[:5], 70, 71, 72]
    assert cache.overlap(hierarchy.root.model.cache_owner, other) == 5
    assert turn(hierarchy, other, cache) == turn(hierarchy, other)
    assert turn(hierarchy, [90], cache) == turn(hierarchy, [90])


def test_a_network_on_the_targets_states_reads_another_text_anew(tiny_family, tmp_path):
    trunk = Trunk(load(tiny_family["target"]), LAYERS)
    drafter = save_drafter(tmp_path / "eagle3", tiny_config("llama"))
    model, cache = (
        Eagle3Model(trunk, checkpoint.read_network(drafter), LAYERS, "eagle3"),
        SessionCache(),
    )

    def scores(slot, tokens):
        context = Context(tokens)
        trunk.view().score([Query(slot, context, len(tokens))])
        return model.score([Query(slot, context, len(tokens))])

    slots = cache.take()
    slots[id(trunk), 0] = (trunk, trunk.open())
    scores(slots[id(trunk), 0][1], PROMPT)
    cache.give_back(slots)
    other = [*PROMPT[:3], 70, 71, 72, 73, 74, 75]
    (_, slot) = cache.take()[id(trunk), 0]
    torch.testing.assert_close(scores(slot, other), scores(trunk.open(), other))


def test_an_abandoned_generation_gives_its_cache_back(hierarchy):
    cache = SessionCache()
    events = iter(hierarchy.start([PROMPT], max_new_tokens=12, cache=cache))
    next(events)
    assert cache.in_use
    with pytest.raises(HierspecError, match="in use"):
        turn(hierarchy, PROMPT, cache)
    events.close()
    assert not cache.in_use
    assert turn(hierarchy, PROMPT, cache) == turn(hierarchy, PROMPT)
    assert cache.overlap(hierarchy.root.model.cache_owner, PROMPT) == len(PROMPT)
    cache.close()
    assert cache.overlap(hierarchy.root.model.cache_owner, PROMPT) == 0


def test_two_sequences_of_a_batch_cannot_share_a_cache(hierarchy):
    cache = SessionCache()
    with pytest.raises(HierspecError, match="in use"):
        hierarchy.generate_batch([PROMPT, PROMPT], cache=[cache, cache])
    assert not cache.in_use
