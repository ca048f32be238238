"""Lookahead decoding: the window against its definition, and whole texts."""

from __future__ import annotations

import dataclasses
import random

import pytest
from engine_cases import MANY, PROMPT, TIGHT, generation
from engine_law import generation_law
from engine_paths import distance
from loading import hierarchy_of
from tabular_cases import chain, models

from hierspec import Hierarchy, HierspecError
from hierspec.core.context import Context
from hierspec.core.distributions import OneHotDistributions
from hierspec.core.nodes import Draft
from hierspec.core.proposals import Proposal
from hierspec.core.rng import PhiloxRng
from hierspec.drafters.base import DraftCall
from hierspec.sampling.parameters import SamplingParams
from hierspec.sampling.scores import ScoreRows
from hierspec_lab.methods.lookahead.window import Lookahead

V = 50


def call(text: list[int], limit: int) -> DraftCall:
    job = ScoreRows(SamplingParams(), Context(text), len(text), 1, len(text), V)
    return DraftCall(job, limit, limit, (), PhiloxRng(0), lambda *_: None)


def choice(text: list[int]) -> int:
    """The target's: a function of all of the text."""
    return random.Random(repr(text)).randrange(V)


def step(drafter: Lookahead, slot, text: list[int], choice=choice, limit: int | None = None):
    """One call of the target: its drafts are checked, the best path is kept → what is new."""
    limit = drafter.depth if limit is None else limit
    drafts = [tokens for tokens, _ in drafter.drafts(call(text, limit), slot)]
    every = []
    for tokens in drafts:
        ids = [choice([*text, *tokens[:i]]) for i in range(len(tokens) + 1)]
        every.append((Proposal(tokens), OneHotDistributions(tuple(ids))))
    best: list[int] = []
    for draft, rows in every:
        tokens = draft.tokens
        kept = next((i for i, t in enumerate(tokens) if t != rows.ids[i]), len(tokens))
        best = max(best, [*tokens[:kept], rows.ids[kept]], key=len)
    first, rows = every[0]
    drafter.learn_from(text, first, rows, 0, every, slot)
    return drafts, best


def test_the_window_holds_one_iteration_of_guesses_a_row():
    """Every guess is the target's choice after the text and the older guesses of its column."""
    drafter = Lookahead(4, 3, 2)
    slot, text = drafter.open(), [1, 2, 3, 4, 5]
    for _ in range(8):
        earlier = [list(row) for row in slot.rows]
        _, new = step(drafter, slot, text)
        full = len(earlier) == 3
        if earlier:
            earlier[0][0] = text[-1]
        for column, guess in enumerate(slot.rows[-1] if full else []):
            path = [*earlier[0][1 : column + 1], earlier[1][column], earlier[2][column]]
            assert guess == choice([*text, *path])
        if full:
            assert [len(row) for row in slot.rows] == [3, 3, 3]
            assert slot.rows[0][1:] == earlier[1][1:]  # moved on by a place, whatever was kept
            assert slot.rows[1] == earlier[2]
        text += new


def test_completed_columns_join_the_pool_under_their_first_token():
    drafter = Lookahead(4, 3, 5)
    slot, text = drafter.open(), [1, 2, 3, 4, 5]
    while len(slot.rows) < 3:
        text += step(drafter, slot, text)[1]
    rows = [list(row) for row in slot.rows]
    rows[0][0] = text[-1]
    step(drafter, slot, text)
    for column in range(3):
        rest = (rows[1][column], rows[2][column], slot.rows[-1][column])
        assert rest in slot.grams[rows[0][column]]


def test_the_window_is_wide_until_it_is_full():
    drafter = Lookahead(5, 7, 7)
    slot, text, widths = drafter.open(), list(range(12)), []
    for _ in range(6):
        step(drafter, slot, text)
        text.append(9)
        widths.append([len(row) for row in slot.rows])
    assert widths == [[9, 9], [8] * 3, [7] * 4, [7] * 4, [7] * 4, [7] * 4]


def test_jacobi_iterations_find_what_no_text_holds():
    """Where no token occurs twice, the window alone tells of tokens to come."""
    drafter = Lookahead(4, 4, 4)
    numbered = lambda text: 100 + len(text)  # noqa: E731  # a token for each place
    slot, text, calls = drafter.open(), [7], 0
    while len(text) < 200:
        text += step(drafter, slot, text, numbered)[1]
        calls += 1
    assert text[1:] == list(range(101, 100 + len(text)))
    assert len(text) / calls > 1.5


