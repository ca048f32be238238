"""Prompt lookup equals a search of the whole text, with and without an index."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hierspec.core.context import Context
from hierspec.drafters.prompt_lookup import PromptLookup


def reference(tokens: list[int], low: int, high: int, limit: int) -> tuple[int, ...]:
    """By searching everything; a copy that reaches the end goes on with what it copied."""
    for n in range(high, low - 1, -1):
        for end in range(len(tokens) - 1, n - 1, -1):
            if tokens[end - n : end] == tokens[len(tokens) - n :]:
                text = list(tokens)
                for i in range(limit):
                    text.append(text[end + i])
                return tuple(text[len(tokens) :])
    return ()


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(st.lists(st.integers(0, 2), max_size=6), st.integers(0, 4)), min_size=1),
    st.integers(1, 3),
    st.integers(0, 2),
    st.integers(1, 7),
)
def test_equals_a_search_of_everything(steps, low, more, limit):
    """Over the life of a sequence: text is committed in runs, drafts come and go."""
    lookup = PromptLookup(low, low + more)
    slot, committed = lookup.open(), []
    for tokens, num_pending in steps:
        committed.extend(tokens)
        pending = tuple(tokens[::-1])[:num_pending]
        for context in (Context(committed, pending), Context(committed)):
            want = reference(context.tokens(), low, low + more, limit)
            assert lookup.propose(context, limit, slot) == want
            assert lookup.propose(context, limit) == want


def test_the_most_recent_occurrence_of_the_longest_match():
    lookup = PromptLookup(1, 3)
    tokens = [1, 2, 3, 7, 9, 3, 8, 1, 2, 3]
    assert lookup.propose(Context(tokens), 2) == (7, 9), "three tokens match before one does"
    assert PromptLookup(1, 1).propose(Context(tokens), 2) == (8, 1)
    assert PromptLookup(4, 4).propose(Context(tokens), 2) == ()


def test_a_loop_goes_on():
    assert PromptLookup(2, 2).propose(Context([5, 1, 2, 1, 2]), 5) == (1, 2, 1, 2, 1)
    assert PromptLookup(1, 1).propose(Context([4], (4,)), 3) == (4, 4, 4)


def test_nothing_to_propose():
    lookup = PromptLookup(1, 3)
    assert lookup.propose(Context([]), 4) == ()
    assert lookup.propose(Context([1]), 4) == ()
    assert lookup.propose(Context([1, 2, 3]), 4) == ()
    assert lookup.propose(Context([1, 1]), 0) == ()


def test_a_closed_slot_starts_over():
    lookup = PromptLookup(1, 2)
    slot = lookup.open()
    lookup.propose(Context([1, 2, 1]), 1, slot)
    lookup.close(slot)
    assert lookup.propose(Context([3, 4, 3]), 1, slot) == (4,)
    assert lookup.propose(Context([1]), 1, slot) == (), "a shorter text is another text"


@pytest.mark.parametrize(("low", "high"), [(0, 2), (3, 2), (1, 99)])
def test_mistakes(low, high):
    with pytest.raises(ValueError, match="prompt_lookup_min ≤ prompt_lookup_max"):
        PromptLookup(low, high)


def test_a_step_on_a_long_text_is_cheap():
    """Measured near 10 µs; the bound leaves room for a busy machine."""
    lookup = PromptLookup(1, 3)
    committed = [(i * i) % 977 for i in range(8000)]
    slot = lookup.open()
    lookup.propose(Context(committed), 8, slot)
    times = []
    for i in range(200):
        committed.append(i % 50)
        context = Context(committed, (1, 2, 3, 4))
        start = time.perf_counter()
        lookup.propose(context, 8, slot)
        times.append(time.perf_counter() - start)
    assert sorted(times)[100] < 500e-6, sorted(times)[100]


def test_naive_is_refused_over_a_look_up():
    from hierspec.core.nodes import Draft, Verify
    from hierspec.verifiers import registry
    from hierspec.verifiers.soundness import validate

    below = Draft(0, "prompt_lookup", PromptLookup(2, 4), 3)
    root = Verify(1, "target", None, 1, registry.get("naive"), below)
    with pytest.raises(ValueError, match="no distribution at contexts other"):
        validate(root)
