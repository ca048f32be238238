"""A pool of n-grams: what it proposes, what it learns from the target, and that it stays small."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from engine_cases import MANY, PROMPT, TIGHT, generation
from engine_law import generation_law
from engine_paths import distance
from hypothesis import given, settings
from hypothesis import strategies as st
from loading import hierarchy_of
from stacks import PROMPTS, built
from tabular_cases import chain, models

from hierspec import SamplingParams
from hierspec.core.context import Context
from hierspec.core.distributions import DenseDistributions, OneHotDistributions
from hierspec.core.nodes import Draft
from hierspec.core.proposals import Proposal
from hierspec.lm.base import Query
from hierspec.verifiers.registry import get
from hierspec.verifiers.soundness import validate
from hierspec_lab.methods.ngram_pool import pool as ngram_pool
from hierspec_lab.methods.ngram_pool.pool import MAX_NGRAMS, NgramPool, Pool


def reference(texts, low, high, recent, limit):
    """By counting everything anew. ``texts`` in the order they became known."""
    out = []
    while len(out) < limit:
        known = [*recent, *out]
        for n in range(min(high, len(known)), low - 1, -1):
            key, seen = known[-n:], Counter()
            latest = {}
            for text in texts:
                for end in range(n, len(text)):
                    if text[end - n : end] == key:
                        seen[text[end]] += 1
                        latest[text[end]] = len(latest) + sum(seen.values())
            if seen:
                out.append(max(seen, key=lambda t: (seen[t], latest[t])))
                break
        else:
            return tuple(out)
    return tuple(out)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.lists(st.integers(0, 3), max_size=6), st.integers(0, 4)), min_size=1),
    st.integers(1, 2),
    st.integers(0, 2),
    st.integers(1, 6),
)
def test_the_pool_proposes_what_followed_most_often(steps, low, more, limit):
    """Over the life of a sequence: text is committed in runs, drafts come and go."""
    pool = NgramPool(low, low + more)
    slot, committed = pool.open(), []
    for tokens, num_pending in steps:
        committed.extend(tokens)
        pending = tuple(tokens[::-1])[:num_pending]
        for context in (Context(committed, pending), Context(committed)):
            want = reference([committed], low, low + more, context.tokens(), limit)
            assert pool.propose(context, limit, slot) == want


def test_what_the_target_would_have_chosen_joins_the_pool():
    pool = NgramPool(1, 3)
    slot = pool.open()
    draft = Proposal((3, 4, 5))
    for kept, distributions in (
        (1, OneHotDistributions((3, 9, 8, 7))),
        (3, OneHotDistributions((3, 4, 5, 6))),
    ):
        slot.pool.grams.clear()
        pool.learn_from([1, 2], draft, distributions, kept, [], slot)
        # Kept 1: rows 0 and 1 became text; after 3 4 it would say 8, after 3 4 5 it would say 7.
        want = {(3, 4): 8, (2, 3, 4): 8, (4,): 8, (5,): 7, (4, 5): 7, (3, 4, 5): 7}
        trigrams = {key: next(iter(f)) for key, f in slot.pool.grams.items()}
        assert trigrams == (want if kept == 1 else {})
    dense = DenseDistributions(torch.eye(10)[[3, 9, 8, 7]])
    pool.learn_from([1, 2], draft, dense, 1, [], slot)
    trigrams = {key: next(iter(f)) for key, f in slot.pool.grams.items() if len(key) == 3}
    assert trigrams == {(2, 3, 4): 8, (3, 4, 5): 7}


def test_what_is_learnt_is_the_targets_choice_at_that_very_place(tiny_family, monkeypatch):
    learnt = []
    learn = NgramPool.learn

    def listening(self, context, choices, slot):
        learnt.append((context.tokens(), choices))
        learn(self, context, choices, slot)

    monkeypatch.setattr(NgramPool, "learn", listening)
    level = {"method": "ngram_pool", "num_speculative_tokens": 4}
    target = {"model": tiny_family["target"], "dtype": "float64"}
    hierarchy = hierarchy_of({"target": target, "levels": [level]})
    prompts = [[5, 9, 7], [11, 4, 4, 30, 8], [60], list(range(3, 40))]
    hierarchy.generate_batch(prompts, max_new_tokens=30, ignore_eos=True)
    assert len(learnt) > 5
    model = hierarchy.root.model
    for tokens, choices in learnt:
        start = len(tokens) - len(choices) + 1
        rows = model.score([Query(model.open(), Context(tokens), start)])
        assert rows.argmax(-1).tolist() == choices


def test_a_shared_pool_outlives_its_sequences_and_own_ones_do_not():
    text = [7, 8, 9, 10, 11]
    for shared, expected in ((True, (9, 10)), (False, ())):
        pool = NgramPool(2, 3, shared)
        slot = pool.open()
        pool.propose(Context(text), 1, slot)
        pool.close(slot)
        assert pool.propose(Context([7, 8]), 2, pool.open()) == expected


def test_a_pool_stays_small(monkeypatch):
    monkeypatch.setattr(ngram_pool, "_MAX_FOLLOWERS", 3)
    pool = NgramPool(1, 1, max_ngrams=5)
    slot = pool.open()
    text = [0, 1, 0, 2, 0, 2, 0, 3, 0, 4, 0, 5, 5, 6, 7, 8, 9, 0]
    pool.propose(Context(text), 1, slot)
    assert set(slot.pool.grams) == {(5,), (6,), (7,), (8,), (9,)}
    pool.propose(Context([*text[:12], 0, 0]), 1, slot := pool.open())
    assert len(slot.pool.grams[0,]) == 3
    assert slot.pool.best_follower((0,)) == 2, "the most frequent stays"
    with pytest.raises(ValueError, match="at least one n-gram"):
        NgramPool(1, 1, max_ngrams=0)


@pytest.mark.parametrize("shared", [False, True])
def test_n_grams_of_all_lengths_share_one_bound(shared):
    pool = NgramPool(1, 4, shared, max_ngrams=50)
    for start in range(0, 400, 100):  # another sequence each time
        slot = pool.open()
        pool.propose(Context(list(range(start, start + 100))), 1, slot)
        assert len(slot.pool.grams) == 50
        assert {len(key) for key in slot.pool.grams} == {1, 2, 3, 4}
        pool.close(slot)
    assert len(pool.shared_pool.grams) == (50 if shared else 0)


def test_what_is_asked_for_stays():
    pool = Pool(max_ngrams=3)
    for token in (1, 2, 3):
        pool.add((token,), token + 1)
    assert pool.best_follower((1,)) == 2
    pool.add((9,), 9)
    assert set(pool.grams) == {(1,), (3,), (9,)}, "2 was used longest ago"
    pool.add((3,), 4)
    pool.add((8,), 8)
    assert set(pool.grams) == {(3,), (9,), (8,)}
    assert pool.best_follower((1,)) is None
    assert MAX_NGRAMS == NgramPool(1, 4).max_ngrams == NgramPool(1, 4).open().pool.max_ngrams


def test_naive_is_refused_over_a_pool():
    root = chain([NgramPool(1, 2), None], [get("naive")], [3])
    with pytest.raises(ValueError, match="no distribution at contexts other"):
        validate(root)


def test_a_shared_pool_teaches_no_text_that_is_sampled(tiny_family):
    """The same seed twice: drafts written with its own random numbers would be kept too often."""
    pool = {"method": "ngram_pool", "num_speculative_tokens": 3, "shared": True}
    hierarchy = built(tiny_family, {"levels": [pool]}, "cpu", "float64")

    def rows(*temperatures):
        sampling = [SamplingParams(temperature=one) for one in temperatures]
        prompts = PROMPTS[: len(sampling)]
        options = {"max_new_tokens": 12, "ignore_eos": True, "seed": 3}
        return [
            r.token_ids for r in hierarchy.generate_batch(prompts, sampling=sampling, **options)
        ]

    first = rows(1.0, 0.0, 1.7)
    pool_of_all = hierarchy.root.below.model.shared_pool
    known = {key: dict(followers) for key, followers in pool_of_all.grams.items()}
    assert known
    assert rows(1.0, 1.7, 1.7)[0] == first[0]
    assert {key: dict(followers) for key, followers in pool_of_all.grams.items()} == known
    assert rows(0.0) != first[:1]


@pytest.mark.parametrize("prompts", [(PROMPT,), MANY])
def test_an_ngram_pool_learns_from_what_was_rejected(prompts):
    (target,) = models("random", 1, seed=2)
    root = chain([target], ["tokenwise"], [], below=Draft(0, "pool", NgramPool(1, 2), 2))
    found = generation_law(generation(root, prompts=prompts, tokens=4))
    assert distance(found, target, PROMPT, 4) < TIGHT
