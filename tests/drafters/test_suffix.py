"""The suffix drafter: counts equal a search of everything, laws are proper, texts exact."""

from __future__ import annotations

import time
from collections import Counter

import pytest
import torch
from engine_law import Neighbour, engine_law
from engine_paths import VERIFYING, distance, patched
from hypothesis import given, settings
from hypothesis import strategies as st
from tabular_cases import chain, models
from tiny_models import save_tiny

from hierspec import Hierarchy
from hierspec.core.context import Context
from hierspec.core.distributions import MixedDistributions
from hierspec.core.nodes import Concatenate, Draft
from hierspec.core.rng import PhiloxRng
from hierspec.drafters import suffix
from hierspec.drafters.base import DraftCall
from hierspec.drafters.suffix import Suffix
from hierspec.drafters.suffix_automaton import SuffixAutomaton
from hierspec.sampling.parameters import SamplingParams
from hierspec.sampling.scores import ScoreRows

SAMPLING = SamplingParams(temperature=1.0)
GREEDY = SamplingParams()


def call(tokens, params=SAMPLING, limit=8, pending=(), seed=0, prompt_length=1):
    context = Context(tokens, tuple(pending))
    job = ScoreRows(params, context, len(context), 1, prompt_length, 100)
    return DraftCall(job, limit, limit, (), PhiloxRng(seed), lambda model, draft: None)


# --- the automaton


def occurrences(texts, run):
    """(text, place after it) of every occurrence."""
    n = len(run)
    return [
        (t, end)
        for t, text in enumerate(texts)
        for end in range(n, len(text) + 1)
        if tuple(text[end - n : end]) == tuple(run)
    ]


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 2), max_size=14), min_size=1, max_size=3),
    st.lists(st.integers(0, 2), max_size=7),
    st.integers(1, 5),
)
def test_counts_equal_a_search_of_everything(texts, tail, max_order):
    automaton = SuffixAutomaton(max_order)
    for text in texts:
        automaton.new_text()
        for token in text:
            automaton.append(token)
    match = automaton.match(tail)
    lengths = [n for n in range(1, min(max_order, len(tail)) + 1) if occurrences(texts, tail[-n:])]
    assert match.length == max(lengths, default=0)
    shortened = automaton.shorten(match)
    followed = [
        n
        for n in lengths
        if any(end < len(texts[t]) for t, end in occurrences(texts, tail[len(tail) - n :]))
    ]
    assert shortened.length == max(followed, default=0)
    run = tail[len(tail) - shortened.length :]
    ends = [(t, end) for t, end in occurrences(texts, run) if end < len(texts[t])]
    counts = Counter(texts[t][end] for t, end in ends)
    assert {k: n for k, (n, _) in automaton.followers(shortened).items()} == counts
    latest = {texts[t][end]: (t, end) for t, end in ends}
    by_age = sorted(latest, key=latest.__getitem__)
    followers = automaton.followers(shortened)
    assert sorted(followers, key=lambda token: followers[token][1]) == by_age


def test_a_token_costs_the_same_however_long_the_text():
    """A text of one token alone has as many nested runs as it is long."""
    automaton, seconds = SuffixAutomaton(32), []
    for _ in range(4):
        began = time.perf_counter()
        for _ in range(10_000):
            automaton.append(7)
        seconds.append(time.perf_counter() - began)
    assert seconds[-1] < 5 * seconds[0] + 0.1, seconds
    assert automaton.followers(automaton.match([7] * 40))[7][0] == 40_000 - 32


# --- drafts


def test_the_most_frequent_continuation_of_the_longest_context():
    text = [1, 2, 3, 9, 2, 3, 8, 2, 3, 8, 5, 1, 2, 3]
    look_up = Suffix(max_order=8)
    assert look_up.propose(Context(text), 2, look_up.open()) == (9, 2), "three tokens match"
    short = Suffix(max_order=2)
    assert short.propose(Context(text), 1, short.open()) == (8,), "8 twice, 9 once"
    tie = [3, 8, 3, 9, 3]
    assert short.propose(Context(tie), 1, short.open()) == (9,), "of equals the latest"


def test_a_loop_goes_on():
    look_up = Suffix()
    assert look_up.propose(Context([5, 1, 2, 1, 2]), 4, look_up.open()) == (1, 2, 1, 2)
    assert look_up.propose(Context([4], (4,)), 3, look_up.open()) == ()