def test_the_texts_own_ngrams_are_candidates_latest_first_and_few():
    drafter = Lookahead(3, 2, 2)
    text = [1, 2, 3, 1, 4, 5, 1, 6, 7, 1]
    slot = drafter.open()
    drafts, _ = step(drafter, slot, text, limit=drafter.depth)
    assert slot.grams[1][-2:] == [(4, 5), (6, 7)]  # (2, 3) made room
    assert {(6, 7), (4, 5)} <= set(drafts)
    short = [tokens for tokens, _ in drafter.drafts(call(text, 1), slot)]
    assert (6,) in short
    assert max(map(len, short)) == 1


def test_without_room_there_is_no_window():
    drafter = Lookahead(4, 5, 3)
    slot = drafter.open()
    assert drafter.drafts(call([1, 2, 3], drafter.depth - 1), slot) == []
    assert slot.rows == []
    drafter.learn_from([1, 2, 3], Proposal(), OneHotDistributions((4,)), 0, [], slot)
    assert slot.rows == []


def test_a_closed_place_is_empty():
    drafter = Lookahead(3, 3, 2)
    slot = drafter.open()
    step(drafter, slot, [1, 2, 3, 1, 2])
    drafter.close(slot)
    assert (slot.grams, slot.rows, slot.paths, slot.indexed) == ({}, [], [], 0)


@pytest.mark.parametrize("sizes", [(1, 3, 3), (3, 0, 3), (3, 3, 0)])
def test_sizes_that_cannot_be(sizes):
    with pytest.raises(HierspecError, match="at least"):
        Lookahead(*sizes)


# --- in a hierarchy

TEXT = "for i in range(10):\n    print(i)\nfor j in range(10):\n    print(j)\nfor k"
TARGET = {"model": "zoo:trunk", "dtype": "float32"}
LEVEL = {"method": "lookahead", "num_speculative_tokens": 3, "window_size": 4, "max_candidates": 3}


@pytest.fixture(scope="module")
def hierarchy():
    return hierarchy_of({"target": TARGET, "levels": [LEVEL], "verify": "rrs"})


@pytest.mark.parametrize("backend", ["auto", "hf"])
def test_greedy_texts_are_plain_decodings(backend):
    """With token trees, and where a target takes none: each draft in a slot of its own."""
    target = {**TARGET, "backend": backend}
    fast = hierarchy_of({"target": target, "levels": [LEVEL], "verify": "rrs"})
    plain = hierarchy_of({"target": target, "levels": []})
    prompts = [TEXT, "x = 1\n", "def add(a, b):"]
    results = fast.generate_batch(prompts, max_new_tokens=24)
    assert [r.token_ids for r in results] == [
        r.token_ids for r in plain.generate_batch(prompts, max_new_tokens=24)
    ]
    assert results[0].mean_acceptance_length > 1.3


def test_a_seed_says_the_same_alone_and_among_others(hierarchy):
    options = {"max_new_tokens": 20, "temperature": 1.0}
    single = hierarchy.generate(TEXT, seed=3, **options)
    batch = hierarchy.generate_batch([TEXT, "import os\n"], seed=3, **options)
    assert batch[0].token_ids == single.token_ids


@pytest.mark.parametrize(
    ("levels", "more", "why"),
    [
        ([LEVEL], {"verify": "tokenwise"}, "takes one"),
        (
            [LEVEL, {"method": "early_exit", "exit_layer": 2, "num_speculative_tokens": 4,
                     "verify": "rrs"}],
            {"verify": "block"},
            "must be the only level",
        ),
        ([{**LEVEL, "window_size": 0}], {"verify": "rrs"}, "window_size"),
        ([{**LEVEL, "temperature": 0.5}], {"verify": "rrs"}, "copies tokens"),
    ],
)  # fmt: skip
def test_where_it_cannot_stand(levels, more, why):
    with pytest.raises(HierspecError, match=why):
        Hierarchy.from_config({"target": TARGET, "levels": levels, **more})


def test_metrics_count_a_shared_beginning_once(hierarchy):
    result = hierarchy.generate(TEXT, max_new_tokens=16, ignore_eos=True)
    (level,) = result.to_dict()["levels"]
    assert level["num_accepted_tokens"] <= level["num_draft_tokens"]
    assert dataclasses.asdict(hierarchy.config)["levels"][0]["window_size"] == 4


@pytest.mark.parametrize("prompts", [(PROMPT,), MANY])
def test_a_lookahead_window_is_filled_by_the_checks_of_its_own_drafts(prompts):
    (target,) = models("random", 1, seed=2)
    leaf = Draft(0, "lookahead", Lookahead(3, 2, 2), 2, num_drafts=6)
    root = chain([target], ["rrs"], [], below=leaf)
    found = generation_law(generation(root, prompts=prompts, tokens=4))
    assert distance(found, target, PROMPT, 4) < TIGHT
