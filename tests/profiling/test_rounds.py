"""Rounds outside a generation: places on the texts, batches, and sequences wound back."""

from __future__ import annotations

import torch
from work import Work

from hierspec import TargetConfig
from hierspec.core.context import Context
from hierspec.drafters.prompt_lookup import PromptLookup
from hierspec.lm.base import Query
from hierspec.profiling import rounds
from hierspec.profiling.candidates import load, parse
from hierspec.profiling.rounds import DraftingSettings


def test_places_lie_evenly_in_all_that_was_written():
    plan_ = DraftingSettings(places=4, rounds=1, max_budget=3, temperature=1.0)
    assert plan_.place_positions([22, 22]) == [[0, 5, 11, 16], [0, 5, 11, 16]]
    assert plan_.place_positions([1, 39, 8]) == [[0], [3, 7, 11, 15, 19, 23, 27, 31, 35], [0, 4]]
    assert plan_.place_positions([1, 30, 1]) == [[0], [1, 4, 7, 9, 12, 15, 17, 20, 23, 25, 28], []]


def test_laws_at_hand_stay_bounded_for_a_large_vocabulary():
    for vocab, budget in ((152_064, 15), (262_144, 32), (96, 3)):
        entries = vocab * (budget + 1)
        batches = rounds.batches(100, entries)
        assert [n for batch in batches for n in batch] == list(range(100))
        assert max(map(len, batches)) * entries <= rounds.MAX_ENTRIES
        assert max(map(len, batches)) <= rounds.MAX_BATCH


def test_a_pair_is_built_of_its_candidates(family, loaded):
    names = ["exit:1,num_drafts=3", "exit:1,window=entropy,temperature=0.7", "exit:2"]
    pool = load(TargetConfig(model=family["target"]), [parse(name) for name in names], loaded)
    root = rounds.build_levels(pool, 3, 1, 5)
    leaf = root.below
    assert [(node.index, node.name) for node in (leaf, root)] == [
        (0, names[1]),
        (1, family["target"]),
    ]
    assert (leaf.budget, leaf.num_drafts, leaf.temperature) == (5, 1, 0.7)
    assert leaf.window.signal == "entropy"
    assert not leaf.window.stops([1e9], leaf.window.init())
    assert root.rule.name == "block"
    tree = rounds.build_levels(pool, 3, 0, 2)
    assert (tree.below.num_drafts, tree.rule.name) == (3, "traversal")
    middle = rounds.build_levels(pool, 1, 2, 4)
    assert (middle.below.name, middle.name, middle.temperature) == (names[2], names[1], 0.7)
    alone = rounds.build_levels(pool)
    assert (alone.index, alone.below) == (0, None)


def test_what_was_wound_back_is_computed_again_and_alike(family, loaded):
    pool = load(TargetConfig(model=family["target"]), [parse("exit:1")], loaded)
    model = pool.members[-1].model
    trunk, ids = model.trunk, list(range(20, 32))
    slot = model.open()
    first = model.score([Query(slot, Context(ids), 1)])
    done = Work(trunk)
    assert model.score([Query(slot, Context(ids), 1)]).equal(first)
    assert done.tokens == [0, 0]  # nothing to do
    trunk.rewind(slot, 7)
    again = model.score([Query(slot, Context(ids), 1)])
    assert done.tokens == [5, 5]
    torch.testing.assert_close(again, first, rtol=0, atol=1e-12)
    # Tokens after the mark that were committed once no longer count as agreed.
    trunk.rewind(slot, 7)
    other = [*ids[:7], 99, 98, 97]
    fresh = model.open()
    want = model.score([Query(fresh, Context(other), 1)])
    got = model.score([Query(slot, Context(other), 1)])
    torch.testing.assert_close(got, want, rtol=0, atol=1e-12)
    model.close(fresh)
    model.close(slot)


def test_a_sequence_wound_back_answers_as_a_new_one(family, loaded):
    candidates = [parse("exit:1"), parse(f"ngram:{family['table']}"), parse("prompt-lookup")]
    pool = load(TargetConfig(model=family["target"]), candidates, loaded)
    greedy = DraftingSettings(1, 1, 3, 0.0)
    text = [65, 66, 67] * 6
    (sequence,) = rounds.open_sequences(rounds.build_levels(pool), [0], [text], greedy)

    def ask():  # of the sequence that goes by this name
        context = Context(sequence.tokens)
        out = []
        for number, member in enumerate(pool.members):
            if isinstance(member.model, PromptLookup):
                slot = sequence.slot(member.model)
                out.append(member.model.propose(context, 3, slot))
            else:
                (rows,) = rounds.distributions_after(pool, number, [sequence], [context], [2])
                out.append(rows.ids)
        return out

    first = ask()
    sequence.tokens.extend([1, 2, 3, 65, 66, 200])
    changed = ask()
    assert changed != first
    rounds.rewind(sequence, len(text))
    assert sequence.tokens == text
    assert ask() == first
    # Other tokens than before at the same places: the caches must not take them for the old ones.
    sequence.tokens.extend([9, 8, 7, 90, 91, 92])
    (fresh,) = rounds.open_sequences(rounds.build_levels(pool), [0], [sequence.tokens], greedy)
    after = ask()
    sequence.close()
    sequence = fresh
    assert ask() == after
    sequence.close()