def test_pending_tokens_are_matched_and_never_added():
    look_up = Suffix()
    slot, text = look_up.open(), [1, 2, 3, 4, 1]
    assert look_up.propose(Context(text, (2,)), 2, slot) == (3, 4)
    assert look_up.propose(Context(text), 2, slot) == (2, 3)
    text += [2, 9]
    assert look_up.propose(Context(text, (1, 2)), 1, slot) == (9,)
    assert slot.automaton.num_tokens == len(text)


def test_a_draft_stops_where_support_is_thin(monkeypatch):
    """Before the token, from what was drafted until then."""
    text = [1, 5, 1, 6, 1, 7, 1, 8, 1, 9, 1]
    look_up = Suffix(max_order=1)
    assert look_up.propose(Context(text), 8, look_up.open()) == (), "a fifth"
    monkeypatch.setattr(suffix, "MIN_SUPPORT", 0.1)
    assert look_up.propose(Context(text), 8, look_up.open()) == (9, 1), "a fifth of a fifth"
    copied = [1, 2, 3, 4, 5, 6, 7, 1]
    assert look_up.propose(Context(copied), 8, look_up.open()) == (2, 3)


def test_laws_are_proper_and_tokens_drawn_from_them():
    text = [3, 8, 3, 8, 3, 9, 3]
    look_up = Suffix(max_order=1)
    _, rows = look_up.draft(call(text, limit=2), look_up.open())
    assert isinstance(rows, MixedDistributions)
    probs = rows.dense(10)
    assert torch.allclose(probs.sum(-1), torch.ones(2, dtype=torch.float64))
    assert probs[0, 8] == pytest.approx(2 / 3)
    assert probs[0, 9] == pytest.approx(1 / 3)
    assert probs[1, 3] == 1.0
    counts = Counter(
        look_up.draft(call(text, limit=1, seed=seed), look_up.open())[0][0] for seed in range(600)
    )
    assert abs(counts[8] / 600 - 2 / 3) < 0.08, "false once in 30,000 tries"
    assert look_up.draft(call(text, GREEDY, 1), look_up.open())[0] == (8,)


# --- the store


def test_the_store_keeps_outputs_of_greedy_texts_alone():
    look_up = Suffix(max_order=4, store=40)
    slot = look_up.open()
    look_up.draft(call([50, 51, 1, 2, 3, 4], GREEDY, prompt_length=2), slot)
    look_up.close(slot)
    new = look_up.open()
    assert look_up.draft(call([9, 1, 2], GREEDY), new)[0] == (3, 4)
    assert look_up.draft(call([9, 50], GREEDY), new)[0] == (), "no prompt is kept"
    own = look_up.open_private()
    assert look_up.draft(call([9, 1, 2]), own)[0] == ()
    look_up.close(own)
    assert not look_up.earlier_outputs.ended_texts
    assert Suffix().open().earlier_outputs is None, "off unless asked for"


def test_the_store_is_bounded_and_forgets_the_oldest():
    store = Suffix(max_order=4, store=40).earlier_outputs
    for start in range(0, 400, 8):
        store.ended_texts.append(list(range(start, start + 8)))
        young, old = store.automata()
        assert young.num_tokens + old.num_tokens <= 40
    assert young.match([399]).length
    assert not any(automaton.match([7]).length for automaton in (young, old))
    store.ended_texts.append(list(range(1000, 1100)))
    assert sum(automaton.num_tokens for automaton in store.automata()) <= 40


# --- exactness


@pytest.mark.parametrize("rule", ["tokenwise", "block"])
@pytest.mark.parametrize("path", VERIFYING)
def test_the_engine_writes_the_targets_law(path, rule):
    (target,) = models("random", 1, seed=1)
    below = Draft(0, "suffix", Suffix(max_order=2), 2)
    root = chain([target], [rule], [], below=below)
    near = (
        Neighbour((0, 2, 1), SamplingParams(temperature=0.6), num_tokens=2),
        Neighbour((2,), GREEDY, num_tokens=4),
    )
    prompt = [0, 1, 0, 2, 0, 1, 1, 0]
    with patched(*VERIFYING[path]):
        if path == "recorded":
            from engine_paths import Taped

            root.model.graphs = Taped()
        found = engine_law(root, prompt, 4, SAMPLING, near)
    assert sum(found.values()) == pytest.approx(1.0, abs=1e-9)
    assert distance(found, target, prompt, 4) < 1e-9


def test_below_a_level_and_as_a_tail():
    small, target = models("random", 2, seed=4)
    prompt = [0, 1, 0, 2, 0, 1, 1, 0]
    lowest = Draft(0, "suffix", Suffix(max_order=2), 2)
    root = chain([small, target], ["tokenwise", "block"], [2], below=lowest)
    assert distance(engine_law(root, prompt, 3), target, prompt, 3) < 1e-9
    parts = (Draft(0, "small", small, 1), Draft(1, "suffix", Suffix(max_order=2), 2))
    root = chain([target], ["block"], [], below=Concatenate(2, "both", parts))
    assert distance(engine_law(root, prompt, 4), target, prompt, 4) < 1e-9


def test_a_draft_that_stops_by_its_last_token_would_be_seen(monkeypatch):
    """What the two tests above can find: dropping a token because of its own value."""
    real = Suffix.draft

    def dropping(self, call, slot):
        tokens, rows = real(self, call, slot)
        keep = len(tokens) - (len(tokens) > 0 and tokens[-1] == 0)
        return tokens[:keep], rows.rows(0, keep)

    monkeypatch.setattr(Suffix, "draft", dropping)
    (target,) = models("random", 1, seed=1)
    root = chain([target], ["block"], [], below=Draft(0, "suffix", Suffix(max_order=2), 2))
    prompt = [0, 1, 0, 2, 0, 1, 1, 0]
    assert distance(engine_law(root, prompt, 4), target, prompt, 4) > 1e-4


PROMPTS = [[5, 9, 7, 5, 9], [11, 4, 4, 30, 8], [60], list(range(3, 40))]
LEVEL = {"method": "suffix", "num_speculative_tokens": 4}
CHAINS = {
    "alone": [LEVEL],
    "with a store": [{**LEVEL, "store": 500}],
    "lowest of three": [
        LEVEL,
        {"method": "early_exit", "exit_layer": 1, "num_speculative_tokens": 5},
    ],
    "a tail": [
        {
            "method": "concatenate",
            "parts": [
                {"method": "early_exit", "exit_layer": 1, "num_speculative_tokens": 2},
                LEVEL,
            ],
        }
    ],
}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    path = save_tiny("llama", tmp_path_factory.mktemp("llama") / "m", seed=1)
    return {"model": str(path), "dtype": "float64"}


@pytest.mark.parametrize("name", CHAINS)
def test_greedy_equals_plain_greedy(tiny, name):
    options = {"max_new_tokens": 40, "ignore_eos": True}
    plain = Hierarchy.from_config({"target": tiny})
    expected = [plain.generate(p, **options).token_ids for p in PROMPTS]
    hierarchy = Hierarchy.from_config({"target": tiny, "levels": CHAINS[name]})
    for _ in range(2):
        batch = hierarchy.generate_batch(PROMPTS, **options)
        assert [r.token_ids for r in batch] == expected
    assert sum(r.target_calls for r in batch) < 4 * 39, "some drafts are kept"
    if "store" in name:
        assert sum(r.target_calls for r in batch) < 4 * 39 // 2, "the same texts, written again"


@pytest.mark.parametrize("name", CHAINS)
def test_a_sequence_samples_the_same_whoever_shares_its_batch(tiny, name):
    hierarchy = Hierarchy.from_config({"target": tiny, "levels": CHAINS[name]})
    options = {"max_new_tokens": 12, "temperature": 1.0, "seed": 5, "ignore_eos": True}
    together = [r.token_ids for r in hierarchy.generate_batch(PROMPTS, **options)]
    fewer = [r.token_ids for r in hierarchy.generate_batch(PROMPTS[:2], **options)]
    assert together[:2] == fewer


# --- mistakes


@pytest.mark.parametrize(
    ("level", "says"),
    [
        ({**LEVEL, "max_order": 0}, "max_order must be an integer of at least 1"),
        ({**LEVEL, "store": -1}, "store must be an integer of at least 0"),
        ({**LEVEL, "temperature": 0.5}, "suffix copies tokens .* temperature has no use"),
        ({**LEVEL, "num_drafts": 2}, "suffix makes only one draft"),
        ({**LEVEL, "window": "entropy"}, "suffix .* remove it"),
        ({**LEVEL, "max_oder": 3}, "did you mean 'max_order'"),
    ],
)
def test_mistakes_in_the_file(level, says):
    from hierspec.config.schema import HierarchyConfig

    with pytest.raises(ValueError, match=says) as caught:
        HierarchyConfig.from_dict({"target": "t", "levels": [level]})
    assert "\n" not in str(caught.value)


def test_mistakes_in_python():
    with pytest.raises(ValueError, match="max_order must be 1 to 256"):
        Suffix(max_order=999)
    with pytest.raises(ValueError, match="store must be 0 to"):
        Suffix(store=-1)
